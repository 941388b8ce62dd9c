"""TRPO's pieces against dense linear algebra, and its update against what it promises."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical
from rl_training.algorithms.trpo import (
    conjugate_gradient,
    fisher_vector_product,
    flat_gradient,
    line_search,
    step_length,
    surrogate,
)
from rl_training.networks.actor_critic import ActionHead
from rl_training.runtime.controls import Controls
from rl_training.runtime.trpo_trainer import TRPOConfig, TRPOTrainer
from rl_training.state.seeding import seed_everything

FAMILIES = [Categorical(3), MultiCategorical((2, 3)), Bernoulli(2), DiagonalGaussian(2)]


class TinyPolicy(nn.Module):
    def __init__(self, family):
        super().__init__()
        self.hidden, self.head = nn.Linear(2, 3), ActionHead(3, family, -0.5)

    def forward(self, obs):
        return self.head(self.hidden(obs).tanh(), obs)


def tiny_policy(family):
    torch.manual_seed(0)
    policy = TinyPolicy(family).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return policy, torch.randn(200, 2, dtype=torch.float64)


def fisher_of(family, policy, obs):
    """E_s[Jᵀ M J] made explicitly: J the Jacobian of the outputs, M the Fisher matrix of the family itself.

    M = Σₐ p(a) ∇log p ∇log pᵀ by enumeration or, for normals, 1/σ² for the means and 2 for log σ.
    """
    parameters = list(policy.parameters())
    total = 0
    for row in obs:
        output = policy(row[None])[0]
        jacobian = torch.stack([flat_gradient(part, parameters) for part in output])
        logits = output.detach()
        if isinstance(family, DiagonalGaussian):
            inner = torch.diag(torch.cat([(-2 * logits[2:]).exp(), torch.full((2,), 2.0)])).double()
        else:
            sizes = {Categorical: [3], MultiCategorical: [2, 3]}.get(type(family))
            if sizes is None:
                actions = torch.cartesian_prod(torch.arange(2), torch.arange(2))
            else:
                actions = torch.cartesian_prod(*[torch.arange(n) for n in sizes])
            inner = 0
            for action in actions:
                free = logits.clone().requires_grad_()
                log_prob = family.log_prob(free, action)
                (slope,) = torch.autograd.grad(log_prob, free)
                inner = inner + log_prob.exp().detach() * torch.outer(slope, slope)
        total = total + jacobian.T @ inner @ jacobian
    return total / len(obs)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_fisher_vector_products_are_those_of_the_explicit_matrix(family):
    policy, obs = tiny_policy(family)
    obs = obs[:20]
    parameters = list(policy.parameters())
    new = policy(obs)
    kl = family.kl(new.detach(), new).mean()
    assert kl.item() == pytest.approx(0, abs=1e-12)
    kl_gradient = flat_gradient(kl, parameters, differentiable=True)
    torch.testing.assert_close(kl_gradient, torch.zeros_like(kl_gradient), atol=1e-12, rtol=0)
    matrix = fisher_of(family, policy, obs)
    for _ in range(3):
        vector = torch.randn(len(matrix), dtype=torch.float64)
        product = fisher_vector_product(kl_gradient, parameters, vector, damping=0.1)
        torch.testing.assert_close(product, matrix @ vector + 0.1 * vector, rtol=1e-5, atol=1e-6)


def test_conjugate_gradient_is_a_direct_solve():
    torch.manual_seed(0)
    root = torch.randn(12, 12, dtype=torch.float64)
    matrix, target = root @ root.T + 0.1 * torch.eye(12), torch.randn(12, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, target, iterations=60, tolerance=1e-24)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, target), rtol=1e-6, atol=1e-8)
    # n steps are enough for n dimensions in exact arithmetic, and every step brings the energy down.
    energy = [
        (0.5 * x @ matrix @ x - target @ x).item()
        for x in (conjugate_gradient(lambda v: matrix @ v, target, n) for n in range(8))
    ]
    assert energy[0] == 0 and energy == sorted(energy, reverse=True)


def test_conjugate_gradient_in_float32_and_with_nothing_to_solve():
    torch.manual_seed(0)
    root = torch.randn(12, 12)
    matrix, target = root @ root.T + torch.eye(12), torch.randn(12)
    solution = conjugate_gradient(lambda v: matrix @ v, target, iterations=30)
    torch.testing.assert_close(matrix @ solution, target, rtol=1e-3, atol=1e-3)
    assert conjugate_gradient(lambda v: matrix @ v, torch.zeros(12), 10).tolist() == [0.0] * 12


def test_conjugate_gradient_stops_where_there_is_no_curvature():
    assert conjugate_gradient(torch.zeros_like, torch.ones(3), 10).tolist() == [0.0] * 3
    # It sees the first entry alone: after that is solved, what is left of the target lies where A is 0.
    matrix = torch.diag(torch.tensor([4.0, 0.0]))
    solution = conjugate_gradient(lambda v: matrix @ v, torch.tensor([8.0, 0.0]), 10)
    assert solution.tolist() == [2.0, 0.0]
    assert conjugate_gradient(lambda v: matrix @ v, torch.tensor([8.0, 1.0]), 10).isfinite().all()
    assert conjugate_gradient(torch.neg, torch.ones(2), 10).tolist() == [0.0, 0.0]


def test_the_step_is_as_long_as_the_quadratic_model_allows():
    matrix = torch.diag(torch.tensor([2.0, 8.0]))
    direction = torch.tensor([3.0, 1.0])
    step = direction * step_length(direction, matrix @ direction, 0.01)
    assert (0.5 * step @ matrix @ step).item() == pytest.approx(0.01)
    assert step_length(torch.zeros(2), torch.zeros(2), 0.01) == 0
    assert step_length(direction, -direction, 0.01) == 0  # a curvature that is no curvature


def test_the_line_search_takes_the_first_step_that_is_allowed():
    tried = []

    def measure(fraction):
        tried.append(fraction)
        return {1.0: (5.0, 0.02), 0.5: (-1.0, 0.01), 0.25: (0.5, 0.01), 0.125: (0.6, 0.005)}[fraction]

    assert line_search(measure, max_kl=0.01, shrink=0.5, tries=4) == (0.25, 0.5, 0.01)
    assert tried == [1.0, 0.5, 0.25]
    assert line_search(measure, max_kl=0.001, shrink=0.5, tries=4) == (0.0, 0.0, 0.0)
    nan = float("nan")
    assert line_search(lambda fraction: (nan, nan), max_kl=1, shrink=0.5, tries=3) == (0.0, 0.0, 0.0)


def test_the_surrogate_by_hand():
    log_prob, old = torch.log(torch.tensor([0.5, 0.2])), torch.log(torch.tensor([0.25, 0.4]))
    value = surrogate(log_prob, old, torch.tensor([1.0, 4.0]), torch.tensor([0.3, 0.5]), 0.1)
    assert value.item() == pytest.approx((2 * 1 + 0.5 * 4) / 2 + 0.1 * 0.4)


def make_trainer(env_id, **changes):
    settings = dict(num_envs=4, num_steps=64, hidden_sizes=[16], cg_damping=0.01, update_epochs=2)
    config = TRPOConfig(env_id=env_id, total_timesteps=10**6, **settings | dict(num_minibatches=4) | changes)
    seed_everything(1)
    return TRPOTrainer(config)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "probe/Coins-v0", "probe/TwoChoices-v0"])
def test_every_accepted_step_keeps_the_trust_region_and_improves_the_surrogate(env_id):
    """Measured apart from the trainer, from the weights before and after each update."""
    trainer = make_trainer(env_id, normalize_observations=True, ent_coef=0.01)
    network, family = trainer.agent.network, trainer.agent.family
    accepted = []
    for _ in range(12):
        now = Controls.of(trainer.config).at(0).after(0)
        rollout, metrics = trainer.collect()
        batch = trainer.flat_batch(rollout, trainer.estimate_advantages(rollout, now, metrics))
        before = trainer.theta.clone()
        with torch.no_grad():
            old = network.policy(batch["obs"])
        parts = trainer.improve_policy(batch, now)
        with torch.no_grad():
            new = network.policy(batch["obs"])
            values = [
                surrogate(
                    family.log_prob(p, batch["action"]),
                    batch["log_prob"],
                    batch["advantage"],
                    family.entropy(p),
                    0.01,
                )
                for p in (old, new)
            ]
            kl = family.kl(old, new).mean().item()
        moved = not torch.equal(before, trainer.theta)
        assert moved == bool(parts["step_fraction"])
        assert kl <= 0.01 + 1e-7
        assert kl == pytest.approx(parts["kl"], abs=1e-6)
        if moved:
            accepted.append(kl)
            assert values[1] > values[0]
    assert len(accepted) >= 10
    assert np.median(accepted) > 0.003  # the region is used, not only kept


def test_an_update_that_is_given_up_changes_nothing():
    trainer = make_trainer("CartPole-v1", line_search_tries=1, target_kl=1.0)
    now = Controls.of(trainer.config).at(0).after(0)
    rollout, metrics = trainer.collect()
    batch = trainer.flat_batch(rollout, trainer.estimate_advantages(rollout, now, metrics))
    batch["advantage"] = torch.zeros_like(batch["advantage"])  # nothing can improve
    before = trainer.theta.clone()
    parts = trainer.improve_policy(batch, now)
    assert parts["step_fraction"] == 0 and torch.equal(before, trainer.theta)


def test_fitting_the_value_function_leaves_the_policy_alone():
    trainer = make_trainer("CartPole-v1", target_kl=0.0, learning_rate=0.1)
    before = trainer.theta.clone()
    value = trainer.agent.value(np.zeros((1, 4), np.float32), ())
    trainer.iterate(Controls.of(trainer.config).at(0))
    assert torch.equal(before, trainer.theta)
    assert trainer.agent.value(np.zeros((1, 4), np.float32), ()) != value
