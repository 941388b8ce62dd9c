"""`reproduce`: rows are read and refused, a killed row ends with the same result, and staleness is noticed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import rewritten
from runs import Command

from rl_training import registry
from rl_training.cli import app
from rl_training.errors import ConfigError, RunError, StorageError, UserError
from rl_training.kernels import compiled
from rl_training.state.run_directory import RunDirectory
from rl_training.tools import digests, peers, reproducing, zoo
from rl_training.tools.rows import parse_row, read_row, row_names

REPOSITORY = Path(__file__).parents[2]
PARTS = ("surrogate", "rollouts", "evaluations")  # of PPO in compiled environments
SMALL = """
family: Classic control
config: ppo/cartpole
overrides: ["total_timesteps=12_000", "checkpoint_interval=1_000", "eval_interval=2_000", "eval_episodes=2"]
seeds: "11-12"
chosen: "nowhere: a row of a test"
evaluation: {episodes: 5}
references:
  - {score: 40, steps: 12_000, source: "somewhere", scores: [20, 60]}
  - {score: 1000, source: "elsewhere", goal: false}
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "rows" / "ppo"
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(SMALL)
    monkeypatch.setattr("rl_training.tools.rows.rows_folder", lambda: folder.parent)
    monkeypatch.chdir(tmp_path)
    return folder / "small.yaml"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["reproduce", *arguments], prog_name="rl-training")
    return int(ended.value.code or 0)


def without_cost(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text())
    assert result.pop("cost").keys() == {"11", "12"}
    return dict(result)


