"""SAC end to end, short: schedules and the learned temperature arrive in the metrics, and it learns the probes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from runs import assert_learned, iterated, received
from updates import warmed

from rl_training import evaluate_checkpoint, load_config, load_policy
from rl_training.envs.making import with_lanes
from rl_training.errors import ConfigError
from rl_training.runtime import sac_trainer
from rl_training.runtime.controls import Controls, resolve, resolve_entropy_coefficient
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.sac_trainer import SACConfig, SACTrainer, train_sac

TINY: dict[str, Any] = dict(
    env_id="Pendulum-v1",
    total_timesteps=300,
    learning_starts=50,
    batch_size=16,
    hidden_sizes=[8],
    buffer_size=500,
    eval_episodes=1,
    eval_interval=300,
    log_interval=50,
)


def training_lines(result: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "learning_rate" in line]


def test_a_run_leaves_a_checkpoint_metadata_and_metrics(tmp_path: Any) -> None:
    result = train_sac(SACConfig(**TINY | dict(learning_starts=51)), run_dir=tmp_path / "run")
    expected = {
        "critic_loss",
        "actor_loss",
        "q_value",
        "entropy",
        "ent_coef",
        "episode_return",
        "replay_ratio",
    }
    assert expected | {"tau", "gamma", "learning_rate", "eval/mean_return"} <= result.metrics.keys()
    assert all(isinstance(value, int | float) for value in result.metrics.values())
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["config"]["algo"] == "sac" and manifest["threads"] == 1
    lines = training_lines(result)
    assert "critic_loss" not in lines[0] and lines[0]["step"] == 50, "no update before learning starts"
    assert 0 < result.metrics["ent_coef"] < 1, "the learned temperature started at 1 and has moved"
    assert lines[0]["ent_coef"] == 1 and lines[1]["ent_coef"] > lines[-1]["ent_coef"]


def test_the_temperature_in_the_metrics_is_the_current_one(tmp_path: Any) -> None:
    config = SACConfig(**TINY)
    trainer = SACTrainer(config)
    knobs = Controls.of(config)
    for step in range(60):
        metrics = trainer.iterate(knobs.at(step))
    assert trainer.temperature is not None
    assert metrics.standing["ent_coef"] == trainer.temperature.log_ent_coef.exp().item() != 1.0


@pytest.mark.parametrize("spelling", ["ent_coef", "entropy_coef"])
def test_ent_coef_schedule_is_applied_and_logged(spelling: str, tmp_path: Any, monkeypatch: Any) -> None:
    used = {
        name: received(monkeypatch, sac_trainer, name, "ent_coef") for name in ("soft_target", "actor_loss")
    }
    changes = {f"{spelling}_schedule": {"type": "linear", "start": 0.4, "end": 0.1}}
    config = load_config(TINY | changes | {"algo": "sac"})
    result = train_sac(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.1
    for line in training_lines(result):
        assert line["ent_coef"] == resolve_entropy_coefficient(config, step=line["step"])
    expected = [resolve_entropy_coefficient(config, step=step) for step in range(50, 301)]
    assert used == {"soft_target": expected, "actor_loss": expected}
    assert load_config(tmp_path / "run" / "config.yaml") == with_lanes(config)


@pytest.mark.parametrize("knob", ["learning_rate", "tau", "replay_ratio", "gamma"])
def test_every_knob_can_be_scheduled(knob: str, tmp_path: Any) -> None:
    schedule = {"type": "linear", "start": 0.5, "end": 0.25}
    config = SACConfig(**TINY | dict(total_timesteps=120), **{f"{knob}_schedule": schedule})
    result = train_sac(config, run_dir=tmp_path / "run")
    for line in training_lines(result):
        assert line[knob] == resolve(knob, config, line["step"])


def test_vector_environments_and_normalised_observations_train(tmp_path: Any) -> None:
    config = SACConfig(
        **TINY | dict(num_envs=3, train_frequency=4, normalize_observations=True, max_episode_steps=50)
    )
    result = train_sac(config, run_dir=tmp_path / "run")
    assert_learned(result, config)
    policy = load_policy(tmp_path / "run")
    assert policy.agent.normalizer.moments.count > 299


def test_an_observation_that_is_a_dict_with_a_picture_trains(tmp_path: Any) -> None:
    config = SACConfig(**TINY | dict(env_id="probe/DictTarget-v0", total_timesteps=80))
    assert_learned(train_sac(config, run_dir=tmp_path / "run"), config)


def test_discrete_actions_and_actions_without_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="actions must be Box"):
        SACTrainer(SACConfig(**TINY | dict(env_id="CartPole-v1")))
    with pytest.raises(ConfigError, match="no bounds"):
        SACTrainer(SACConfig(**TINY | dict(env_id="probe/Unbounded-v0")))


def test_the_checkpoint_alone_rebuilds_the_agent(tmp_path: Any) -> None:
    result = train_sac(SACConfig(**TINY), run_dir=tmp_path / "run")
    score = evaluate_checkpoint(result.checkpoint_path, episodes=3, seed=4)
    assert score == evaluate_checkpoint(tmp_path / "run", episodes=3, seed=4)
    action = load_policy(result.checkpoint_path).act(np.zeros(3, np.float32))
    assert action.shape == (1,) and -2 <= action[0] <= 2


def trained(env_id: str, steps: int, learned: Any = None, **changes: Any) -> SACTrainer:
    settings: dict[str, Any] = dict(learning_starts=100, batch_size=64, hidden_sizes=[32, 32], gamma=0.9)
    settings |= dict(learning_rate=3e-3, buffer_size=5000, total_timesteps=10**6, tau=0.05)
    config = SACConfig(env_id=f"probe/{env_id}-v0", **settings | changes)
    return iterated(SACTrainer, config, steps, learned)


def test_a_continuous_action_reaches_its_target_inside_asymmetric_bounds() -> None:
    def learned(trainer: SACTrainer) -> None:
        assert evaluate(trainer.agent, trainer.config, episodes=10, seed=5)["mean_return"] > -0.02

    trained("Target", 900, learned, target_entropy=-3.0)


def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    """Reward 1 a step. Cut after 5 steps, Q = 1 / (1 - γ) = 10 everywhere; terminated, Q = 1 at the last step.

    Entropy is worth nothing here, so that Q is the plain return.
    """
    for env_id, low, high in (("CutOff", 9.0, 11.0), ("Ending", 0.7, 1.3)):
        trainer = trained(env_id, 700, ent_coef=0.0)
        obs = torch.tensor([[4.0]])  # the last step of an episode
        with torch.no_grad():
            q = trainer.critics(obs, torch.zeros(1, 1)).mean().item()
        assert low < q < high, f"{env_id}: {q}"


DELAYED = dict(
    env_id="Pendulum-v1",
    total_timesteps=1000,
    hidden_sizes=[8],
    learning_starts=100,
    batch_size=8,
    buffer_size=400,
    policy_delay=3,
)


def test_the_actor_learns_once_in_policy_delay_updates() -> None:
    """Updates 1 and 2 move the critics alone; the third moves actor and α too."""
    trainer = warmed("sac", 0, **DELAYED)
    before = trainer.actor_optimizer.parameters.clone()
    updates = []
    while len(updates) < 3:
        trainer.gather(Controls.of(trainer.config).at(0))
        if len(trainer.replay) >= 8:
            updates.append(trainer.update(Controls.of(trainer.config).at(0).after(0)))
            moved = not torch.equal(before, trainer.actor_optimizer.parameters)
            assert moved == (len(updates) == 3) == ("actor_loss" in updates[-1])
    assert trainer.temperature_optimizer.count == 1 and trainer.critic_optimizer.count == 3


def test_alpha_starts_where_it_is_told() -> None:
    trainer = warmed("sac", 0, **DELAYED | dict(ent_coef_init=0.25))
    assert trainer.temperature.log_ent_coef.exp().item() == pytest.approx(0.25)
    with pytest.raises(ConfigError, match="ent_coef is not auto"):
        load_config({"algo": "sac", **DELAYED, "ent_coef": 0.2, "ent_coef_init": 0.5})


def test_n_step_returns_reach_the_critics() -> None:
    """Pendulum never ends: the sum of three rewards, and γ³ of what follows."""
    trainer = warmed("sac", 6, **DELAYED | dict(n_step=3))
    batch = trainer.replay.sample(8, 0.9)
    assert trainer.replay.n_step == 3 and len(trainer.replay) == 4
    torch.testing.assert_close(batch["discount"], torch.full((8,), 0.9**3))
    rewards = trainer.replay.reward[:6]
    sums = [sum(0.9**k * rewards[t + k] for k in range(3)) for t in range(4)]
    assert all(min(abs(found - each) for each in sums) < 1e-4 for found in batch["reward"].tolist())
