"""PPG end to end, short: schedules arrive in the metrics exactly, and both architectures train."""

import pytest
import torch
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines
from updates import warmed

from rl_training.errors import ConfigError
from rl_training.runtime.controls import idle_knobs, resolve_clip_coefficient
from rl_training.runtime.ppg_trainer import PPGConfig, train_ppg
from rl_training.state.segments import SegmentStore

SMALL = TINY | dict(num_minibatches=2, policy_iterations=2, auxiliary_minibatches=2, auxiliary_epochs=2)


def test_scheduled_coefficients_are_applied_and_logged(tmp_path):
    config = PPGConfig(
        **SMALL,
        ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02},
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
        beta_clone_schedule={"type": "linear", "start": 2.0, "end": 0.5},
    )
    result = train_ppg(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02
    assert result.metrics["clip_coef"] == 0.1
    assert result.metrics["beta_clone"] == 0.5
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["clip_coef"] == resolve_clip_coefficient(config, step=128)
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 128 / 600)
    assert {"policy_loss", "value_loss", "auxiliary_value_loss", "clone_kl"} <= result.metrics.keys()


def test_the_clip_coefficient_really_acts(tmp_path):
    none, all_free = clip_fractions(train_ppg, PPGConfig, SMALL, tmp_path)
    assert none > 0.4 and all_free == 0


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True, target_kl=0.01)),
        ("probe/TwoChoices-v0", dict(shared_trunk=True)),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, num_steps=16)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = PPGConfig(**SMALL | dict(env_id=env_id, total_timesteps=256, max_episode_steps=50) | changes)
    result = train_ppg(config, run_dir=tmp_path / "run")
    assert_learned(result, config)
    assert "clone_kl" in result.metrics


def test_without_auxiliary_epochs_no_rollout_is_kept(tmp_path):
    config = PPGConfig(**SMALL | dict(auxiliary_epochs=0, policy_iterations=4, auxiliary_minibatches=50))
    result = train_ppg(config, run_dir=tmp_path / "run")
    with pytest.raises(AssertionError, match=r"never moved: \['auxiliary_head'\]"):
        assert_learned(result, config)
    assert (
        "policy_loss" in result.metrics and not {"auxiliary_value_loss", "clone_kl"} & result.metrics.keys()
    )
    assert not list(tmp_path.glob("**/rollout-*"))
    trainer = warmed("ppg", 3, **SMALL | dict(num_steps=8, auxiliary_epochs=0))
    assert not trainer.kept
    trainer.close()


def test_schedules_of_the_auxiliary_phase_say_that_there_is_none():
    config = PPGConfig(**SMALL | dict(auxiliary_epochs=0), beta_clone_schedule="linear:0.5")
    assert idle_knobs(config) == ["beta_clone_schedule: no effect, because auxiliary_epochs is 0"]


def test_more_minibatches_than_lanes_are_refused():
    with pytest.raises(ConfigError, match="auxiliary_minibatches must be at most"):
        PPGConfig(env_id="CartPole-v1", num_envs=2, policy_iterations=2, auxiliary_minibatches=5)


@pytest.mark.parametrize("stored", [True, False])
def test_kept_rollouts_are_written_once_and_come_back(stored, tmp_path):
    """Beside the checkpoints where a run has a folder; in the state itself without one, as in older runs."""
    settings = SMALL | dict(num_steps=8, policy_iterations=4, total_timesteps=192)
    one, other = warmed("ppg", 3, **settings), warmed("ppg", 0, **settings)
    store = SegmentStore(tmp_path)
    if stored:
        one.keep_segments_in(store)
        other.keep_segments_in(store)
    state = one.state_dict()
    assert state["kept"] == 3 if stored else len(state["kept"]) == 3
    assert sorted(store.entries) == [f"rollout-{i:012d}.safetensors" for i in range(3 if stored else 0)]
    before = [(path.name, path.stat().st_mtime_ns) for path in sorted(tmp_path.iterdir())]
    one.state_dict()
    assert before == [(path.name, path.stat().st_mtime_ns) for path in sorted(tmp_path.iterdir())]
    other.load_state_dict({name: part for name, part in state.items() if stored or name != "rollouts"})
    for mine, theirs in zip(one.kept, other.kept, strict=True):
        assert torch.equal(mine["obs"], theirs["obs"]) and torch.equal(mine["return"], theirs["return"])
    assert other.rollouts == one.rollouts == 3
    one.close()
    other.close()
