"""`diff`: two runs that differ by one thing, and it is named: a knob from a step on, a line of a loss, the threads."""

import shutil
from pathlib import Path

import pytest
from test_cli import cli, refused
from test_travelling import between

from rl_training import fork, load_config, train
from rl_training.algorithms import ppo
from rl_training.state import checkpoints
from rl_training.tools.diffing import diff, diff_with_this_version

TINY = dict(
    algo="ppo",
    env_id="Pendulum-v1",
    vectorization="sync",
    total_timesteps=1024,
    num_envs=4,
    num_steps=32,
    hidden_sizes=[16],
    num_minibatches=2,
    update_epochs=2,
    log_interval=128,
    eval_interval=2048,
    eval_episodes=1,
    checkpoint_interval=512,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff") / "plain"
    train(load_config(TINY), run_dir=folder, quiet=True)
    return folder


def trained(folder: Path, **changes) -> Path:
    train(load_config({**TINY, **changes}), run_dir=folder, quiet=True)
    return folder


def test_equal_runs_are_equal(plain, tmp_path):
    found = diff(plain, trained(tmp_path / "again"))
    assert not found.differ and found.lines == 9 and found.config == []


def test_a_knob_from_a_step_on(plain, tmp_path):
    schedule = {"type": "piecewise", "points": [[0, 0.2], [599, 0.2], [600, 0.1], [1024, 0.1]]}
    found = diff(plain, trained(tmp_path / "knob", clip_coef_schedule=schedule))
    assert any(each.startswith("clip_coef_schedule") for each in found.config)
    # 640 is the first boundary at or after step 600.
    assert (found.step, found.kind) == (640, "knob") and found.what.startswith("clip_coef: 0.2 against 0.1")
    assert found.made_with == []


def test_a_fork_with_another_knob(trained_run, tmp_path):
    run = trained_run("ppo-cartpole")
    step = between(run)
    fork(run, {"gae_lambda": 0.5}, at=step, run_dir=tmp_path / "fork", quiet=True)
    found = diff(run, tmp_path / "fork")
    assert found.config == ["gae_lambda 0.95 against 0.5"]
    per = load_config(run / "config.yaml").steps_per_iteration
    assert (found.step, found.kind) == (step + per, "knob") and "gae_lambda" in found.what


def test_a_line_of_code_in_a_loss(plain, tmp_path, monkeypatch):
    from rl_training.runtime import ppo_trainer

    def other(log_prob, entropy, value, batch, **knobs):
        return ppo.ppo_loss(log_prob, entropy, value, batch, **{**knobs, "vf_coef": knobs["vf_coef"] * 0.9})

    mine = trained(tmp_path / "mine", compiled_updates=False)
    with monkeypatch.context() as patch:
        patch.setattr(ppo_trainer, "ppo_loss", other)
        changed = trained(tmp_path / "changed", compiled_updates=False)
    found = diff(mine, changed)
    assert (found.config, found.made_with) == ([], [])
    assert (found.step, found.kind) == (128, "loss") and "different code, versions or machines" in found.note
    here = diff_with_this_version(changed)
    assert (here.step, here.kind) == (128, "loss")
    assert not diff_with_this_version(mine).differ


def test_the_number_of_threads(tmp_path):
    wide = dict(hidden_sizes=[256, 256], num_envs=8, num_steps=256, total_timesteps=2048, log_interval=2048)
    wide |= dict(compiled_updates=False, num_minibatches=1, checkpoint_interval=2048, update_epochs=1)
    one = trained(tmp_path / "one", **wide, torch_threads=1)
    two = trained(tmp_path / "two", **wide, torch_threads=2)
    found = diff(one, two)
    assert "torch_threads 1 against 2" in found.config and "threads: 1 against 2" in found.made_with
    assert found.step == 2048 and found.kind in ("loss", "gradient", "observation", "parameter")
    assert "numbers differ, by at most" in found.what


def test_the_command(plain, tmp_path):
    copy = Path(shutil.copytree(plain, tmp_path / "copy"))
    done = cli("diff", str(plain), str(copy))
    assert done.exit_code == 0 and "equal      9 log lines" in done.output
    refused(cli("diff", str(plain)), "two runs, or one run --with-this-version")
    shutil.rmtree(checkpoints.listed(copy / "checkpoints")[-1])
    log = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(log[:-3]))
    assert "the logs have 9 and 6 lines" in cli("diff", str(plain), str(copy)).output
    (copy / "metrics.jsonl").write_text("")
    refused(cli("diff", str(plain), str(copy)), "is empty, though the newest checkpoint")


def test_a_run_that_ended_and_other_cadences_are_not_told_as_other_code(plain, tmp_path):
    ended = diff(plain, trained(tmp_path / "ended", total_timesteps=600))
    assert ended.note.endswith("both are equal up to step 640, where one of them ends")
    other = diff(plain, trained(tmp_path / "other", log_interval=256))
    assert "their lines differ in log_every" in other.note and "different code" not in other.note
