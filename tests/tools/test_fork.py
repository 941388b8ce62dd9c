"""Forks: exact where nothing is changed, with a lineage on record, and refused in one line where they make no sense."""

import json
import shutil
from pathlib import Path

import pytest
from runs import KINDS, assert_same_run, in_child, kill_at_file_call, read_lines
from test_cli import cli, refused

from rl_training import load_config, resume
from rl_training.errors import ConfigError
from rl_training.state import checkpoints
from rl_training.tools.forking import fork


def middle(run: Path) -> Path:
    """The last checkpoint but one: from there the original went on to its end."""
    return sorted((run / "checkpoints").iterdir())[-2]


def manifest(run: Path) -> dict:
    return json.loads((run / "manifest.json").read_text())


@pytest.mark.parametrize("name", [*KINDS, "dqn-cartpole", "gail-cartpole"])
def test_a_fork_with_no_changes_goes_on_exactly_as_the_original_did(name, trained_run, tmp_path):
    original = trained_run(name)
    result = fork(middle(original), run_dir=tmp_path / "fork")
    assert_same_run(original, tmp_path / "fork")
    assert load_config(tmp_path / "fork" / "config.yaml") == load_config(original / "config.yaml")
    (lineage,) = manifest(result.run_dir)["lineage"]
    assert lineage["parent"] == str(original) and lineage["changes"] == {}
    assert lineage["step"] == checkpoints.checkpoint_step(middle(original)) == int(lineage["checkpoint"][5:])


@pytest.mark.parametrize("name", KINDS)
def test_a_fork_with_changes_says_which_and_follows_them(name, trained_run, tmp_path):
    original = trained_run(name)
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    old = load_config(original / "config.yaml")
    total = old.total_timesteps + 300
    changes = ["learning_rate=3e-5", "learning_rate_schedule=null", "seed=9", f"total_timesteps={total}"]
    result = fork(original, changes, run_dir=tmp_path / "fork")
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before
    (lineage,) = manifest(result.run_dir)["lineage"]
    new = load_config(result.run_dir / "config.yaml")
    assert (
        lineage["changes"].items()
        >= {
            "learning_rate": {"from": old.learning_rate, "to": 3e-5},
            "seed": {"from": 3, "to": 9},
            "total_timesteps": {"from": old.total_timesteps, "to": total},
        }.items()
    )
    assert (new.learning_rate, new.learning_rate_schedule, new.seed) == (3e-5, None, 9)
    text = (original / "metrics.jsonl").read_text()
    assert (result.run_dir / "metrics.jsonl").read_text().startswith(text)
    new_lines = [line for line in read_lines(result)[text.count("\n") :] if "learning_rate" in line]
    assert new_lines and all(line["learning_rate"] == 3e-5 for line in new_lines)
    assert lineage["step"] < new_lines[0]["step"] and result.interrupted is None


def test_a_fork_that_is_killed_resumes_and_a_fork_of_a_fork_knows_its_ancestors(trained_run, tmp_path):
    original, changes = (
        trained_run("ppo-cartpole"),
        ["seed=9", "total_timesteps=4000", "clip_coef_schedule=null"],
    )
    fork(middle(original), changes, run_dir=tmp_path / "whole")

    def killed():
        kill_at_file_call(80)  # after the fork's first checkpoint, before its last
        fork(middle(original), changes, run_dir=tmp_path / "killed")

    assert in_child(killed) is None and (tmp_path / "killed" / "config.yaml").exists()
    resume(tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")

    again = fork(tmp_path / "whole", ["total_timesteps=4400"], run_dir=tmp_path / "again")
    steps = [entry["step"] for entry in manifest(again.run_dir)["lineage"]]
    assert steps == [4096, checkpoints.checkpoint_step(middle(original))]


def test_a_later_best_is_not_taken_over(trained_run, tmp_path):
    """The parent's best may come from after the fork's step: it is not the fork's."""
    original = shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "original")
    saved = checkpoints.load_checkpoint(original / "best")
    checkpoints.save_policy(original / "best", 10**6, saved)
    fork(original, ["total_timesteps=3300"], run_dir=tmp_path / "fork")
    assert checkpoints.checkpoint_step(tmp_path / "fork" / "best") == 3328


REFUSED = {
    "end of its run": [],
    "num_envs: a fork cannot change it": ["num_envs=2", "total_timesteps=9000"],
    "did you mean learning_rate": ["learning_rat=1"],
    "hidden_sizes: the state of step-": ["hidden_sizes=[3]", "total_timesteps=9000"],
    "raise total_timesteps": ["total_timesteps=100"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_forked_is_one_line_and_leaves_nothing(words, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(cli("fork", trained_run("ppo-cartpole"), *REFUSED[words]), words)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_or_no_checkpoint_is_one_line(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = trained_run("sac-pendulum")
    refused(cli("fork", "absent"), "absent: no run directory here")
    refused(cli("fork", original / "best"), "best", "no training state")
    refused(
        cli("fork", original, "buffer_size=800", "total_timesteps=9000"),
        "buffer_size: a fork cannot change it",
    )
    Path("taken").mkdir()
    Path("taken/thesis.tex").write_text("mine")
    refused(cli("fork", middle(original), "--run-dir", "taken"), "taken: is not empty")


def test_a_fork_imports_a_module_only_on_trust(trained_run, tmp_path):
    run = shutil.copytree(trained_run("ppo-cartpole"), tmp_path / "run")
    tree = checkpoints.load_checkpoint(middle(run))
    tree["policy"]["config"]["env_id"] = "planted:CartPole-v1"
    path = checkpoints.save_checkpoint(run / "checkpoints", 5000, tree, 2)
    text = (run / "config.yaml").read_text().replace("CartPole-v1", '"planted:CartPole-v1"')
    (run / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="add --trust"):
        fork(path, run_dir=tmp_path / "fork")


def test_the_command_says_what_it_forked(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("fork", middle(trained_run("ppo-cartpole")), "ent_coef_schedule=linear")
    assert done.exit_code == 0, done.output
    assert "at step 2,816: ent_coef_schedule cosine → linear" in done.stdout
    assert "runs/ppo-CartPole-v1-s3-fork/metrics.jsonl" in done.stdout
