"""The example of an algorithm of one's own: it learns what it should, resumes exactly, and is short."""

import subprocess
import sys
from pathlib import Path

import pytest
from runs import assert_same_run, metrics_in

from rl_training import evaluate_checkpoint, load_config, resume, train
from rl_training.errors import ConfigError
from rl_training.registry import ALGORITHMS

ROOT = Path(__file__).parents[2]
SMALL = dict(algo="reinforce", env_id="CartPole-v1", num_envs=8, num_steps=64, seed=1, learning_rate=5e-3)


@pytest.fixture(autouse=True)
def reinforce(monkeypatch):
    """The example, as a script would find it: its folder is on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setitem(ALGORITHMS, "reinforce", "reinforce:ReinforceTrainer")  # and gone when the test ends


def test_it_learns_a_knob_with_a_schedule_moves_and_it_resumes_exactly(tmp_path):
    settings = SMALL | dict(
        total_timesteps=30_000, ent_coef=0.01, ent_coef_schedule="linear", eval_episodes=2
    )
    # A knob that only the example has: 0.5 at first, 1 at the end, ramped up over the first 5 000 steps.
    settings |= dict(
        baseline_coef_schedule={"type": "linear", "start": 0.5, "end": 1.0}, baseline_coef_warmup_steps=5_000
    )
    config = load_config(settings | dict(checkpoint_interval=10_000))
    result = train(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == pytest.approx(0.0, abs=1e-4)
    for line in (line for line in metrics_in(result.run_dir) if "policy_loss" in line):
        ramp = min(1.0, (line["step"] + 1) / 5_000)
        moved = 0.5 + 0.5 * min(1.0, line["step"] / 30_000)
        assert line["baseline_coef"] == pytest.approx(moved * ramp)
    with pytest.raises(ConfigError, match="baseline_coef_schedule must be at most 1"):
        load_config(SMALL | dict(baseline_coef_schedule="linear:2"))
    assert evaluate_checkpoint(result.run_dir, episodes=5)["mean_return"] > 100
    # Forget the last checkpoint, as if the run had been killed before it: it must end the same.
    import shutil

    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    shutil.rmtree(max((tmp_path / "cut" / "checkpoints").iterdir()))
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "run", tmp_path / "cut")


def test_the_class_and_its_config_are_forty_lines_at_most():
    text = (ROOT / "examples" / "reinforce.py").read_text("utf-8")
    body = text.partition("\n\n\n")[2].partition("register(")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 40


@pytest.mark.slow
def test_as_a_script_it_has_every_verb(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "reinforce.py")]
    done = subprocess.run([*script, "describe", "reinforce"], capture_output=True, text=True, check=True)
    assert "reinforce: REINFORCE, for discrete and continuous actions." in done.stdout