def test_a_row_that_is_killed_and_continued_has_the_same_result(
    rows: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The seeds stand still until they are killed, so that none can have ended before."""
    held = tmp_path / "held"
    env = f'"env_id=fault_envs:fault/Held-v0", "env_kwargs={{held: {held}, at: 700}}", "num_envs=2"'
    rows.write_text(SMALL.replace('"total_timesteps=12_000"', f'"total_timesteps=4_000", {env}'))
    for step in (1000, 1400):
        held.touch()
        killed_in_training(step)
        held.unlink()
    assert run("ppo/small", "--runs", "runs", "-q", "--jobs", "2") == 0
    said = capfd.readouterr().out
    assert "IQM" in said and "reference    40 at 12 000 steps (somewhere)" in said
    assert "             no verdict on 2 seeds" in said and "(elsewhere): orientation only" in said
    assert run("ppo/small", "--runs", "whole", "--results", "whole_results", "-q") == 0
    assert without_cost(Path("results/ppo/small.json")) == without_cost(Path("whole_results/ppo/small.json"))
    cost = json.loads(Path("results/ppo/small.json").read_text())["cost"]
    assert cost["11"]["processes"] > 1  # of which those that were killed count as well
    assert all(each["cpu_seconds"] > 0 and each["peak_memory_mb"] > 50 for each in cost.values())


def killed_in_training(step: int) -> None:
    """Start the row, and kill it with SIGKILL once its first seed has come to this step."""
    folder = Path("runs/ppo/small/s11")
    command = Command("reproduce", "ppo/small", "--runs", "runs", "-q", own_session=True)
    while not any(int(path.name[5:]) >= step for path in folder.glob("checkpoints/step-*")):
        assert command.running(), command.communicate()
        time.sleep(0.01)
    command.send_signal(signal.SIGKILL)
    command.communicate()
    while is_locked(folder):  # its seeds end with it
        time.sleep(0.01)
    assert not Path("results/ppo/small.json").exists()


def is_locked(run_dir: Path) -> bool:
    try:
        RunDirectory(run_dir).lock().release()
    except RunError:
        return True
    return False


def test_the_result_says_how_it_was_made_and_scores_are_kept(
    rows: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("ppo/small", "-q", "--zoo", "zoo", "--verify") == 0
    said = capfd.readouterr().out
    assert all(f"seed {seed}      steps 11,008 to 12,032 verified, 0 of " in said for seed in (11, 12)), said
    result = json.loads(Path("results/ppo/small.json").read_text())
    assert [seed["seed"] for seed in result["seeds"]] == [11, 12]
    for seed in result["seeds"]:
        assert len(seed["returns"]) == 5
        assert seed["score"] == pytest.approx(sum(seed["returns"]) / 5, rel=1e-5)
        assert seed["curve"][-1][0] == seed["steps"] == 12_032 and len(seed["curve"]) <= 50
    assert result["versions"]["torch"] and result["versions"]["gymnasium"]
    assert result["settings"]["total_timesteps"] == 12_000 and "seed" not in result["settings"]
    assert result["config_sha256"] == reproducing.digest(result["settings"])
    kept = json.loads(Path("runs/reproduce/ppo/small/s11.json").read_text())
    kept["outcome"]["score"] = -1.0  # a seed is not scored twice, unless it is asked otherwise
    Path("runs/reproduce/ppo/small/s11.json").write_text(json.dumps(kept))
    assert run("ppo/small", "-q") == 0
    assert json.loads(Path("results/ppo/small.json").read_text())["seeds"][0]["score"] == -1.0
    rows.write_text(SMALL.replace("episodes: 5", "episodes: 6"))
    assert run("ppo/small", "-q") == 0
    assert len(json.loads(Path("results/ppo/small.json").read_text())["seeds"][0]["returns"]) == 6
    assert (Path("zoo/ppo/small") / "card.md").read_text().startswith("# zoo:ppo/small\n")


def test_stale_results_are_listed_with_what_has_changed(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = read_row("ppo/small")
    config = reproducing.config_of(row)
    result = {
        "format": 1,
        "settings": reproducing.settings_of(config),
        "evaluation": row.evaluation.model_dump(),
        "seeds": [{"seed": 11}, {"seed": 12}],
        "revisions": reproducing.revisions(config),
        "vectorization": "compiled",
        "paths": {**dict.fromkeys(PARTS, "compiled"), "kernels": compiled.REVISION},
        "code_sha256": [digests.code_digest("ppo")],
    }
    assert run("--stale") == 0 and capsys.readouterr().out == "no results of these rows in results\n"
    reproducing.write_result(Path("results/ppo/small.json"), result)
    assert run("--stale") == 0 and capsys.readouterr().out == ""
    rows.write_text(
        SMALL.replace("episodes: 5", "episodes: 6").replace("12_000", "13_000").replace("11-12", "11")
    )
    monkeypatch.setattr(reproducing, "code_digest", lambda algo: "another")
    assert run("--stale", "ppo/small") == 0
    expected = "ppo/small: changed since: config: total_timesteps; evaluation; seeds; code\n"
    assert capsys.readouterr().out == expected
    rows.write_text(SMALL)
    assert run("--stale", "ppo/small") == 0
    assert capsys.readouterr().out == "ppo/small: same revisions; changed since: code\n"
    del result["settings"]["layer_norm"]  # a field that the version of that time did not have
    told = ["new settings, at their defaults: layer_norm", "code"]
    assert reproducing.stale(row, result) == ([], told)
    result["settings"]["hidden_size"] = 64  # and one that this version has no more
    assert reproducing.stale(row, result) == (["settings that are gone: hidden_size"], told)
    del result["settings"]["hidden_size"]
    result["paths"] = {"surrogate": "torch", "kernels": 1}
    changed = ["rollouts: not compiled (here compiled)", "surrogate: torch (here compiled)"]
    aside = ["evaluations: not compiled (here compiled)"]  # they move no weights
    assert reproducing.stale(row, result) == (changed, [told[0], *aside, told[1]])
    result["paths"] = {**dict.fromkeys(PARTS, "compiled"), "kernels": 1, "cpu_features": "mmx"}
    changed = [f"revision 1 of compiled code (here {compiled.REVISION})"]
    assert reproducing.stale(row, result) == (changed, told)
    result["vectorization"] = "sync"
    assert reproducing.stale(row, result)[0] == ["environments: sync (here compiled)", *changed]


def test_staleness_is_told_without_the_warnings_of_mujoco(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    result = reproducing.read_result(REPOSITORY / "results/a2c/halfcheetah.json")
    assert result is not None
    reproducing.stale(read_row("a2c/halfcheetah"), result)
    assert capfd.readouterr().err == ""


def test_what_minatar_does_otherwise_makes_its_results_stale() -> None:
    result = reproducing.read_result(REPOSITORY / "results/impala/minatar_breakout.json")
    assert result is not None
    row = read_row("impala/minatar_breakout")
    now = reproducing.revisions(reproducing.config_of(row))
    before = {name: revision for name, revision in now.items() if name != "environments"}
    assert "revision of environments" in reproducing.stale(row, {**result, "revisions": before}).changed
    assert "revision of environments" not in reproducing.stale(row, {**result, "revisions": now}).changed


def test_paths_are_told_of_the_config_that_a_run_begins_with(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that sees pictures has their defaults, though its row does not write them."""
    rows.write_text(BRIEF)
    row, seen = read_row("ppo/small"), list[Any]()
    config = reproducing.config_of(row)
    monkeypatch.setattr(reproducing, "sees_pictures", lambda config: True)
    monkeypatch.setattr(reproducing, "_other_paths", lambda config, made: seen.append(config) or {})
    result = {
        "settings": reproducing.settings_of(config),
        "evaluation": row.evaluation.model_dump(),
        "seeds": [{"seed": 11}],
        "revisions": reproducing.revisions(config),
        "vectorization": "compiled",
        "paths": None,
        "code_sha256": [digests.code_digest("ppo")],
    }
    assert reproducing.stale(row, result) == ([], [])
    assert not config.shared_trunk and seen[0].shared_trunk and seen[0].vectorization == "compiled"


def test_the_code_digest_is_of_what_runs_and_of_what_an_algorithm_reaches() -> None:
    source = '"""Words."""\nx = "# 1"  # why\n\n\ndef f():\n    """More words."""\n    return x\n'
    assert digests.code_of(source) == 'x = "# 1"\ndef f():\n    return x'
    reached = {path.name for path in digests._reached(("rl_training.runtime.ppo_trainer", *digests.COMMON))}
    assert {"ppo.py", "returns.py", "engine.py", "environments.py", "layers.py", "seeding.py"} <= reached
    assert not {"dqn_trainer.py", "report.py", "cli.py"} & reached
    assert digests.code_digest("ppo") != digests.code_digest("dqn")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("family: x", "config: Field required"),
        (SMALL + "sedes: 1\n", "sedes: Extra inputs are not permitted"),
        (SMALL.replace("episodes: 5", "actions: random"), "evaluation.actions: Input should be"),
        ("- a list", "a row is a mapping"),
    ],
)
def test_wrong_rows_are_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "row.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"row\.yaml: ") as refused:
        parse_row("ppo/row", tmp_path / "row.yaml")
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_unknown_rows_and_damaged_results_are_refused(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ppo/smal") == 2
    assert "no such row; did you mean ppo/small?" in capsys.readouterr().err
    assert run() == 2 and "name a row" in capsys.readouterr().err
    Path("damaged.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        reproducing.read_result(Path("damaged.json"))
    rows.write_text(SMALL.replace("ppo/cartpole", "scalezero/classic").replace("overrides", "# overrides"))
    with pytest.raises(UserError, match="name one of CartPole-v1"):
        reproducing.reproduce(read_row("ppo/small"), jobs=1, results=Path(), runs=Path(), display=object())  # type: ignore[arg-type]


def test_the_rows_that_are_shipped_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == row_names() and "ppo/cartpole" in listed
    for name in row_names():
        row = read_row(name)
        assert row.not_run or row.config in registry.shipped_configs(), name


BRIEF = SMALL.replace("12_000", "1_000").replace("11-12", "11").replace("episodes: 5", "episodes: 1")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("ppo/cartpole", "ppo/kartpole", "ppo/small: its config ppo/kartpole does not exist"),
        ("11-12", "12-11", "row ppo/small: "),
        ("eval_episodes=2", "eval_episode=2", "row ppo/small: "),
        ("family:", "family: [", "small.yaml"),
        ("family:", "\x00", "small.yaml"),
        ("family:", "task: CartPole-v1\nfamily:", "row ppo/small: task 'CartPole-v1': its config has one"),
        ("ppo/cartpole", "scalezero/classic", "row ppo/small: "),
        (
            "family:",
            "trained_with: ppo/cartpole\nfamily:",
            "row ppo/small: no such row as ppo/cartpole, which it is trained with",
        ),
    ],
)
def test_what_is_wrong_in_a_row_is_told_with_its_name(
    before: str, after: str, told: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(SMALL.replace(before, after))
    assert run("ppo/small", "-q") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and told in error and not Path("runs").exists()


TASKS = """
family: Classic control
config: scalezero/classic
overrides: ["total_timesteps=96", "learning_starts=48", "checkpoint_interval=96", "eval_interval=48", "eval_episodes=1",
            "env_ids=[CartPole-v1, FrozenLake-v1]", "solved_returns={}", "num_simulations=2", "max_episode_steps=20"]
seeds: "11"
chosen: "nowhere: a row of a test"
evaluation: {episodes: 3}
"""


def test_tasks_that_are_trained_together_have_a_row_each(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One training; scores and curves are of the row's own task."""
    pole, lake = rows.with_name("pole.yaml"), rows.with_name("lake.yaml")
    pole.write_text(TASKS + "task: CartPole-v1\n")
    lake.write_text(TASKS + "task: FrozenLake-v1\ntrained_with: ppo/pole\n")
    assert run("ppo/pole", "ppo/lake", "-q") == 0
    assert [path.name for path in Path("runs/reproduce/ppo").iterdir()] == ["pole"]
    results = [json.loads(Path(f"results/ppo/{name}.json").read_text()) for name in ("pole", "lake")]
    balanced, slid = (result["seeds"][0] for result in results)
    assert balanced["weights_sha256"] == slid["weights_sha256"]
    assert min(balanced["returns"]) >= 8 and set(slid["returns"]) <= {0.0, 1.0}
    assert [step for step, _ in slid["curve"]] == [48, 96]
    assert all(value <= 1 for _, value in slid["curve"]) and all(value >= 8 for _, value in balanced["curve"])
    pole.write_text(TASKS + "task: FrozenLake-v1\n")
    capsys.readouterr()
    assert run("ppo/pole", "--stale") == 0
    assert "changed since: task" in " ".join(capsys.readouterr().out.split())
    pole.write_text(TASKS + "task: CartPole-v1\n")
    far = rows.with_name("far.yaml")
    far.write_text(TASKS + "task: FrozenLake-v1\ntrained_with: ppo/lake\n")
    assert run("ppo/far", "-q") == 2
    assert "ppo/lake has no runs; it is trained with ppo/pole" in capsys.readouterr().err
    for text, told in (
        (TASKS, "task '': name one of CartPole-v1, FrozenLake-v1"),
        (
            TASKS.replace("=96", "=144") + "task: FrozenLake-v1\ntrained_with: ppo/pole\n",
            "is trained otherwise",
        ),
    ):
        lake.write_text(text)
        assert run("ppo/lake", "-q") == 2
        assert told in capsys.readouterr().err


def test_an_interruption_while_scoring_loses_nothing(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(BRIEF.replace('"11"', '"11-12"'))
    score, scored, most = reproducing._score, [], 1

    def interrupted(row: Any, config: Any, run: Any, checkpoint: Path) -> Any:
        if len(scored) == most:
            raise KeyboardInterrupt
        scored.append(run.seed)
        return score(row, config, run, checkpoint)

    monkeypatch.setattr(reproducing, "_score", interrupted)
    assert run("ppo/small", "-q") == 130
    assert "stopped by SIGINT; everything is saved\nresume it" in capsys.readouterr().out
    assert Path("runs/reproduce/ppo/small/s11.json").exists()
    most = 3
    assert run("ppo/small", "-q") == 0 and scored == [11, 12]


SCRIPT = """
import json, sys
asked = json.loads(sys.argv[1])
print("learning")
open("calls", "a").write(str(asked["seed"]))
if asked["seed"] == 12 and asked["fails"]:
    sys.exit("no such algorithm")
said = dict(score=10.0 + asked["seed"], returns=[1.0], steps=asked["steps"], cpu_seconds=2.0, peak_mb=3.0)
print(json.dumps(said | dict(versions=dict(fake="1.5"), asked=asked)))
"""


def test_a_peer_is_run_with_every_seed_and_goes_on_after_a_failure(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = "peer: {library: fake, script: fake_peer, settings: {algorithm: PPO, fails: %s}}\n"
    rows.write_text(BRIEF.replace('"11"', '"11-12"') + peer % "true")
    assert run("ppo/small", "-q", "--peer") == 2
    assert "benchmarks/peers/fake.txt is not here; peers run in a clone" in capsys.readouterr().err
    Path("benchmarks/peers").mkdir(parents=True)
    Path("benchmarks/peers/fake.txt").touch()
    Path("fake_peer.py").write_text(SCRIPT)
    monkeypatch.setattr(peers, "interpreter", lambda library: sys.executable)
    assert run("ppo/small", "-q", "--peer") == 2
    error = "error: ppo/small: fake, seed 12: no such algorithm; seeds that have ended are kept\n"
    assert capsys.readouterr().err == error and not Path("results/peers").exists()
    Path("fake_peer.py").write_text(SCRIPT.replace("sys.exit", "print"))
    assert run("ppo/small", "-q", "--peer") == 0
    assert Path("calls").read_text() == "111212"  # seed 11 once
    said = capsys.readouterr().out
    assert "peer         fake 1.5: IQM 21.5, 2 seeds\n             no verdict on 2 seeds\n" in said
    result = json.loads(Path("results/peers/ppo/small.json").read_text())
    assert [(each["seed"], each["score"], each["steps"]) for each in result["seeds"]] == [
        (11, 21.0, 1000),
        (12, 22.0, 1000),
    ]
    assert result["settings"] == {
        "env_id": "CartPole-v1",
        "algorithm": "PPO",
        "fails": True,
        "steps": 1000,
        "warm_up": 0,
        "episodes": 1,
        "deterministic": True,
    }
    assert run("--stale", "ppo/small") == 0 and capsys.readouterr().out == ""
    rows.write_text(rows.read_text().replace("fails: true", "fails: false"))  # other settings, other runs
    assert run("--stale", "ppo/small") == 0
    assert capsys.readouterr().out == "ppo/small: changed since: peer: fails\n"
    assert run("ppo/small", "-q", "--peer") == 0 and Path("calls").read_text() == "1112121112"
    Path("benchmarks/peers/fake.txt").write_text("fake==1.6\n")  # other packages, other runs
    Path("fake_peer.py").write_text(SCRIPT.replace('fake="1.5"', 'torch="2"'))
    capsys.readouterr()
    assert run("ppo/small", "-q", "--peer") == 2 and Path("calls").read_text() == "111212111211"
    told = "error: ppo/small: fake, seed 11: fake_peer printed no result (ValueError: no version of fake)\n"
    assert capsys.readouterr().err == told
    Path("fake_peer.py").write_text("print('nothing')")
    rows.write_text(rows.read_text().replace("algorithm: PPO", "algorithm: A2C"))
    capsys.readouterr()
    assert run("ppo/small", "-q", "--peer") == 2
    assert "seed 11: fake_peer printed no result" in capsys.readouterr().err


def test_a_peer_alone_is_run_beside_a_kept_result(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(
        BRIEF + "peer: {library: fake, script: fake_peer, settings: {algorithm: PPO, fails: false}}\n"
    )
    Path("benchmarks/peers").mkdir(parents=True)
    Path("benchmarks/peers/fake.txt").touch()
    Path("fake_peer.py").write_text(SCRIPT)
    monkeypatch.setattr(peers, "interpreter", lambda library: sys.executable)
    assert run("ppo/small", "-q", "--peer-only") == 2
    assert "has no result at results/ppo/small.json; train it first" in capsys.readouterr().err
    assert run("ppo/small", "-q") == 0
    before = Path("results/ppo/small.json").read_bytes()
    shutil.rmtree("runs")  # as in a clone, which has results and no runs
    capsys.readouterr()
    assert run("ppo/small", "-q", "--peer-only") == 0
    assert "peer         fake 1.5: 21.0, 1 seed\n" in capsys.readouterr().out
    assert Path("calls").read_text() == "11" and Path("results/ppo/small.json").read_bytes() == before
    assert not Path("runs/reproduce/ppo/small/s11").exists(), "ours is not trained anew"
    for more in ("--verify", "--peer"):
        assert run("ppo/small", "--peer-only", more) == 2
        assert "goes with none of --peer, --zoo and --verify" in capsys.readouterr().err
    rows.write_text(rows.read_text().replace('"11"', '"11-12"'))
    assert run("ppo/small", "-q", "--peer-only") == 2
    assert "its result is stale (seeds); train it anew" in capsys.readouterr().err


def test_a_peer_ends_with_the_process_that_began_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "import os, time; open('new', 'w').write(str(os.getpid())); os.rename('new', 'pid'); time.sleep(60)"
    )
    parent = os.fork()
    if parent == 0:
        try:
            peers._called([sys.executable, "-c", text], "a peer")
        finally:
            os._exit(1)
    wait_until(Path("pid").exists)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    stat = Path("/proc", Path("pid").read_text(), "stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_row_without_a_peer_says_so(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows.write_text(BRIEF)
    assert run("ppo/small", "-q", "--peer") == 2
    assert capsys.readouterr().err == "error: ppo/small: has no peer; a row names one under `peer`\n"
    assert not Path("runs").exists(), "nothing is trained before that is known"


def test_a_planted_policy_of_another_config_is_refused_and_not_imported(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds no progress, so that whoever looks how far the run is does not see it."""
    rows.write_text(BRIEF)
    assert run("ppo/small", "-q") == 0
    folder = Path("runs/reproduce/ppo/small")
    (folder / "s11.json").unlink()
    checkpoints = folder / "s11" / "checkpoints"
    planted = checkpoints / "step-000999999999"
    shutil.copytree(max(checkpoints.iterdir()), planted)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")

    def edit(tree: dict[str, Any]) -> None:
        del tree["progress"]
        tree["policy"]["config"]["network"] = f"{tmp_path}/evil.py:Net"

    rewritten(planted, edit)
    capsys.readouterr()
    assert run("ppo/small", "-q") == 2
    assert "network not as computed for this run" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_row_that_a_signal_stops_says_how_to_go_on(rows: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    env = f'"env_id=fault_envs:fault/Held-v0", "env_kwargs={{held: {held}, at: 700}}", "num_envs=2"'
    rows.write_text(BRIEF.replace('"total_timesteps=1_000"', f'"total_timesteps=4_000", {env}'))
    command = Command("reproduce", "ppo/small", "-q", own_session=True)
    while not any(Path("runs/reproduce/ppo/small/s11/checkpoints").glob("step-*")):
        assert command.running(), command.communicate()
        time.sleep(0.01)
    command.send_signal(signal.SIGINT)
    held.unlink()
    said, errors = command.communicate()
    assert command.returncode == 130 and errors == ""
    assert "stopped by SIGINT; everything is saved\nresume it    run the same command again\n" in said
    assert not Path("results/ppo/small.json").exists()


def test_files_that_are_damaged_or_cannot_be_written_are_told_in_one_line(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    assert run("ppo/small", "-q", "--results", "taken") == 1
    assert capsys.readouterr().err == "error: cannot write to taken/ppo: File exists\n"
    assert not Path("runs").exists(), "nothing is trained whose result cannot be kept"
    with pytest.raises(
        StorageError, match=r"cannot write taken/s11\.json: File exists; trained seeds are kept"
    ):
        reproducing.write(Path("taken/s11.json"), "{}")
    for text in ("{", "5"):
        Path("code.json").write_text(text)
        with pytest.raises(RunError, match=r"code\.json: damaged"):
            reproducing._noted(Path("code.json"))
    reproducing.write(Path("results/ppo/small.json"), '{"format": 1, "seeds": []}')
    assert run("--stale", "ppo/small") == 2
    assert capsys.readouterr().err == "error: results/ppo/small.json: damaged (KeyError: 'settings')\n"


def test_a_missing_best_policy_and_a_damaged_peer_are_told_in_one_line(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(BRIEF.replace("{episodes: 1}", "{episodes: 1, checkpoint: best}"))
    reproducing.write(Path("results/peers/ppo/small.json"), '{"format": 1, "seeds": [{"score": 1}]}')
    assert run("ppo/small", "-q") == 2
    read = "results/ppo/small.json or results/peers/ppo/small.json"
    assert capsys.readouterr().err == f"error: {read}: damaged (KeyError: 'library')\n"
    shutil.rmtree("runs/reproduce/ppo/small/s11/best")
    assert run("ppo/small", "-q") == 2
    assert "has no best checkpoint, which the row ppo/small is scored with" in capsys.readouterr().err


def test_a_policy_too_large_for_the_zoo_leaves_the_one_there(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(BRIEF)
    assert run("ppo/small", "-q", "--zoo", "zoo") == 0
    before = {path.name: path.read_bytes() for path in Path("zoo/ppo/small").iterdir()}
    assert "\n- The only seed of the row: " in before["card.md"].decode()
    monkeypatch.setattr(zoo, "LARGEST", 10)
    assert run("ppo/small", "-q", "--zoo", "zoo") == 2
    assert "the zoo takes 10" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("zoo/ppo/small").iterdir()} == before
