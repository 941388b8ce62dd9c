"""The documentation says what is there: links, commands, config keys, defaults, metric names, examples, results."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from learning.gates import GATES
from pydantic import ValidationError
from runs import RUNS

from rl_training import load_config, train
from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.registry import ALGORITHMS, trainer_class
from rl_training.runtime.controls import find_control, split_key
from rl_training.runtime.ppo_trainer import PPOConfig
from rl_training.runtime.schedules import KEYS
from rl_training.settings.config import Config
from rl_training.settings.describing import describe_config
from rl_training.settings.keys import accepted_keys
from rl_training.settings.yaml import parse_yaml
from rl_training.tools.rows import Row

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
# The rows of the benchmarks in README's picture, in its order.
SPEEDS = ["ppo-cartpole", "a2c-cartpole", "trpo-cartpole", "recurrent-ppo-cartpole", "dqn-cartpole"]
SPEEDS += ["dreamer-cartpole", "ppo-atari", "sac-pendulum"]
PICTURES = {
    "connect_four.png",
    "display.svg",
    "report.png",
    "schedules.png",
    "speed.png",
    "learning_curve.png",
}
PICTURES |= {"dreamer_pixels.png", "pong.png", "proofs.png"}
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a language; "" for those that name none."""
    return [
        body for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if name == language
    ]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Header and rows of every table."""
    for found in re.findall(r"(?:^\|.*\|$\n?)+", without_blocks(text), re.M):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in found.strip().split("\n")
        ]
        yield header, rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def table(page: str, first: str, second: str | None = None) -> list[list[str]]:
    """All rows of a page's tables that are headed like this."""
    text = (ROOT / page).read_text("utf-8")
    found = [rows for header, rows in tables(text) if header[0] == first and second in (None, header[1])]
    assert found, f"{page} has no table headed {first}"
    return [row for rows in found for row in rows]


# Checkers: each returns what is wrong, so that the tests at the end can see them find something.


def wrong_links(text: str, folder: Path) -> list[str]:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        path, _, anchor = link.partition("#")
        if link.startswith(("http:", "https:")):
            continue
        target = folder / path
        if not target.exists():
            wrong.append(link)
        elif anchor:
            there = target.read_text("utf-8") if path else text  # `#heading` is of the page itself
            headings = re.findall(r"^#+ (.*)$", without_blocks(there), re.M)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            wrong += [] if anchor in slugs else [link]
    return wrong


