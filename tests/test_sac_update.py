"""SAC's maths: every loss and the target against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.sac import (
    actor_loss,
    critic_loss,
    polyak,
    soft_target,
    squash,
    temperature_loss,
)
from rl_training.errors import ConfigError
from rl_training.networks.soft_actor_critic import GaussianActor, TwinCritics
from rl_training.runtime.controls import Controls
from rl_training.runtime.sac_trainer import SACConfig, SACTrainer
from rl_training.state.seeding import seed_everything


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_target_by_hand() -> None:
    """Two transitions: one goes on, one terminated.

    y₁ = 1 + 0.9 · (min(5, 3) - 0.2 · (-1)) = 1 + 0.9 · 3.2 = 3.88
    y₂ = 2 + 0.0 · ... = 2
    """
    y = soft_target(
        tensor(1, 2), tensor(0.9, 0.0), torch.tensor([[5.0, 7.0], [3.0, 9.0]]), tensor(-1, -2), 0.2
    )
    torch.testing.assert_close(y, tensor(3.88, 2.0))


def test_the_critic_loss_by_hand() -> None:
    """½ (mean of 1² and 2²) + ½ (mean of 0² and 3²) = ½ · 2.5 + ½ · 4.5 = 3.5"""
    q = torch.tensor([[1.0, 4.0], [2.0, -1.0]])
    assert critic_loss(q, tensor(2.0, 2.0)).item() == pytest.approx(3.5)


def test_the_actor_loss_by_hand() -> None:
    """mean(0.5 · (-1) - min(2, 1), 0.5 · 3 - min(0, 4)) = mean(-1.5, 1.5) = 0"""
    q = torch.tensor([[2.0, 0.0], [1.0, 4.0]])
    assert actor_loss(q, tensor(-1.0, 3.0), 0.5).item() == pytest.approx(0.0)
    assert actor_loss(q, tensor(-1.0, 5.0), 0.5).item() == pytest.approx(0.5)


def test_the_temperature_loss_by_hand_and_its_direction() -> None:
    """-log α · (mean(1, 3) + H̄) = -0.5 · (2 - 1) = -0.5, with slope -(2 - 1) = -1: log π above -H̄, so α must grow."""
    log_ent_coef = torch.tensor(0.5, requires_grad=True)
    loss = temperature_loss(log_ent_coef, tensor(1.0, 3.0), target_entropy=-1.0)
    assert loss.item() == pytest.approx(-0.5)
    loss.backward()
    assert log_ent_coef.grad is not None and log_ent_coef.grad.item() == pytest.approx(-1.0)


def test_polyak_by_hand() -> None:
    target = tensor(1.0, 2.0)
    polyak(target, tensor(3.0, 2.0), 0.25)
    torch.testing.assert_close(target, tensor(1.5, 2.0))


def test_the_log_density_by_hand() -> None:
    """μ = 0, σ = 1, ε = 0: log N = -½ log 2π, tanh'(0) = 1. Then u = 1 with σ = 2 in two dimensions."""
    action, log_prob = squash(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    assert action.item() == 0.0 and log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi))
    mean, log_std, noise = torch.zeros(1, 2), torch.full((1, 2), math.log(2.0)), torch.full((1, 2), 0.5)
    action, log_prob = squash(mean, log_std, noise)
    normal = -0.5 * 0.25 - math.log(2) - 0.5 * math.log(2 * math.pi)
    assert action[0, 0].item() == pytest.approx(math.tanh(1.0))
    assert log_prob.item() == pytest.approx(2 * (normal - math.log(1 - math.tanh(1.0) ** 2)))


@pytest.mark.parametrize("u", [0.5, 3.0, 6.0, 8.0, 12.0, -20.0])
def test_the_log_density_is_exact_where_tanh_is_one(u: float) -> None:
    """Against float64 with log(1 - tanh²u) = log 4 - 2|u| - 2 log(1 + e^-2|u|); its slope does not vanish."""
    mean = torch.tensor([[u]], requires_grad=True)
    _, log_prob = squash(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    exact = math.log(4) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - exact, rel=1e-5)
    log_prob.backward()
    assert mean.grad is not None and mean.grad.item() == pytest.approx(2 * math.tanh(u), rel=1e-4)


