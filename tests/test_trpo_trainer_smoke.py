"""TRPO end to end, short: schedules arrive in the metrics exactly, and the trust region holds."""

import pytest
from runs import TINY, assert_learned, knobs_in_training_lines, received

from rl_training.runtime import trpo_trainer
from rl_training.runtime.trpo_trainer import TRPOConfig, train_trpo

SMALL = TINY | dict(num_minibatches=2, update_epochs=2)


def test_ent_coef_schedule_is_applied_and_logged(tmp_path, monkeypatch):
    used = received(monkeypatch, trpo_trainer, "surrogate", "ent_coef")
    config = TRPOConfig(**SMALL, ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02})
    result = train_trpo(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 128 / 600)
    assert list(dict.fromkeys(used)) == [line["ent_coef"] for line in lines]
    expected = {"policy_loss", "value_loss", "entropy", "kl", "surrogate_improvement", "step_fraction"}
    assert expected <= result.metrics.keys()


def test_the_scheduled_trust_region_is_held_in_every_line(tmp_path):
    config = TRPOConfig(
        **SMALL, target_kl_schedule={"type": "linear", "start": 0.02, "end": 0.001}, log_interval=1
    )
    result = train_trpo(config, run_dir=tmp_path / "run")
    assert result.metrics["target_kl"] == 0.001
    for line in knobs_in_training_lines(result, config):
        assert line["kl"] <= line["target_kl"]


def test_the_entropy_coefficient_acts_on_the_surrogate(tmp_path):
    """With a huge bonus the policy becomes nearly uniform; without, it does not."""
    entropies = [
        train_trpo(
            TRPOConfig(**SMALL | dict(total_timesteps=4000), ent_coef=ent_coef, target_kl=0.05),
            run_dir=tmp_path / str(ent_coef),
        ).metrics["entropy"]
        for ent_coef in (0.0, 100.0)
    ]
    assert entropies[1] > 0.692 > entropies[0] + 0.02


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        (
            "Pendulum-v1",
            dict(normalize_observations=True, normalize_rewards=True, vf_coef=0.5, max_grad_norm=1),
        ),
        ("probe/TwoChoices-v0", {}),
        ("probe/DictAndPicture-v0", dict(num_envs=1, num_steps=32)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = TRPOConfig(**SMALL | dict(env_id=env_id, total_timesteps=128, max_episode_steps=50) | changes)
    assert_learned(train_trpo(config, run_dir=tmp_path / "run"), config)
