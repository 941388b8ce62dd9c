"""Pages are held to `results/`: generated blocks, pictures, cards and the zoo say what the kept data says."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import evaluate_checkpoint, load_config, load_policy, resume
from rl_training.commands.list import list_configs
from rl_training.errors import ConfigError
from rl_training.registry import policy_path, shipped_config_path, shipped_configs, zoo_policies
from rl_training.reporting.results import (
    BLOCK,
    Measured,
    extract_table,
    family_table,
    rewritten,
    standing,
    verdict,
)
from rl_training.reporting.statistics import Interval
from rl_training.runtime.workflows import revisions
from rl_training.state import checkpoints
from rl_training.tools.experiments import parse_seeds
from rl_training.tools.forking import fork
from rl_training.tools.reproducing import config_of, digest, read_measured, settings_of
from rl_training.tools.rows import Reference, read_row
from rl_training.tools.zoo import LARGEST, LARGEST_ZOO, card, median_seed
from rl_training.trust import foreign

ROOT = Path(__file__).parents[2]


def maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = maker()
ROWS: dict[str, Measured] = MAKER.measured()
DONE = {name: measured for name, measured in ROWS.items() if measured.result is not None}
PAGES: list[Path] = MAKER.PAGES
CONFIGS = shipped_configs()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_blocks_are_as_the_results_have_them(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == rewritten(text, MAKER.blocks()), "run `make results`"
    assert MAKER.stray_scores(text) == [], (
        "scores stand in generated blocks, other numbers in tables of NO_SCORES"
    )
    assert text.count("<!-- results:") == text.count("<!-- /results -->") == len(BLOCK.findall(text))


def test_every_kept_table_stands_on_one_page() -> None:
    blocks = [name for page in PAGES for name, _ in BLOCK.findall(page.read_text("utf-8"))]
    assert sorted(blocks) == sorted(MAKER.blocks())


def test_a_planted_score_is_found() -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    blocks = MAKER.blocks()
    name, body = next(
        (name, body) for name, body in BLOCK.findall(page) if re.search(r"\*\*500\.0\*\*", body)
    )
    forged = page.replace(body, body.replace("**500.0**", "**500.1**"))
    assert forged != rewritten(forged, blocks) == page, name
    for planted in (
        "| config | trained |\n|---|---|\n| mine | 499 |\n",
        "| row | IQM |\n|---|---|\n| mine | 499 (480 to 500) |\n",
        "| preset | it ends at |\n|---|---|\n| `ppo/cartpole` | 499.0 |\n",
        "| seed | CartPole-v1 |\n|---|---|\n| 1 | 499.0 |\n",
        "| step | CartPole-v1 | Acrobot-v1 |\n|---|---|---|\n| 10 008 | 51.7, solved | |\n",
        "| config | result |\n|---|---|\n| mine | **499** |\n",
        "| env | ours | theirs |\n|:---|---:|---:|\n| CartPole | 499 | −3.5 |\n",
        "| preset | learned |\n| --- | --- |\n| mine | 499 |",
        "| it | ends |\n|---|---|\n| `ppo/cartpole`, seed 1 | 499 ± 3 |\n",
        "- In a list:\n\n  | config | result |\n  |---|---|\n  | mine | 499 |\n",
        "config | result\n---|---\nmine | 499\n",
    ):
        assert MAKER.stray_scores(f"{page}\n{planted}\n"), planted
    for allowed in (
        "| config | first compilation |\n|---|---|\n| `ppo/cartpole` | 7.2 |\n",
        "| config | trained |\n|---|---|\n| mine | not measured |\n",
        "```\n| config | trained |\n|---|---|\n| mine | 499 |\n```\n",
    ):
        assert not MAKER.stray_scores(f"{page}\n{allowed}\n"), allowed


def test_tables_that_may_stand_outside_of_blocks_are_on_some_page() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in PAGES)
    assert not [header for header in MAKER.NO_SCORES if f"\n{header}\n" not in pages]


def test_pictures_are_of_these_results() -> None:
    families = MAKER.by_family(DONE)
    pictures = {path.name for path in (ROOT / "docs" / "images").glob("results_*")}
    assert pictures == {MAKER.picture_of(family).name for family in families}
    for family, members in families.items():
        assert MAKER.drawn_digest(MAKER.picture_of(family)) == MAKER.data_digest(members), (
            "run `make results`"
        )


def test_the_picture_of_connect_four_is_of_these_runs() -> None:
    assert MAKER.drawn_digest(MAKER.GAMES_PICTURE) == MAKER.games_digest(), "run `make results`"
    assert not set(MAKER.games()) & {str(seed) for seed in range(1, 6)}, "settings are chosen on seeds 1 to 5"


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_result_or_says_why_not(name: str) -> None:
    row, result = ROWS[name].row, ROWS[name].result
    assert (result is None) == bool(row.not_run)
    assert not set(parse_seeds(row.seeds)) & set(range(1, 6)), "settings are chosen on seeds 1 to 5"
    if result is None:
        return
    config = load_config(row.config, row.overrides)
    assert (config.algo, config.env_id) == (result["settings"]["algo"], result["settings"]["env_id"])
    assert [seed["seed"] for seed in result["seeds"]] == parse_seeds(row.seeds), "all seeds are reported"
    assert result["config_sha256"] == digest(result["settings"])
    assert result["cost"].keys() == {str(seed["seed"]) for seed in result["seeds"]}
    for seed in result["seeds"]:
        assert len(seed["returns"]) == result["evaluation"]["episodes"]
        assert seed["score"] == pytest.approx(np.mean(seed["returns"]), rel=1e-4)
        assert seed["steps"] >= result["settings"]["total_timesteps"]


def said_to_be_measured(page: str) -> set[str]:
    """Configs that a page gives results of: a paragraph begins with one, and a score or a block of results follows."""
    paragraphs = page.split("\n\n")
    found = set()
    for paragraph, after in zip(paragraphs, [*paragraphs[1:], ""], strict=True):
        begin = re.match(r"`([\w/]+)`, ", paragraph)
        if begin and (re.search(r"\d\.\d", paragraph) or BLOCK.match(after + "\n")):
            found.add(begin[1])
    return found


def test_only_paragraphs_with_results_say_that_a_config_was_measured() -> None:
    block = "<!-- results: earlier x -->\n| seed | score |\n<!-- /results -->"
    for text in ("`a/b`, one seed: 13.7 points.", f"`a/b`, seeds 1 to 3:\n\n{block}"):
        assert said_to_be_measured(f"Before.\n\n{text}\n\nAfter.\n") == {"a/b"}
    for text in (
        "`a/b`, 8 simulations, is the smallest.",
        "The config\n`a/b`, as 13.7 says.",
        f"`a/b`.\n\n{block}",
    ):
        assert not said_to_be_measured(f"Before.\n\n{text}\n\nAfter 1.5.\n")


def is_of_its_config(measured: Measured) -> bool:
    """Whether a result was made with the settings that its config has now."""
    return not any(reason.startswith("config: ") for reason in measured.outdated)


def test_a_row_says_what_has_changed_since_it_was_measured(tmp_path: Path) -> None:
    row, result = DONE["ppo/cartpole"].row, DONE["ppo/cartpole"].result
    assert result is not None
    kept = tmp_path / "ppo" / "cartpole.json"
    kept.parent.mkdir()
    config = config_of(row)
    result = {**result, "settings": settings_of(config), "revisions": revisions(config)}
    kept.write_text(json.dumps(result), "utf-8")
    assert "before a change" not in family_table([read_measured(row, tmp_path)])
    other = {**result, "settings": result["settings"] | {"gamma": 0.9}, "revisions": {"shared": 0}}
    kept.write_text(json.dumps(other), "utf-8")
    measured = read_measured(row, tmp_path)
    assert (
        "`ppo/cartpole`: measured before a change of: config: gamma; revision of ppo, shared."
        in family_table([measured])
    )
    assert not is_of_its_config(measured)


def test_presets_say_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    rows = sorted(
        (each.row for each in DONE.values() if is_of_its_config(each)), key=lambda row: -len(row.overrides)
    )
    measured = {row.config: row for row in rows}  # of several rows, the one that overrides least
    tables = MAKER.earlier().values()
    earlier = {name for each in tables for row in each["rows"] for name in re.findall(r"^`([\w/]+)`", row[0])}
    gated = {gate["config"] for gate in MAKER.gates().values()}
    for page in PAGES:
        earlier |= said_to_be_measured(page.read_text("utf-8"))
    list_configs()
    listed = capsys.readouterr().out
    for name in CONFIGS:
        first = shipped_config_path(name).read_text("utf-8").partition("\n")[0]
        kinds = {"": measured, "gate only": gated, "earlier figures only": earlier}
        expected = next((kind for kind, those in kinds.items() if name in those), "not measured")
        if name == MAKER.GAME:
            asked = load_config(name).total_timesteps
            expected = "" if MAKER.shipped_game()["steps"] == asked else "earlier figures only"
        found = re.match(r"# (?:\((not measured|gate only|earlier figures only)\) )?", first)
        assert found is not None and (found[1] or "") == expected, name
        shown = next(line for line in listed.splitlines() if line.split()[:1] == [name])
        assert expected in shown and "rl-training" not in shown, "a sentence ends before a command"
        for override in measured[name].overrides if name in measured else ():
            assert override in shown, f"{name}: its result is of {override}, which its label does not say"


def test_the_zoo_has_the_median_policy_of_each_row_and_is_small() -> None:
    shipped = {name: measured for name, measured in DONE.items() if measured.row.zoo}
    assert zoo_policies() == sorted([*shipped, MAKER.GAME])
    sizes = {
        name: sum(path.stat().st_size for path in policy_path(f"zoo:{name}").iterdir())
        for name in zoo_policies()
    }
    assert max(sizes.values()) <= LARGEST and sum(sizes.values()) <= LARGEST_ZOO
    for name, measured in shipped.items():
        assert measured.result is not None
        folder = policy_path(f"zoo:{name}")
        seed = median_seed(measured.result)
        weights = hashlib.sha256((folder / checkpoints.WEIGHTS).read_bytes()).hexdigest()
        assert weights == seed["weights_sha256"]
        files = {path.name for path in folder.iterdir()}
        assert files == {"card.md", "state.json", "state.safetensors", checkpoints.WEIGHTS}
        assert (folder / "card.md").read_text("utf-8") == card(measured), "run `make results`"
        policy = load_policy(f"zoo:{name}")  # without trust: nothing is imported
        # Nor do `play` and `evaluate` ask for trust.
        assert not foreign(load_config(measured.row.config), "playing"), name
        obs = policy.observation_space.sample()
        assert policy.action_space.contains(policy.act(obs)), name


def test_the_zoo_has_the_policy_of_connect_four_that_was_measured() -> None:
    folder, run = policy_path(f"zoo:{MAKER.GAME}"), MAKER.shipped_game()
    assert hashlib.sha256((folder / checkpoints.WEIGHTS).read_bytes()).hexdigest() == run["weights_sha256"]
    assert (folder / "card.md").read_text("utf-8") == MAKER.games_card(), "run `make results`"
    policy = load_policy(f"zoo:{MAKER.GAME}")
    empty = {"observation": np.zeros((2, 6, 7), np.float32), "action_mask": np.ones(7, np.int8)}
    assert policy.action_space.contains(policy.act(empty))


def test_a_policy_of_the_zoo_scores_what_its_card_says() -> None:
    measured = DONE["ppo/cartpole"]
    assert measured.result is not None
    scores = evaluate_checkpoint("zoo:ppo/cartpole", episodes=20, seed=5)
    assert scores["mean_return"] >= 0.95 * median_seed(measured.result)["score"]
    with pytest.raises(ConfigError, match="did you mean ppo/cartpole"):
        load_policy("zoo:ppo/cartpol")
    with pytest.raises(ConfigError, match="the zoo has no such policy"):
        policy_path("zoo:../configs")


def test_a_fork_of_the_zoo_begins_with_its_weights_and_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["total_timesteps=512", "learning_rate=0", "learning_rate_schedule=null", "eval_episodes=2"]
    result = fork("zoo:ppo/cartpole", settings, run_dir=run)
    weights = policy_path("zoo:ppo/cartpole") / checkpoints.WEIGHTS
    assert (run / "checkpoints/step-000000000000" / checkpoints.WEIGHTS).read_bytes() == weights.read_bytes()
    assert (
        result.checkpoint_path / checkpoints.WEIGHTS
    ).read_bytes() == weights.read_bytes()  # nothing was learned
    assert json.loads((run / "manifest.json").read_text())["lineage"][0]["parent"] == "zoo:ppo/cartpole"
    metrics = (run / "metrics.jsonl").read_bytes()
    for path in (run / "checkpoints").glob("step-*512"):
        path.rename(tmp_path / "away")  # as if it had been killed before its end
    resume(run)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    with pytest.raises(ConfigError, match="hidden_sizes: the state of cartpole does not fit"):
        fork("zoo:ppo/cartpole", ["hidden_sizes=[8]"], run_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_cards_and_tables_say_what_steps_are_and_what_a_row_changes() -> None:
    assert " observation-action pairs, " in card(DONE["bc/cartpole"])
    assert " environment steps, " in card(DONE["gail/cartpole"])
    assert "| `gail/acrobot`, `expert_episodes=10` |" in family_table([DONE["gail/acrobot"]])


def test_the_verdict_is_read_off_the_interval() -> None:
    interval = Interval(*map(np.float64, (10.0, 8.0, 12.0)))
    assert standing(interval, 7, 2) == "no verdict on 2 seeds"
    assert [standing(interval, score, 3) for score in (7, 8, 9, 12, 13)] == [
        "reached",
        "reached",
        "level",
        "level",
        "below",
    ]
    row = read_row("ppo/cartpole").model_copy(
        update={"references": (Reference(score=5, source="them", scores=(1.0, 2.0, 2.0)),)}
    )
    seeds = [{"seed": seed, "score": 3.0, "untrained": 0.0} for seed in (11, 12, 13)]
    peer = {"library": "peers 1.0", "seeds": [{"score": 3.0}, {"score": 4.0}, {"score": 4.0}]}
    lines = verdict(Measured(row, {"seeds": seeds}, peer))
    assert lines[1] == "reference    5 (them): below"
    assert "improvement (ties count half) 1.00" in lines[2]
    assert "peers 1.0: IQM 3.67" in lines[3] and "improvement (ties count half) 0.17" in lines[4]
    few = verdict(Measured(row, {"seeds": seeds}, peer | {"seeds": peer["seeds"][:2]}))
    assert few[4].strip() == "no verdict on 2 seeds"


def test_a_row_is_compared_with_one_that_was_measured_as_it_was() -> None:
    row = read_row("ppo/cartpole").model_copy(update={"references": (), "beside": "a2c/cartpole"})
    seeds = [{"seed": seed, "steps": 128, "score": 3.0, "untrained": 0.0} for seed in (11, 12, 13)]
    settings = {"total_timesteps": 100, "env_id": "CartPole-v1"}
    evaluation = {"episodes": 100, "actions": "greedy", "checkpoint": "last"}
    result = {"seeds": seeds, "settings": settings, "evaluation": evaluation, "cost": {}}

    def beside(other: dict[str, Any] | None) -> tuple[list[str], str]:
        measured = Measured(row, result, None, Measured(read_row("a2c/cartpole"), other))
        return verdict(measured)[1:], family_table([measured])

    spread = [seed | {"score": score} for seed, score in zip(seeds, (2.0, 3.0, 4.0), strict=True)]
    lines, cells = beside(result | {"seeds": spread})
    assert lines[0] == "beside       a2c/cartpole: IQM 3.00, 95 % interval 2.00 to 4.00, 3 seeds"
    assert lines[1].strip().startswith("probability of improvement (ties count half) 0.50, 95 % interval")
    assert "| `a2c/cartpole`: 3.00 (2.00 to 4.00), 3 seeds | P(improvement) 0.50" in cells
    lines, cells = beside(result | {"settings": settings | {"total_timesteps": 2000}})
    assert lines == ["beside       a2c/cartpole: not compared, 2 000 steps against 100 steps"]
    assert "not compared, 2 000 steps against 100 steps | none |" in cells
    for other, words in (
        ({"settings": settings | {"env_id": "Acrobot-v1"}}, "Acrobot-v1 against CartPole-v1"),
        ({"evaluation": evaluation | {"actions": "sampled"}}, "sampled actions against greedy actions"),
        (
            {"evaluation": evaluation | {"checkpoint": "best"}},
            "the best checkpoint against the last checkpoint",
        ),
    ):
        assert beside(result | other)[0] == [f"beside       a2c/cartpole: not compared, {words}"]
    lines, cells = beside(result | {"evaluation": evaluation | {"episodes": 20}})
    assert len(lines) == 2, "more episodes give the same score, more precisely"
    lines, cells = beside(None)
    assert lines == ["beside       a2c/cartpole: not run"] and "| `a2c/cartpole`: not run | none |" in cells
    waiting = Measured(row.model_copy(update={"not_run": "no time"}), None, None, Measured(row, result))
    assert "| `ppo/cartpole`: 3.00 (3.00 to 3.00), 3 seeds | no time |" in family_table([waiting])


def test_a_reference_of_our_own_is_not_called_published() -> None:
    ours = DONE["bc/cartpole"]
    assert "- Reference: 500 (the expert: " in card(ours)
    assert not re.search("published", card(ours) + family_table([ours]) + extract_table([ours]), re.I)


def test_a_figure_of_another_protocol_has_one_word_in_the_verdict_and_the_table() -> None:
    measured = DONE["ppo/minatar_breakout"]
    assert verdict(measured)[1].endswith(": orientation only")
    assert "| orientation only |" in family_table([measured])


def test_readme_lists_the_environments_that_each_algorithm_was_measured_on() -> None:
    configs = [each.row.config for each in DONE.values()]
    configs += [gate["config"] for gate in MAKER.gates().values()]
    measured: dict[str, set[str]] = {}
    for config in map(load_config, configs):
        parts = [config.of_task(name) for name in config.tasks] or [config]
        measured.setdefault(config.algo, set()).update(part.env_id for part in parts)
    readme = (ROOT / "README.md").read_text("utf-8")
    told = dict(re.findall(r"^\| \[.+?\]\(docs/algorithms/(\w+)\.md\) \|.*\| (.+?) \|$", readme, re.M))
    assert told.keys() == measured.keys()
    for algo, ids in measured.items():
        words = re.findall(r"[A-Z]\w+|[a-z]+-[a-z]+", told[algo])  # dm_control's have no capitals
        assert not [word for word in words if not any(word in each for each in ids)], f"{algo}: not measured"
        assert not [each for each in ids if not any(word in each for word in words)], f"{algo}: not listed"
