"""GAIL end to end, short: schedules arrive exactly, the environment's reward goes nowhere, every part acts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines, read_lines

from rl_training import load_config, resume
from rl_training.data.demonstrations import (
    Demonstrations,
    Episode,
    load_demonstrations,
    save_demonstrations,
)
from rl_training.errors import ConfigError, RunError
from rl_training.registry import shipped_file
from rl_training.runtime.controls import Controls, resolve_clip_coefficient
from rl_training.runtime.gail_trainer import GAILConfig, GAILTrainer, train_gail
from rl_training.runtime.ppo_trainer import PPOConfig, train_ppo
from rl_training.runtime.workflows import record_demonstrations
from rl_training.state.seeding import seed_everything

SMALL: dict[str, Any] = TINY | dict(
    demonstrations="gail/cartpole_expert.npz",
    expert_episodes=2,
    discriminator_updates=2,
    discriminator_batch_size=32,
    discriminator_hidden_sizes=[8],
)
PENDULUM = dict(env_id="Pendulum-v1", demonstrations="gail/pendulum_expert.npz", normalize_rewards=True)


def linear(start: float, end: float) -> dict[str, Any]:
    return {"type": "linear", "start": start, "end": end}


def test_scheduled_coefficients_are_applied_and_logged(tmp_path: Path) -> None:
    config = GAILConfig(
        **SMALL,
        ent_coef_schedule=linear(0.1, 0.02),
        clip_coef_schedule=linear(0.3, 0.1),
        discriminator_learning_rate_schedule=linear(1e-3, 1e-4),
        gradient_penalty_weight_schedule=linear(2.0, 0.5),
    )
    result = train_gail(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02  # 640 steps were taken: the schedules are over
    assert result.metrics["clip_coef"] == 0.1
    assert result.metrics["discriminator_learning_rate"] == 1e-4
    assert result.metrics["gradient_penalty_coef"] == 0.5
    lines = knobs_in_training_lines(result, config)
    assert [line["step"] for line in lines] == [128, 256, 384, 512, 640]
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 128 / 600)
    assert lines[0]["clip_coef"] == resolve_clip_coefficient(config, step=128)
    assert lines[0]["gradient_penalty_coef"] == pytest.approx(2.0 - 1.5 * 128 / 600)
    assert {"discriminator_loss", "discriminator_accuracy", "discriminator_entropy"} <= lines[0].keys()
    assert {"gradient_penalty", "imitation_reward", "episode_return"} <= lines[-1].keys()
    assert all(0 <= line["discriminator_accuracy"] <= 1 for line in lines)
    assert lines[0]["discriminator_entropy"] == pytest.approx(np.log(2), abs=0.02)  # it begins at one half


def test_the_clip_coefficient_really_acts(tmp_path: Path) -> None:
    none, all_free = clip_fractions(train_gail, GAILConfig, SMALL, tmp_path)
    assert none > 0.4 and all_free == 0


class Poisoned(gym.Wrapper):
    """The reward is nonsense, and everything else is as it was."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 1e6 * float(np.sin(1e3 * float(obs[0]))) - 12345.0 * float(reward), *rest


@pytest.fixture
def poison() -> Any:
    for name in ("CartPole", "Pendulum"):
        gym.register(f"poison/{name}-v1", lambda name=name: Poisoned(gym.make(f"{name}-v1")))
    yield
    for name in ("CartPole", "Pendulum"):
        del gym.registry[f"poison/{name}-v1"]


