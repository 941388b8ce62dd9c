"""A2C end to end, short: schedules arrive in the metrics exactly, and discrete and continuous actions train."""

import pytest
from runs import TINY, assert_learned, knobs_in_training_lines, received

from rl_training.runtime import a2c_trainer
from rl_training.runtime.a2c_trainer import A2CConfig, train_a2c
from rl_training.runtime.controls import resolve_entropy_coefficient


def test_ent_coef_schedule_is_applied_and_logged(tmp_path, monkeypatch):
    used = received(monkeypatch, a2c_trainer, "a2c_loss", "ent_coef")
    config = A2CConfig(**TINY, ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02})
    result = train_a2c(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["ent_coef"] == resolve_entropy_coefficient(config, step=lines[0]["step"])
    assert lines[0]["ent_coef"] > 0.02
    assert used == [line["ent_coef"] for line in lines]
    expected = {"policy_loss", "value_loss", "entropy", "explained_variance", "grad_norm", "episode_return"}
    assert expected <= result.metrics.keys()


def test_the_entropy_coefficient_really_acts(tmp_path):
    """A huge bonus holds a Gaussian policy wide; none lets its entropy stay where the advantages take it."""
    entropies = []
    for ent_coef in (0.0, 10.0):
        settings = TINY | dict(env_id="Pendulum-v1", total_timesteps=2000, learning_rate=1e-2)
        config = A2CConfig(**settings, ent_coef=ent_coef, max_grad_norm=None, normalize_rewards=True)
        entropies.append(train_a2c(config, run_dir=tmp_path / str(ent_coef)).metrics["entropy"])
    assert entropies[1] > entropies[0] + 0.5


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True, gae_lambda=0.9)),
        ("probe/TwoChoices-v0", {}),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, normalize_advantages=True)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = A2CConfig(**TINY | dict(env_id=env_id, total_timesteps=256, max_episode_steps=50) | changes)
    assert_learned(train_a2c(config, run_dir=tmp_path / "run"), config)
