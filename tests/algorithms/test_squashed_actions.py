"""Actions squashed by tanh: their density against torch's, their entropy against integrals, acting and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference
from updates import warmed

from rl_training.algorithms.distributions import LARGEST, DiagonalGaussian, SquashedGaussian
from rl_training.errors import ConfigError
from rl_training.policies.actor_critic import ActorCriticPolicy

TINY: dict[str, Any] = dict(
    env_id="Pendulum-v1", total_timesteps=1000, num_envs=3, num_steps=16, hidden_sizes=[8], num_minibatches=1
)


def theirs(parameters: torch.Tensor) -> Any:
    mean, log_std = parameters.double().chunk(2, -1)
    normal = reference.Normal(mean, log_std.exp())
    return reference.Independent(
        reference.TransformedDistribution(normal, [reference.TanhTransform(cache_size=1)]), 1
    )


def test_the_density_is_torchs() -> None:
    torch.manual_seed(0)
    family, parameters = SquashedGaussian(2), 0.7 * torch.randn(50, 4)
    action = family.sample(parameters)
    expected = theirs(parameters).log_prob(action.double()).float()
    torch.testing.assert_close(family.log_prob(parameters, action), expected, atol=1e-4, rtol=1e-4)
    assert (action.abs() < 1).all()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-2.0, 0.4)])
def test_densities_sum_to_one_and_the_entropy_is_their_integral(mean: float, log_std: float) -> None:
    family, parameters = SquashedGaussian(1), torch.tensor([mean, log_std]).double()
    raw = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    action = raw.tanh()[:, None]
    inside = action.abs()[:, 0] < LARGEST
    log_prob = family.log_prob(parameters.expand(len(raw), 2), action)
    weight = log_prob.exp() * (1 - action[:, 0].square()) * (raw[1] - raw[0])  # da = (1 - tanh² u) du
    assert weight[inside].sum().item() == pytest.approx(1, abs=1e-5)
    expected = -(weight * log_prob)[inside].sum().item()
    assert family.entropy(parameters).item() == pytest.approx(expected, abs=1e-3)


def test_the_entropy_has_the_slopes_of_its_estimate_from_samples() -> None:
    torch.manual_seed(1)
    family, parameters = SquashedGaussian(2), torch.tensor([0.5, -1.0, -0.3, 0.2], requires_grad=True)
    (ours,) = torch.autograd.grad(family.entropy(parameters), parameters)
    mean, log_std = parameters.expand(1_000_000, 4).chunk(2, -1)
    raw = mean + log_std.exp() * torch.randn_like(mean)
    density = DiagonalGaussian(2).log_prob(parameters.expand(1_000_000, 4), raw)
    slope = (1 - raw.tanh().square()).log().sum(-1)
    (drawn,) = torch.autograd.grad((slope - density).mean(), parameters)
    torch.testing.assert_close(ours, drawn, atol=5e-3, rtol=0)
    assert ours[1] > 0  # a mean of -1 is moved to the middle, where more is left of the spread


def test_the_divergence_is_that_of_the_normals() -> None:
    torch.manual_seed(0)
    family, one, other = SquashedGaussian(1), torch.tensor([0.3, -0.5]), torch.tensor([0.0, -0.1])
    found = family.kl(one, other)
    assert torch.equal(found, DiagonalGaussian(1).kl(one, other))
    rows = one.expand(400_000, 2)
    action = family.sample(rows)
    drawn = (family.log_prob(rows, action) - family.log_prob(other.expand_as(rows), action)).mean()
    assert drawn.item() == pytest.approx(found.item(), abs=3e-3)


@pytest.mark.parametrize("mean", [30.0, -30.0, 8.0])
def test_where_tanh_is_one_all_stays_finite(mean: float) -> None:
    family, parameters = SquashedGaussian(1), torch.tensor([[mean, -1.0]], requires_grad=True)
    action = family.sample(parameters.detach())
    log_prob, entropy = family.log_prob_and_entropy(parameters, action)
    (slope,) = torch.autograd.grad((log_prob + entropy).sum(), parameters)
    assert log_prob.isfinite().all() and entropy.isfinite().all() and slope.isfinite().all()
    assert action.abs().item() <= LARGEST
    assert family.log_prob(parameters, torch.tensor([[1.0]])).isfinite().all()


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", dict(vectorization="sync")),
        ("ppo", dict(vectorization="compiled")),
        ("ppo", dict(vectorization="sync", state_dependent_std=True)),
        ("a2c", dict(vectorization="sync", hidden_sizes=[400, 400])),  # too large for acting without torch
        ("ppg", dict(vectorization="sync")),
    ],
)
def test_log_probabilities_of_the_update_are_those_of_acting(algo: str, settings: dict[str, Any]) -> None:
    known = {name: value for name, value in TINY.items() if algo != "a2c" or name != "num_minibatches"}
    trainer = warmed(algo, 1, **known | settings, squash_actions=True, log_std_init=0.5)
    rollout, _ = trainer.collect()
    action = rollout["action"].flatten(0, 1)
    inputs = trainer.agent.inputs(rollout["obs"]).flatten(0, 1)
    log_prob = trainer.agent.evaluate(inputs, action)[0]
    torch.testing.assert_close(log_prob, rollout["log_prob"].flatten(), atol=2e-5, rtol=1e-5)
    assert (action.abs() < 1).all() and action.abs().max() > 0.9
    trainer.close()


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo", "ppg", "recurrent_ppo"])
def test_squashed_policies_learn(algo: str) -> None:
    known = {name: value for name, value in TINY.items() if algo != "a2c" or name != "num_minibatches"}
    first, later = (warmed(algo, rounds, **known, squash_actions=True) for rounds in (0, 1))
    assert type(later.agent.family) is SquashedGaussian
    weights = [trainer.agent.network.actor_head.output.weight for trainer in (first, later)]
    assert not torch.equal(*weights)
    for trainer in (first, later):
        trainer.close()


def test_compiled_code_knows_them() -> None:
    trainer = warmed("ppo", 0, **TINY, squash_actions=True)
    assert trainer.surrogate.explained == "compiled" and trainer.paths()["rollouts"] == "compiled"
    trainer.close()


def test_greedy_actions_are_the_tanh_of_the_mean() -> None:
    trainer = warmed("ppo", 0, **TINY, squash_actions=True)
    agent = trainer.agent
    torch.nn.init.constant_(agent.network.actor_head.output.bias, 2.0)
    obs = np.zeros((3, 3), np.float32)
    assert agent.act(obs, (), explore=False)[0]["action"] == pytest.approx(np.tanh(2.0))
    assert agent.greedy(agent.inputs(obs), ())[0].detach().numpy() == pytest.approx(np.tanh(2.0))
    trainer.close()


def test_actions_without_bounds_are_refused() -> None:
    made = dict(
        normalize_observations=False, device="cpu", hidden_sizes=[4], activation="tanh", log_std_init=0.0
    )
    with pytest.raises(ConfigError, match="squash_actions needs bounds"):
        ActorCriticPolicy(
            spaces.Box(-1, 1, (2,)),
            spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)),
            squash_actions=True,
            **made,
        )