@pytest.mark.parametrize("settings", [{}, PENDULUM | dict(bc_epochs=1, discriminator_rollouts=2)])
def test_the_environments_reward_changes_nothing_but_the_true_return(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Any
) -> None:
    # The poisoned environment is a Python one, so its twin is.
    plain = dict(vectorization="sync", max_episode_steps=60, normalize_observations=True)
    config = GAILConfig(**SMALL | settings | plain)
    clean = train_gail(config, run_dir=tmp_path / "clean")
    monkeypatch.setattr("rl_training.data.imitation.check_fit", lambda *_: None)  # it is another env_id
    poisoned = config.model_copy(update={"env_id": f"poison/{config.env_id}"})
    other = train_gail(poisoned, run_dir=tmp_path / "poisoned")
    truth = {f"eval/{which}_return" for which in ("mean", "std", "min", "max")}
    truth |= {"episode_return", "episode_return_std"}
    assert clean.metrics["episode_return"] != other.metrics["episode_return"]
    one, two = (
        [{name: value for name, value in line.items() if name not in truth} for line in read_lines(result)]
        for result in (clean, other)
    )
    assert json.dumps(one) == json.dumps(two)
    for name in ("weights.safetensors",):
        assert (clean.checkpoint_path / name).read_bytes() == (other.checkpoint_path / name).read_bytes()


def trainer(**changes: Any) -> GAILTrainer:
    seed_everything(3)
    return GAILTrainer(GAILConfig(**SMALL | changes))


def iterate(made: GAILTrainer, times: int = 1) -> dict[str, float]:
    for number in range(times):
        seed_everything(number)
        means = made.iterate(Controls.of(made.config).at(0)).means()
    return means


def test_a_discriminator_without_updates_is_constant() -> None:
    """Then the reward says nothing: log 2 for every step, or 0 with both signs."""
    for form, reward in (("positive", np.log(2)), ("negative", -np.log(2)), ("logit", 0.0)):
        made = trainer(discriminator_updates=0, reward_form=form, absorbing_states=False)
        means = iterate(made, 2)
        assert means["imitation_reward"] == pytest.approx(reward, abs=1e-6)
        assert "discriminator_loss" not in means


def test_what_follows_a_termination_is_part_of_the_last_reward() -> None:
    """CartPole's first policy falls often, and the expert never: to fall must cost more than any step."""
    made = trainer(discriminator_updates=20, discriminator_learning_rate=1e-2, gamma=0.9)
    iterate(made, 2)
    rollout, _ = made.collect()
    now = Controls.of(made.config).at(0).after(128)
    pairs = {"obs": rollout["obs"].reshape(-1, 4).numpy(), "action": rollout["action"].reshape(-1).numpy()}
    terminated = rollout["terminated"].clone()
    terminated[3, 0] = True
    with_end = made.imitation_reward(pairs, terminated, now)
    without = made.imitation_reward(pairs, torch.zeros_like(terminated), now)
    ends = (with_end - without)[terminated]
    assert (ends < 0).all() and torch.allclose(ends, ends[0].expand_as(ends), atol=1e-4)
    assert torch.equal(with_end[~terminated], without[~terminated])
    absorbing = made.discriminator(made.discriminator.absorbing()).item()
    assert ends[0].item() == pytest.approx(0.9 / 0.1 * absorbing, rel=1e-3)


def test_the_discriminator_learns_to_tell_the_two_apart() -> None:
    made = trainer(discriminator_updates=100, discriminator_learning_rate=1e-2, gradient_penalty_coef=0.0)
    assert iterate(made, 4)["discriminator_accuracy"] > 0.8


@pytest.mark.parametrize(
    "changes",
    [dict(gradient_penalty="zero_centred"), dict(gradient_penalty="interpolated"), dict(spectral_norm=True)],
)
def test_every_regulariser_holds_the_slope_down(changes: dict[str, Any]) -> None:
    """The same discriminator, free and held: its logits must lie nearer together."""
    strong = dict(discriminator_updates=100, discriminator_learning_rate=1e-2)
    free = iterate(trainer(**strong, gradient_penalty_coef=0.0))["discriminator_entropy"]
    coef = 10.0 if "gradient_penalty" in changes else 0.0
    held = iterate(trainer(**strong, **changes, gradient_penalty_coef=coef))["discriminator_entropy"]
    assert held > free + 0.02


def test_recent_rollouts_are_remembered() -> None:
    made = trainer(discriminator_rollouts=3)
    for kept in (1, 2, 2):
        iterate(made)
        assert len(made.recent) == kept
    assert not np.shares_memory(made.recent[-1]["obs"], made.collector.columns["obs"])
    alone = trainer()
    iterate(alone)
    assert alone.recent == []