def wrong_commands(text: str) -> list[str]:
    """Every `rl-training VERB ... --option` in code must be a verb, with options that this verb has."""
    lines = [line for kind in ("sh", "") for block in blocks(text, kind) for line in block.splitlines()]
    lines = [line for line in lines if re.match(r"(\$ )?rl-training ", line)]
    lines += [span for span in names(without_blocks(text)) if span.startswith("rl-training ")]
    # In the table of commands the options of a verb stand in the cell beside it.
    lines += [
        f"{span} {' '.join(names(row[1]))}"
        for header, rows in tables(text)
        if header[0] == "command"
        for row in rows
        for span in names(row[0])
        if span.startswith("rl-training ")
    ]
    wrong = []
    for line in lines:
        verb, *rest = re.sub(r"^\$ ", "", line.partition(" #")[0]).split()[1:]
        known = (
            {
                option
                for parameter in COMMANDS[verb].params
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            if verb in COMMANDS
            else set()
        )
        if verb not in COMMANDS:
            wrong += [] if verb in ("--help", "--version") else [line]
        else:
            wrong += [
                f"{verb} {word}" for word in rest if word.startswith("--") and word not in {*known, "--help"}
            ]
    return wrong


def wrong_keys(text: str) -> list[str]:
    """What a table calls a field, a knob or a key must be a key of PPO's config."""
    accepted = accepted_keys(PPOConfig)
    wrong = []
    for header, rows in tables(text):
        if header[0] in ("field", "knob", ""):
            wrong += [name for row in rows for name in names(row[0]) if name not in accepted]
        if header[0] == "key" and any(split_key(name) for row in rows for name in names(row[0])):
            wrong += [name for row in rows for name in names(row[0]) if name not in accepted]
        if header[:2] == ["knob", "aliases"]:
            for row in rows:
                control = find_control(names(row[0])[0])
                wrong += [row[0]] if control is None or set(names(row[1])) != set(control.aliases) else []
    return wrong


def wrong_yaml(text: str) -> list[str]:
    """YAML blocks are configs, or fragments of one that go onto ppo/cartpole; others run elsewhere."""
    wrong = []
    for block in blocks(text, "yaml"):
        # A space for `tune`, and a config of an algorithm that an example adds.
        if block.startswith(("# space.yaml\n", "# reinforce.yaml\n")):
            continue
        try:
            values = parse_yaml(block, "block").data
            if block.startswith("# results/rows/"):
                Row(name="of/a_page", **values)
                continue
            load_config(
                values if {"algo", "extends"} & values.keys() else {"extends": "ppo/cartpole", **values}
            )
        except (ConfigError, AttributeError, ValidationError) as error:
            wrong.append(f"{error}: {block}")
    return wrong


def wrong_python(text: str) -> list[str]:
    """Python blocks compile, and what they import is there."""
    wrong = []
    for block in blocks(text, "python"):
        try:
            tree = ast.parse(block)
        except SyntaxError as error:
            wrong.append(f"{error}: {block}")
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                wrong += [alias.name for alias in node.names if not hasattr(module, alias.name)]
    return wrong


def named_machines(text: str) -> list[str]:
    return re.findall(r".*/(?:home|root|work|tmp|Users)/.*", text)


CHECKS: dict[str, Callable[[str, Path], list[str]]] = {
    "links lead somewhere": wrong_links,
    "commands exist": lambda text, folder: wrong_commands(text),
    "keys exist": lambda text, folder: wrong_keys(text),
    "YAML blocks are valid configs": lambda text, folder: wrong_yaml(text),
    "Python blocks compile and import": lambda text, folder: wrong_python(text),
    "pages name no machine": lambda text, folder: named_machines(text),
}


def test_every_page() -> None:
    assert len(PAGES) > 40
    found = {
        (str(page.relative_to(ROOT)), check): wrong_in(page.read_text("utf-8"), page.parent)
        for page in PAGES
        for check, wrong_in in CHECKS.items()
    }
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def undocumented_options() -> list[str]:
    rows = {names(row[0])[0].split()[1]: row[1] for row in table("docs/commands.md", "command")}
    assert rows.keys() == set(COMMANDS)
    options = {
        verb: {option for made in COMMANDS[verb].params if not made.hidden for option in made.opts[:1]}
        for verb in rows
    }
    return [
        f"{verb} {option}"
        for verb, row in rows.items()
        for option in options[verb]
        if option.startswith("--") and option not in row
    ]


def test_every_page_command_option_and_extra_is_documented() -> None:
    index, readme = (DOCS / "index.md").read_text("utf-8"), (ROOT / "README.md").read_text("utf-8")
    pages = [page for page in PAGES if DOCS in page.parents and page.name != "index.md"]
    missing = [str(page) for page in pages if f"({page.relative_to(DOCS).as_posix()})" not in index]
    missing += [] if "(docs/index.md)" in readme else ["the index, in README"]
    assert missing + undocumented_options() == []
    shown = [verb for row in table("README.md", "command") for verb in names(row[0])]
    assert sorted(shown) == sorted(COMMANDS)
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"test", "docs", "dev"}
    assert {name for row in table("docs/install.md", "extra") for name in names(row[0])} == extras


def plain_default(text: str) -> str:
    """A default as `describe` prints it, from how a page writes it."""
    text = text.replace("`", "").replace("null", "none").removesuffix(" for PPO")
    text = re.sub(r"(?<=\d) (?=\d)", "", text)
    try:
        return str(float(text))
    except ValueError:
        return text


def fields_under(heading: str) -> dict[str, str]:
    """Field -> default of the tables under one heading of the page of configs."""
    text = (DOCS / "configs.md").read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {
        names(row[0])[0]: row[1] for header, rows in tables(section) if header[0] == "field" for row in rows
    }


def value_of(config: Config, key: str) -> str:
    value = getattr(config, key)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def wrong_hyper_parameters() -> Iterator[tuple[str, str, str]]:
    """Key, environment and cell of the table on PPO's page, where the shipped config has another value."""
    text = (DOCS / "algorithms" / "ppo.md").read_text("utf-8")
    (header, rows), *_ = [(header, rows) for header, rows in tables(text) if header[0] == ""]
    configs = [load_config(name) for cell in header[1:] for name in names(cell)]
    for key, *cells in rows:
        for config, cell in zip(configs, cells, strict=True):
            if cell.replace(" ", "") != value_of(config, names(key)[0]):
                yield key, config.env_id, cell