def test_the_density_integrates_to_one() -> None:
    """∫ π(a) da over (-1, 1), with u as the variable: Σ π(a(u)) a'(u) Δu."""
    u = torch.linspace(-8, 8, 4001, dtype=torch.float64).unsqueeze(-1)
    mean, log_std = torch.full_like(u, 0.3), torch.full_like(u, -0.5)
    noise = (u - mean) / log_std.exp()
    action, log_prob = squash(mean, log_std, noise)
    width = 16 / 4000
    total = (log_prob.exp() * (1 - action.squeeze(-1) ** 2) * width).sum()
    assert total.item() == pytest.approx(1.0, abs=1e-6)


SPACE = spaces.Box(-1, 1, (3,), np.float32)
NETWORK = dict(hidden_sizes=(5, 4), activation="relu", image_encoder="nature")


def test_the_twin_critics_are_two_plain_networks() -> None:
    torch.manual_seed(0)
    critics = TwinCritics(SPACE, 2, **NETWORK)  # type: ignore[arg-type]
    obs, action = torch.randn(7, 3), torch.randn(7, 2)
    q = critics(obs, action)
    assert q.shape == (2, 7)
    for i in range(2):
        hidden = torch.cat([obs, action], -1)
        for weight, bias in zip(list(critics.weights)[:-1], list(critics.biases)[:-1], strict=True):
            hidden = torch.relu(hidden @ weight[i] + bias[i])
        expected = hidden @ critics.weights[-1][i].T + critics.biases[-1][i]
        torch.testing.assert_close(q[i], expected.squeeze(-1))
    assert not torch.allclose(q[0], q[1])


def test_frozen_critics_pass_the_same_gradient_to_the_action_and_none_to_their_weights() -> None:
    critics = TwinCritics(SPACE, 2, **NETWORK)  # type: ignore[arg-type]
    obs = torch.randn(7, 3)
    slopes = []
    for frozen in (False, True):
        action = torch.ones(7, 2, requires_grad=True)
        critics(obs, action, frozen=frozen).amin(0).sum().backward()
        slopes.append(action.grad)
        has_gradient = [parameter.grad is not None for parameter in critics.parameters()]
        assert all(has_gradient) if not frozen else not any(has_gradient)
        critics.zero_grad(set_to_none=True)
    assert slopes[0] is not None and slopes[1] is not None
    torch.testing.assert_close(slopes[0], slopes[1])


def test_log_std_is_bounded() -> None:
    actor = GaussianActor(SPACE, 2, **NETWORK)  # type: ignore[arg-type]
    with torch.no_grad():
        actor.head.bias[2:] = torch.tensor([1e3, -1e3])  # type: ignore[index, union-attr]
        _, log_std = actor(torch.zeros(1, 3))
    assert log_std.tolist() == [[2.0, -20.0]]


def small_trainer(**changes: object) -> SACTrainer:
    settings: dict[str, object] = dict(env_id="Pendulum-v1", hidden_sizes=[8, 8], batch_size=16)
    settings |= dict(learning_starts=20, buffer_size=1000, total_timesteps=1000)
    config = SACConfig(**settings | changes)
    seed_everything(1)
    return SACTrainer(config)