def test_the_scale_of_rewards_forgets_early_ones_if_told_to() -> None:
    """Rewards that shrink to a hundredth, as those of a discriminator may that the policy catches up with."""
    rewards = np.random.default_rng(1).normal(size=(60, 32, 2))
    rewards[30:] /= 100
    done = np.ones((32, 2), bool)
    spreads = []  # of scaled rewards, before and after
    for rollouts in (None, 5):
        made = trainer(normalize_rewards=True, reward_scale_rollouts=rollouts, num_envs=2, num_steps=32)
        scaled = [made.reward_scaler(each, done, 0.9) for each in rewards]
        spreads.append((np.std(scaled[29]), np.std(scaled[-1])))
    (before, after), (_, sooner) = spreads
    assert before == pytest.approx(1.0, rel=0.2) and after == pytest.approx(0.01 * 2**0.5, rel=0.2)
    assert sooner > 5 * after
    kept, forgetful = (trainer(normalize_rewards=True, reward_scale_rollouts=each) for each in (None, 1))
    for made in (kept, forgetful):
        iterate(made, 2)
    assert kept.reward_scaler.moments.variance != forgetful.reward_scaler.moments.variance


@pytest.mark.parametrize("settings", [{}, PENDULUM])
def test_behaviour_cloning_takes_the_experts_actions_over(settings: dict[str, Any]) -> None:
    made = trainer(**settings, bc_epochs=30, learning_rate=3e-3)
    pairs = made.expert.pairs
    action = torch.as_tensor(pairs["action"])

    def likelihood() -> float:
        with torch.no_grad():
            return made.agent.evaluate(made.agent.inputs(pairs["obs"]), action)[0].mean().item()

    before = likelihood()
    now = Controls.of(made.config).at(0).after(0)
    loss = made.clone(now)["cloning_loss"].item()
    assert made.cloned and likelihood() > before + 0.2
    assert loss == pytest.approx(-likelihood(), abs=0.5)
    means = iterate(made)
    assert "cloning_loss" not in means  # once, before anything else
    assert "cloning_loss" in iterate(trainer(**settings, bc_epochs=1))


def test_other_demonstrations_are_not_resumed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expert = train_ppo(PPOConfig(**TINY), run_dir="expert").run_dir
    record_demonstrations(expert, "demos.npz", episodes=2)
    train_gail(GAILConfig(**SMALL | dict(demonstrations="demos.npz")), run_dir="run")
    assert resume("run").metrics  # a run that ended, with the demonstrations it was begun with
    for name in ("demos.npz", "demos.json"):
        Path(name).unlink()
    record_demonstrations(expert, "demos.npz", episodes=2, seed=9)
    with pytest.raises(RunError, match="not the ones that the run was begun with"):
        resume("run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(demonstrations="nowhere.npz"), "demonstrations: nowhere.npz: no such file"),
        (dict(demonstrations="gail/pendulum_expert.npz"), "made in Pendulum-v1, not in CartPole-v1"),
        (dict(expert_episodes=11), "holds 10 episodes, not 11"),
        (dict(gamma=1.0), "gamma must stay below 1"),
        (dict(reward_scale_rollouts=10), "reward_scale_rollouts needs normalize_rewards: true"),
        (dict(bc_epochs=1, squash_actions=True), "bc_epochs must be 0 with squash_actions"),
        (dict(gamma_schedule=linear(0.9, 1.0)), "gamma must stay below 1"),
    ],
)
def test_what_cannot_be_imitated_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_gail(GAILConfig(**SMALL | changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_demonstrations_must_be_given() -> None:
    with pytest.raises(ConfigError, match="demonstrations is missing"):
        GAILConfig(**TINY)


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("probe/TwoChoices-v0", {}),
        ("probe/Coins-v0", dict(spectral_norm=True)),
        ("probe/DictAndPicture-v0", dict(num_steps=16, shared_trunk=True, normalize_observations=True)),
        ("FrozenLake-v1", dict(expert_keep_every=2)),
    ],
)
def test_every_kind_of_environment_trains(env_id: str, changes: dict[str, Any], tmp_path: Path) -> None:
    short = TINY | dict(env_id=env_id, total_timesteps=128, max_episode_steps=50)
    expert = train_ppo(PPOConfig(**short), run_dir=tmp_path / "expert").run_dir
    record_demonstrations(expert, tmp_path / "demos.npz", episodes=3, sample=True)
    settings = short | dict(demonstrations=str(tmp_path / "demos.npz"), discriminator_batch_size=16)
    config = GAILConfig(**settings | changes)
    result = train_gail(config, run_dir=tmp_path / "run")
    assert_learned(result, config)
    assert "discriminator_accuracy" in result.metrics