def test_fields_defaults_and_hyper_parameters_are_those_of_the_code() -> None:
    rows = {row.name: row.default for row in describe_config(PPOConfig)}
    written = fields_under("Fields of every algorithm") | fields_under("Fields of PPO")
    assert written.keys() == rows.keys(), "docs/configs.md and the config class have different fields"
    wanted = rows | {"algo": "required"}  # PPO's own class knows its name
    shown = {name: plain_default(default) for name, default in written.items()}
    assert shown == {name: plain_default(wanted[name]) for name in written}
    assert list(wrong_hyper_parameters()) == []


def test_the_presets_without_annealing_are_named() -> None:
    """Detail 4 on PPO's page lists the shipped configs whose learning rate does not fall to 0."""
    text = (DOCS / "algorithms" / "ppo.md").read_text("utf-8")
    (detail,) = [line for line in text.splitlines() if line.startswith("| 4 |")]
    shipped = [f"ppo/{path.stem}" for path in sorted((DOCS.parent / "configs" / "ppo").glob("*.yaml"))]
    constant = [name for name in shipped if load_config(name).learning_rate_schedule != "linear"]
    assert [name for name in names(detail) if name.startswith("ppo/")] == constant


def test_every_knob_and_every_kind_of_schedule_is_documented() -> None:
    page = "docs/schedules.md"
    knobs = {row.name for row in describe_config(PPOConfig) if row.knob}
    assert {names(row[0])[0] for row in table(page, "knob")} == knobs
    kinds = {kind: set(names(row[2])) for row in table(page, "kind") for kind in names(row[0])}
    assert kinds.keys() == set(KEYS)
    assert {
        kind: entries - set(KEYS[kind]) for kind, entries in kinds.items() if entries - set(KEYS[kind])
    } == {}
    readme = (ROOT / "README.md").read_text("utf-8")
    keys = ["ent_coef_schedule", "entropy_coef_schedule", "clip_coef_schedule", "clip_range", "warmup_steps"]
    keys += ["temperature_schedule", "num_simulations_schedule", *(set(KEYS) - {"piecewise"})]
    assert [key for key in keys if key not in readme] == []
    drawn = parse_yaml((DOCS / "kinds.yaml").read_text("utf-8"), "kinds.yaml").data
    examples = blocks((DOCS / "schedules.md").read_text("utf-8"), "yaml")
    assert drawn in [parse_yaml(block, "").data for block in examples]


def metrics_of(run: Path) -> set[str]:
    """The names in a log; what tasks are called is no part of a metric's name."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {re.sub(r"task/.+/", "task/NAME/", name) for line in lines for name in json.loads(line)}


def wrong_timing(run: Path) -> list[str]:
    """What is wrong with the times that a run has logged."""
    timing = json.loads((run / "timing.jsonl").read_text().splitlines()[-1])
    parts = timing["collect_seconds"] + timing["learn_seconds"]
    wrong = [] if timing["collect_seconds"] > 0 and timing["learn_seconds"] >= 0 else ["a part took no time"]
    return wrong + (
        [] if parts <= timing["wall_seconds"] + 0.002 else ["parts exceed the whole"]
    )  # each is rounded


def test_every_metric_is_documented(tmp_path: Path, trained_run: Callable[[str], Path]) -> None:
    changes = [
        "total_timesteps=2000",
        "eval_episodes=1",
        "target_kl=0.1",
        "value_clip_coef=1",
        "critic_lr=1e-3",
    ]
    run = train(load_config("ppo/cartpole", changes), run_dir=tmp_path / "run").run_dir
    timing = json.loads((run / "timing.jsonl").read_text().splitlines()[0])
    common = {name for row in table("docs/metrics.md", "name") for name in names(row[0])}
    assert common == metrics_of(run) | set(timing)
    general, wrong = (DOCS / "metrics.md").read_text("utf-8"), {}
    for algo in ALGORITHMS:
        run = trained_run(next(name for name, run in RUNS.items() if run["algo"] == algo))
        pages = general + (DOCS / f"algorithms/{algo}.md").read_text("utf-8")
        wrong[algo] = [name for name in sorted(metrics_of(run)) if f"`{name}`" not in pages]
        wrong[algo] += wrong_timing(run)
    assert {algo: found for algo, found in wrong.items() if found} == {}


def numbers(cell: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?[\d.]+", cell.replace("−", "-"))]


def wrong_result(config: str, steps: str, untrained: str, trained: str, median: str, gate: str) -> bool:
    """Whether a row of the results disagrees with its gate or with itself."""
    made, scores = GATES[names(config)[0]], numbers(trained)
    return not (
        len(numbers(untrained)) in (0, len(scores))
        and (len(scores) == len(made.seeds) or config.endswith("seed 1"))
        and (numbers(median), numbers(gate)) == ([statistics.median(scores)], [made.score])
        and sum(score < made.score for score in scores) <= made.may_fail
        and int(steps.replace(" ", "")) > 0
    )


def wrong_row(algo: str, actions: str) -> bool:
    """Whether a row of README's table disagrees with the spaces that a trainer takes."""
    accepted = {space.__name__ for space in trainer_class(algo).action_spaces}
    discrete = bool(accepted & {"Discrete", "Dict"})  # Dict: a Discrete per task
    return ("discrete" in actions, "continuous" in actions) != (discrete, "Box" in accepted)