def test_one_update_of_the_trainer_is_the_equations() -> None:
    """The trainer's own numbers against the same update written out: order, signs, frozen parts and all."""
    trainer = small_trainer(learning_rate=1e-2)
    knobs = Controls.of(trainer.config)
    for step in range(20):
        trainer.gather(knobs.at(step))
    now = knobs.at(20).after(0)
    critics, actor = trainer.critics, trainer.agent.actor
    before = {name: value.clone() for name, value in trainer.target_critics.state_dict().items()}

    seed_everything(5)
    batch = {name: column.clone() for name, column in trainer.replay.sample(16, 0.99).items()}
    with torch.no_grad():
        mean, log_std = actor(batch["next_obs"])
        next_action, next_log_prob = squash(mean, log_std, torch.randn_like(mean))
        next_q = trainer.target_critics(batch["next_obs"], next_action)
        # α starts at exp(0) = 1.
        y = batch["reward"] + 0.99 * (torch.min(next_q[0], next_q[1]) - 1.0 * next_log_prob)
        q = critics(batch["obs"], batch["action"])
        expected = 0.5 * ((q[0] - y) ** 2).mean() + 0.5 * ((q[1] - y) ** 2).mean()
        mean, log_std = actor(batch["obs"])
        noise = torch.randn_like(mean)
        _, log_prob = squash(mean, log_std, noise)

    weights = trainer.critic_optimizer.parameters.clone()
    actor_weights = trainer.actor_optimizer.parameters.clone()
    seed_everything(5)
    metrics = trainer.update(now)
    assert metrics["critic_loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(-log_prob.mean().item(), rel=1e-5)
    # Adam's first step is the learning rate in the direction of the gradient's sign.
    assert (trainer.critic_optimizer.parameters - weights).abs().max().item() == pytest.approx(1e-2, rel=1e-3)
    assert (trainer.actor_optimizer.parameters - actor_weights).abs().max().item() == pytest.approx(
        1e-2, rel=1e-3
    )
    # The actor's loss is that of the critics after their own step, and so is its direction.
    updated = trainer.actor_optimizer.parameters.clone()
    trainer.actor_optimizer.parameters.copy_(actor_weights)
    action, log_prob = squash(*actor(batch["obs"]), noise)
    q = critics(batch["obs"], action)
    loss = (1.0 * log_prob - torch.min(q[0], q[1])).mean()
    assert metrics["actor_loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    slopes = torch.autograd.grad(loss, list(actor.parameters()))
    slope = torch.cat([part.reshape(-1) for part in slopes])
    clear = slope.abs() > 1e-5
    assert clear.float().mean() > 0.5
    torch.testing.assert_close(
        (updated - actor_weights)[clear], -1e-2 * slope[clear].sign(), rtol=1e-2, atol=0
    )
    trainer.actor_optimizer.parameters.copy_(updated)
    # The entropy of a fresh policy is above the target of -1, so α shrinks.
    assert trainer.temperature is not None
    assert trainer.temperature.log_ent_coef.item() == pytest.approx(-1e-2, rel=1e-3)
    for name, value in trainer.target_critics.state_dict().items():
        torch.testing.assert_close(value, 0.995 * before[name] + 0.005 * critics.state_dict()[name])


def test_updates_follow_the_replay_ratio_and_fractions_are_owed() -> None:
    trainer = small_trainer(num_envs=2, train_frequency=3, replay_ratio=0.25)
    assert trainer.updates_due(0.25) == 0, "before learning starts"
    trainer.gather(Controls.of(trainer.config).at(0))
    trainer.steps = 100
    # 6 steps · 0.25 = 1.5 updates an iteration.
    assert [trainer.updates_due(0.25) for _ in range(4)] == [1, 2, 1, 2]


def test_actions_are_stored_in_model_space_and_scaled_for_the_environment() -> None:
    trainer = small_trainer(env_id="probe/Target-v0")  # bounds [-1, 3]
    knobs = Controls.of(trainer.config)
    taken = []
    step = trainer.environments.lanes.step
    trainer.environments.lanes.step = lambda actions: taken.append(actions.copy()) or step(actions)  # type: ignore
    for i in range(60):
        trainer.gather(knobs.at(i))
    assert trainer.replay.action is not None
    slots = trainer.replay.ready[:60]
    stored = trainer.replay.action[slots].reshape(-1)
    assert -1 <= stored.min() < -0.8 and 0.8 < stored.max() <= 1
    np.testing.assert_allclose(np.concatenate(taken).reshape(-1), stored * 2 + 1, rtol=1e-5, atol=1e-6)


def test_ent_coef_is_learned_fixed_or_scheduled() -> None:
    assert small_trainer().temperature is not None
    fixed = small_trainer(ent_coef=0.3)
    assert fixed.temperature is None and Controls.of(fixed.config).values(0)["ent_coef"] == 0.3
    scheduled = SACConfig(
        env_id="Pendulum-v1", ent_coef_schedule={"type": "linear", "start": 0.4, "end": 0.1}
    )
    assert scheduled.ent_coef is None and Controls.of(scheduled).values(0)["ent_coef"] == 0.4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(ent_coef="auto", ent_coef_schedule="linear"), "ent_coef_schedule: ent_coef is auto"),
        (dict(ent_coef="auto", ent_coef_warmup_steps=10), "ent_coef_warmup_steps: ent_coef is auto"),
        (dict(entropy_coef="auto", entropy_coef_schedule="linear"), "auto"),
        (dict(ent_coef="automatic"), "ent_coef"),
        (dict(ent_coef=-0.1), "at least 0"),
        (dict(ent_coef=None), "must be auto or a number"),
        (dict(ent_coef=0.1, target_entropy=-1.0), "target_entropy would have no effect"),
        (dict(normalize_rewards=True), "normalize_rewards must be false"),
        (dict(precision="bf16"), "precision must be fp32"),
        (dict(tau=1.5), "at most 1"),
        (dict(buffer_size=2), "need a buffer_size of at least"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        small_trainer(**changes)
    assert "\n" not in str(caught.value)
