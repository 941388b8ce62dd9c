"""PPG end to end, short: schedules arrive in the metrics exactly, and both architectures train."""

import pytest
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines

from rl_training.errors import ConfigError
from rl_training.runtime.controls import resolve_clip_coefficient
from rl_training.runtime.ppg_trainer import PPGConfig, train_ppg

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


def test_more_minibatches_than_lanes_are_refused():
    with pytest.raises(ConfigError, match="auxiliary_minibatches must be at most"):
        PPGConfig(env_id="CartPole-v1", num_envs=2, policy_iterations=2, auxiliary_minibatches=5)