@pytest.mark.parametrize(("wrong", "expected"), [(False, 1.0), (True, -1.0)])
def test_the_expert_is_imitated_whatever_it_earns(wrong: bool, expected: float, tmp_path: Path) -> None:
    """One step, in which the action that matches the observation's sign earns 1 and the other -1."""

    def step(sign: float) -> Episode:
        action = np.array([int((sign > 0) != wrong)])
        obs = np.array([[sign], [sign]], np.float32)
        return Episode(obs, action, np.zeros(1), np.ones(1, np.bool_), np.zeros(1, np.bool_))

    expert = Demonstrations("probe/RewardByBoth-v0", [step(sign) for sign in (1.0, -1.0) * 8])
    save_demonstrations(expert, str(tmp_path / "demos.npz"))
    config = GAILConfig(
        env_id="probe/RewardByBoth-v0",
        demonstrations=str(tmp_path / "demos.npz"),
        total_timesteps=4096,
        num_envs=8,
        num_steps=16,
        learning_rate=1e-2,
        learning_rate_schedule="linear",
        discriminator_updates=4,
        discriminator_rollouts=8,
        discriminator_batch_size=64,
        discriminator_learning_rate=1e-2,
        discriminator_learning_rate_schedule="linear",
        hidden_sizes=[16],
        discriminator_hidden_sizes=[16],
    )
    result = train_gail(config, run_dir=tmp_path / "run")
    assert result.metrics["eval/mean_return"] == expected


def test_the_shipped_demonstrations_are_those_of_experts() -> None:
    for name, episodes, lowest in (
        ("cartpole", 10, 500),
        ("pendulum", 20, -260),
        ("acrobot", 20, -115),
        ("hopper", 4, 3400),
    ):
        config = load_config(f"gail/{name}")
        about = json.loads(shipped_file(config.demonstrations).with_suffix(".json").read_text())
        assert about["env_id"] == config.env_id
        assert about["episodes"] == episodes and min(about["returns"]) >= lowest
        assert load_demonstrations(config.demonstrations).returns == about["returns"]


def test_behaviour_cloning_counts_as_learning_and_not_as_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    clone, ended = GAILTrainer.clone, []

    def cloning(trainer: GAILTrainer, now: Any) -> dict[str, float]:
        found = clone(trainer, now)
        ended.append(time.perf_counter())
        return found

    monkeypatch.setattr(GAILTrainer, "clone", cloning)
    config = load_config(
        TINY | {"algo": "gail", "demonstrations": "gail/cartpole_expert.npz", "bc_epochs": 1}
    )
    trainer = GAILTrainer(config)
    metrics = trainer.iterate(Controls.of(config).at(0))
    assert metrics.began is not None
    assert ended[0] <= metrics.began < metrics.gathered


@pytest.mark.parametrize(
    ("gamma", "says"),
    [
        ({"gamma": 1.5}, "gamma must be at most 1, not 1.5"),
        ({"gamma": 1.0}, "gamma must stay below 1 with absorbing_states"),
        (
            {"gamma_schedule": {"type": "linear", "start": 0.9, "end": 1.5}},
            "gamma_schedule must be at most 1, not 1.5",
        ),
    ],
)
def test_a_discount_that_cannot_be_is_told_by_its_own_key(gamma, says):
    base = {"algo": "gail", "env_id": "Pendulum-v1", "demonstrations": "expert.npz", "absorbing_states": True}
    with pytest.raises(ConfigError, match=says) as refused:
        load_config(base | gamma)
    assert "Value error" not in str(refused.value)
