"""Any step of a run's past is there again: the same state and log as when the run passed it, and the run untouched."""

import json
import shutil
from pathlib import Path

import pytest
from runs import KINDS, assert_same_run
from test_cli import cli, refused

from rl_training import fork, load_config
from rl_training.errors import RunError
from rl_training.state import checkpoints
from rl_training.tools import travelling
from rl_training.tools.travelling import go_on, restored, saved_at, travelled


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def between(run: Path) -> int:
    """A step after the last checkpoint but one, at which none was saved."""
    before, last = (checkpoints.step_of(path) for path in checkpoints.listed(run / "checkpoints")[-2:])
    step = before + load_config(run / "config.yaml").steps_per_iteration
    assert before < step < last
    return step


@pytest.mark.parametrize("name", [*KINDS, "dqn-cartpole", "impala-cartpole"])
def test_going_back_and_on_again_gives_the_run_that_was(name, trained_run):
    run = trained_run(name)
    before = files_in(run)
    step, last = between(run), checkpoints.listed(run / "checkpoints")[-1]
    with travelled(run, step) as engine:
        assert engine.progress.steps == step
        go_on(engine, checkpoints.step_of(last))
        path = engine.save_here()
        assert path.is_relative_to(engine.run.path) and not path.is_relative_to(run)
        assert (engine.run.path / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
        for part in sorted(last.iterdir()):
            assert part.read_bytes() == (path / part.name).read_bytes(), part.name
    assert files_in(run) == before and not engine.run.path.exists()


def test_without_an_earlier_checkpoint_it_goes_from_the_start(trained_run):
    run = trained_run("ppo-cartpole")
    first = checkpoints.step_of(checkpoints.listed(run / "checkpoints")[0])
    with restored(run, first - 1) as engine:
        assert engine.progress.steps == 0
        go_on(engine, 1)
        assert engine.progress.steps == engine.config.steps_per_iteration


def test_a_step_after_the_end_is_refused_before_anything_is_trained(trained_run, tmp_path, monkeypatch):
    run = shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run")
    shutil.rmtree(checkpoints.listed(run / "checkpoints")[-1])  # as a kill before its end leaves it
    monkeypatch.setattr(travelling, "go_on", None)
    with pytest.raises(RunError, match=r"^step 1000000: the run ends at step 3072$"), travelled(run, 10**6):
        pass
    monkeypatch.chdir(tmp_path)
    refused(cli("fork", "run", "--at", "1000000"), "step 1000000: the run ends at step 3072")
    for step in (1_000_000, 3073):
        refused(cli("debug", "run", "--at", str(step)), f"step {step}: the run ends at step 3072")


def test_a_saved_step_of_the_run_itself_is_its_own_checkpoint(trained_run):
    run = trained_run("ppo-cartpole")
    path = checkpoints.listed(run / "checkpoints")[0]
    with saved_at(run, checkpoints.step_of(path)) as saved:
        assert saved == path


@pytest.mark.parametrize("name", ["ppo-cartpole", "sac-pendulum"])
def test_a_fork_off_any_step_goes_on_exactly_as_the_original_did(name, trained_run, tmp_path):
    run = trained_run(name)
    before, step = files_in(run), between(run)
    result = fork(run, at=step, run_dir=tmp_path / "fork", quiet=True)
    assert_same_run(run, tmp_path / "fork")
    (lineage,) = json.loads((result.run_dir / "manifest.json").read_text())["lineage"]
    assert (lineage["parent"], lineage["step"], lineage["changes"]) == (str(run), step, {})
    assert files_in(run) == before


def test_a_fork_has_no_past_before_its_own_checkpoints(trained_run, tmp_path):
    run = trained_run("ppo-cartpole")
    step = between(run)
    fork(run, ["ent_coef_schedule=null"], at=step, run_dir=tmp_path / "fork", quiet=True)
    with pytest.raises(RunError, match="is a fork without a checkpoint at or before step 1"):
        fork(tmp_path / "fork", at=1, run_dir=tmp_path / "again", quiet=True)
    assert not (tmp_path / "again").exists()


def test_the_command_forks_at_a_step(trained_run, tmp_path):
    run = trained_run("ppo-cartpole")
    to = ["--run-dir", str(tmp_path / "fork")]
    done = cli("fork", str(run), "--at", str(between(run)), "clip_coef_schedule=null", *to, "--quiet")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "fork" / "metrics.jsonl").read_text().splitlines()]
    assert {line["clip_coef"] for line in lines if line["step"] > between(run) and "clip_coef" in line} == {
        0.2
    }
    path = checkpoints.listed(run / "checkpoints")[0]
    refused(cli("fork", str(path), "--at", "100"), "name its directory")
    refused(cli("fork", str(run), "--at", "100", "num_envs=5"), "num_envs: a fork cannot change it")
