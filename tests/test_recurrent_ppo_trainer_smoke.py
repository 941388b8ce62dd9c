"""Recurrent PPO end to end, short: schedules arrive in the metrics exactly, and every kind of environment trains."""

import pytest
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines

from rl_training.errors import ConfigError
from rl_training.runtime.controls import resolve_clip_coefficient
from rl_training.runtime.recurrent_ppo_trainer import RecurrentPPOConfig, train_recurrent_ppo

SMALL = TINY | dict(num_minibatches=2, update_epochs=2, recurrent_size=8)


def test_scheduled_coefficients_are_applied_and_logged(tmp_path):
    config = RecurrentPPOConfig(
        **SMALL,
        ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02},
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
    )
    result = train_recurrent_ppo(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02
    assert result.metrics["clip_coef"] == 0.1
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["clip_coef"] == resolve_clip_coefficient(config, step=128)
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 128 / 600)


def test_the_clip_coefficient_really_acts(tmp_path):
    none, all_free = clip_fractions(train_recurrent_ppo, RecurrentPPOConfig, SMALL, tmp_path)
    assert none > 0.4 and all_free == 0


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True, cell="gru")),
        ("probe/TwoChoices-v0", dict(target_kl=0.01, value_clip_coef=0.2)),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, num_steps=16)),
        ("FrozenLake-v1", dict(hidden_sizes=[])),
        ("probe/Masked-v0", dict(wrappers=["rl_training.envs.wrappers:PreviousActionAndReward"])),
        ("probe/DictAndPicture-v0", dict(recurrent_layers=2, critic_memory=False, num_steps=16)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = RecurrentPPOConfig(
        **SMALL | dict(env_id=env_id, total_timesteps=128, max_episode_steps=50) | changes
    )
    assert_learned(train_recurrent_ppo(config, run_dir=tmp_path / "run"), config)


def test_more_minibatches_than_environments_are_refused():
    with pytest.raises(ConfigError, match="num_minibatches must be at most num_envs = 2"):
        RecurrentPPOConfig(env_id="CartPole-v1", num_envs=2, num_minibatches=3)


def test_a_shared_memory_is_the_critics_too():
    with pytest.raises(ConfigError, match="critic_memory must be true with shared_trunk"):
        RecurrentPPOConfig(env_id="CartPole-v1", shared_trunk=True, critic_memory=False)