def test_results_agree_with_their_gates_and_the_readme_with_the_trainers() -> None:
    results = table("docs/results.md", "config", "steps")
    assert [row for row in results if wrong_result(*row)] == []
    rows = {re.findall(r"/(\w+)\.md", row[0])[0]: row for row in table("README.md", "algorithm")}
    assert rows.keys() == set(ALGORITHMS)
    assert [row for algo, row in rows.items() if wrong_row(algo, row[1])] == []


def test_the_figures_and_pictures_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (caption,) = re.findall(r"!\[([^]]*)\]\(docs/images/speed.png\)", readme)
    measured = []
    for row in SPEEDS:
        data = json.loads((ROOT / "benchmarks" / "results" / f"{row}.json").read_text())["data"]
        measured.append(round(statistics.median(data["ratio_per_cpu_second"]), 1))
    assert [float(found) for found in re.findall(r"([\d.]+)×", caption)] == measured
    (count,) = re.findall(r"kills over (\d+) runs", readme)
    assert len(RUNS) > int(count) and {run["algo"] for run in RUNS.values()} == set(ALGORITHMS)
    pictures = [path for path in (DOCS / "images").iterdir() if path.is_file()]
    assert {path.name for path in pictures if not path.name.startswith("results_")} == PICTURES
    assert [path for path in pictures if path.stat().st_size >= 200_000] == []
    assert 'url("http' not in (DOCS / "images" / "display.svg").read_text("utf-8")


# A checker, and a text with a fault that it must find.
PLANTED: list[tuple[Callable[[str], list[str]], str]] = [
    (lambda text: wrong_links(text, DOCS), "see [this](no/such/page.md)"),
    (lambda text: wrong_links(text, DOCS), "see [this](resume.md#no-such-heading)"),
    (lambda text: wrong_links(text, DOCS), "# Here\n\nsee [this](#there)"),
    (wrong_commands, "`rl-training trian ppo/cartpole`"),
    (wrong_commands, "```sh\nrl-training evaluate run --episode 3\n```\n"),
    (wrong_commands, "| command | what |\n|---|---|\n| `rl-training list` | `--jsn` |\n"),
    (wrong_keys, "| field | default |\n|---|---|\n| `gama` | 1 |\n"),
    (wrong_keys, "| key | meaning |\n|---|---|\n| `clip_coef` | x |\n| `clip_coef_shedule` | x |\n"),
    (wrong_keys, "| knob | aliases |\n|---|---|\n| `clip_coef` | `clip_range` |\n"),
    (named_machines, f"see {os.sep}home/me/runs for it"),
    (wrong_yaml, "```yaml\ngamma: 2.5\n```\n"),
    (wrong_yaml, "```yaml\nclip_coef_schedule: {type: linaer}\n```\n"),
    (wrong_yaml, "```yaml\nclip_coef: [\n```\n"),
    (wrong_yaml, "```yaml\n# results/rows/a/b.yaml\nfamilie: MuJoCo\n```\n"),
    (wrong_python, "```python\nfrom rl_training import trian\n```\n"),
    (wrong_python, "```python\nfor\n```\n"),
]


def test_each_checker_finds_a_planted_fault() -> None:
    assert [text for check, text in PLANTED if not check(text)] == []
