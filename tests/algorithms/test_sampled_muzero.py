"""Sampled MuZero: its policy and its loss by hand, searches over vectors whose answers are known, and its replay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.sampled_muzero import gaussian, sampled_policy_loss
from rl_training.data.episodes import EpisodeReplay
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies.sampling import SAMPLES, SampledModel
from rl_training.policies.search import GumbelSearchPolicy, SearchPolicy
from rl_training.search import Root, muzero_search
from rl_training.state.seeding import seed_everything

SIZES: dict[str, Any] = dict(latent_size=6, hidden_sizes=(8,), support_size=7, residual_blocks=1)
SIZES |= dict(activation="relu", image_encoder="nature")
SEEN = spaces.Box(-1, 1, (3,), np.float32)
COMMON: dict[str, Any] = dict(temperature=0.0, root_exploration_fraction=0.0, dirichlet_alpha=0.3, gamma=0.9)
PUCT = COMMON | dict(num_simulations=64, pb_c_init=1.25, pb_c_base=19652)
GUMBEL = COMMON | dict(num_simulations=64, max_considered_actions=16, c_visit=50, c_scale=0.1)


def test_the_policy_by_hand() -> None:
    """From zeros μ = 0 and σ = log(1 + e) + 0.1; a mean stays within ±5 and a scale above 0.1."""
    mean, log_std = gaussian(torch.zeros(2, 6)).chunk(2, -1)
    assert not mean.any() and mean.shape == (2, 3)
    torch.testing.assert_close(log_std.exp(), torch.full((2, 3), math.log(1 + math.e) + 0.1))
    mean, log_std = gaussian(torch.tensor([1e3, -1e3])).chunk(2, -1)
    assert mean.item() == 5 and log_std.exp().item() == pytest.approx(0.1)
    assert gaussian(torch.tensor([0.01, 0.0]))[0].item() == pytest.approx(0.01, rel=1e-4)


def by_torch(outputs: Tensor, target: Tensor, samples: Tensor) -> Tensor:
    mean, log_std = gaussian(outputs).chunk(2, -1)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    policy = Independent(squashed, 1)
    shares = zip(target.unbind(1), samples.unbind(1), strict=True)
    return -torch.stack([share * policy.log_prob(action) for share, action in shares]).sum(0)


def test_the_loss_and_its_gradient_are_those_of_torchs_distributions() -> None:
    seed_everything(1)
    outputs = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    target, samples = torch.rand(5, 3).double().softmax(-1), torch.randn(5, 3, 2).double().tanh()
    loss, expected = sampled_policy_loss(outputs, target, samples), by_torch(outputs, target, samples)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    (by_autograd,) = torch.autograd.grad(expected.sum(), outputs)
    torch.testing.assert_close(gradient, by_autograd)
    assert torch.autograd.gradcheck(lambda x: sampled_policy_loss(x, target, samples), outputs)


def test_where_a_search_prefers_nothing_the_policy_stays() -> None:
    """E[∇ log π(a)] = 0 for a drawn from π; with all weight on actions above the mean the mean goes up."""
    seed_everything(1)
    outputs = torch.tensor([[0.3, -0.2]], requires_grad=True)
    mean, log_std = gaussian(outputs.detach()).chunk(2, -1)
    samples = (mean + log_std.exp() * torch.randn(1, 200_000, 1)).tanh()
    even = torch.full((1, 200_000), 1 / 200_000)
    (gradient,) = torch.autograd.grad(sampled_policy_loss(outputs, even, samples).sum(), outputs)
    assert gradient.abs().max() < 0.01
    above = (samples[..., 0] > mean.tanh()).float()
    (gradient,) = torch.autograd.grad(
        sampled_policy_loss(outputs, above / above.sum(), samples).sum(), outputs
    )
    assert gradient[0, 0] < -0.3


def agent(kind: Any, num_samples: int, settings: dict[str, Any], **more: Any) -> SearchPolicy:
    seed_everything(2)
    sizes = dict(SIZES, two_players=False, normalize_observations=False, device="cpu", most_simulations=500)
    action = spaces.Box(-1, 1, (1,), np.float32)
    return kind(SEEN, action, settings=settings, sampled_actions=num_samples, **sizes, **more)


class Bandit(MuZeroNetwork):
    """One step: the reward is -(a - 0.4)², after it nothing more is earned."""

    def recurrent(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        zeros, begins = latent.new_zeros(len(latent)), latent[:, 0] < 5
        reward = -((action[:, 0] - 0.4) ** 2) * begins
        return reward, latent.new_zeros(len(latent), 2), zeros, latent + 10


@pytest.mark.parametrize(
    ("kind", "settings", "more"),
    [(SearchPolicy, PUCT, {}), (GumbelSearchPolicy, GUMBEL, {"rescale_by": "tree"})],
)
def test_the_best_of_the_samples_is_found(kind: Any, settings: dict[str, Any], more: dict[str, Any]) -> None:
    policy = agent(kind, 16, settings, **more)
    policy.network = Bandit(SEEN, 2, dimensions=1, **SIZES)
    plan = policy.plan(np.zeros((50, 3), np.float32))
    assert plan.samples is not None and plan.samples.shape == (50, 16, 1) and plan.action.shape == (50, 1)
    errors = np.abs(plan.samples[..., 0] - 0.4)
    chosen = np.abs(plan.action[:, 0] - 0.4)
    np.testing.assert_allclose(chosen, errors.min(1), atol=0.05)
    # What is to be learned is nearer to the best action than what was drawn.
    learned = (plan.policy * errors).sum(1)
    assert (learned < errors.mean(1)).all() and learned.mean() < 0.65 * errors.mean()
    np.testing.assert_allclose(plan.policy.sum(1), 1, rtol=1e-5)


def test_the_improved_policy_of_samples_by_hand() -> None:
    """All priors are 1/K, so π'(aₖ) ∝ exp((50 + most visits) · 0.1 · q̂(aₖ)), q̂ scaled by the tree's range.

    Every action is worth one thing here, its reward, whatever comes after it.
    """
    policy = agent(GumbelSearchPolicy, 4, GUMBEL | dict(num_simulations=4), rescale_by="tree")
    policy.network = Bandit(SEEN, 2, dimensions=1, **SIZES)
    plan = policy.plan(np.zeros((20, 3), np.float32))
    assert plan.samples is not None
    reward = -((plan.samples[..., 0].astype(np.float64) - 0.4) ** 2)
    # With four simulations for four actions each is visited once.
    scaled = (reward - reward.min(1, keepdims=True)) / np.maximum(np.ptp(reward, 1), 0.01)[:, None]
    shares = np.exp(5.1 * scaled)
    np.testing.assert_allclose(plan.policy, shares / shares.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(plan.value, reward.sum(1) / 5, atol=1e-5)


def test_samples_that_are_the_same_everywhere_are_a_discrete_set() -> None:
    """With one policy at all nodes, and the same draws, edge k is action k of a network of K actions."""
    seed_everything(4)
    vectors = MuZeroNetwork(SEEN, 4, dimensions=2, **SIZES)
    torch.nn.init.normal_(vectors.prediction[-1].weight[4:])
    model = SampledModel(vectors, 5, repeats=True)
    obs = torch.randn(7, 3)
    with torch.no_grad():
        prior, value, latent = model.initial(obs)
        model = SampledModel(vectors, 5, repeats=True)
        model._with_samples = lambda state, outputs: {"latent": state, SAMPLES: latent[SAMPLES]}  # type: ignore
        indices = MuZeroNetwork(SEEN, 5, **SIZES)
        for name, part in vectors.state_dict().items():
            if name == "dynamics.action.weight":
                indices.dynamics.action.weight.copy_(latent[SAMPLES][0] @ part.T)
            elif name.startswith(("prediction.2", "prediction.3")):
                rows = torch.zeros_like(indices.state_dict()[name])
                rows[5:] = part[4:]
                indices.load_state_dict({name: rows}, strict=False)
            elif name != "atoms":
                indices.load_state_dict({name: part}, strict=False)
    assert not prior.any()

    def search(network: Any, root: Root) -> Any:
        def recurrent(state: Any, edge: Tensor) -> Any:
            reward, logits, value, following = network.recurrent(state, edge)
            return reward, torch.full_like(value, 0.9), logits, value, following

        return muzero_search(root, recurrent, num_simulations=30)

    with torch.no_grad():
        found, expected = (
            search(model, Root(prior, value, latent)),
            search(indices, Root(*indices.initial(obs))),
        )
    assert torch.equal(found.visit_counts, expected.visit_counts)
    torch.testing.assert_close(found.q_values, expected.q_values, rtol=1e-4, atol=1e-4)


def test_draws_differ_by_row_node_and_search_unless_they_are_to_repeat() -> None:
    """Those that repeat have the mode first, so that the network's own choice is among what a greedy search tries."""
    seed_everything(5)
    network = MuZeroNetwork(SEEN, 4, dimensions=2, **SIZES)
    torch.nn.init.normal_(network.prediction[-1].weight)
    obs = torch.randn(1, 3).expand(6, 3)
    with torch.no_grad():
        model = SampledModel(network, 8, repeats=False)
        first, again = model.initial(obs)[2][SAMPLES], model.initial(obs)[2][SAMPLES]
        below = model.recurrent(model.initial(obs)[2], torch.zeros(6, dtype=torch.int64))[3][SAMPLES]
        assert len({tuple(row.flatten().tolist()) for row in torch.cat([first, again, below])}) == 18
        one, other = (SampledModel(network, 8, repeats=True).initial(obs)[2][SAMPLES] for _ in range(2))
        assert torch.equal(one, other)
        torch.testing.assert_close(one, one[:1].expand_as(one))
        mean, _ = gaussian(network.initial(obs)[0]).chunk(2, -1)
        torch.testing.assert_close(one[:, 0], mean.tanh())


def test_a_greedy_action_is_a_function_of_the_observation() -> None:
    policy = agent(SearchPolicy, 8, PUCT)
    torch.nn.init.normal_(policy.network.prediction[-1].weight)
    obs = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    greedy = policy.act(obs, (), explore=False)[0]["action"]
    np.testing.assert_array_equal(greedy, policy.act(obs, (), explore=False)[0]["action"])
    np.testing.assert_allclose(greedy[4:5], policy.act(obs[4:5], (), explore=False)[0]["action"], atol=1e-5)
    drawn = policy.act(obs, (), explore=True)[0]["action"]
    assert greedy.shape == drawn.shape == (9, 1) and drawn.dtype == np.float32
    assert not np.array_equal(drawn, policy.act(obs, (), explore=True)[0]["action"])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_planning_without_torch_is_planning_with_torch(activation: str) -> None:
    network = MuZeroNetwork(SEEN, 6, dimensions=3, **SIZES | dict(activation=activation))
    torch.nn.init.normal_(network.prediction[-1].weight)
    assert network.small is not None
    with torch.no_grad():
        states = [(network.represent(torch.randn(n, 3)), torch.rand(n, 3) * 2 - 1) for n in (1, 5, 16, 37)]
        fast = [network.recurrent(*each) for each in states]
        network.small = None
        for each, found in zip(states, fast, strict=True):
            assert found[1].shape == (len(each[0]), 6)
            for one, other in zip(found, network.recurrent(*each), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_planning_with_prefixes_without_torch_is_planning_with_torch() -> None:
    prefixes: dict[str, Any] = dict(value_prefix=True, prefix_size=5, prefix_horizon=2)
    network = EfficientZeroNetwork(
        SEEN, 6, dimensions=3, **SIZES, **prefixes, consistency=False, projection_size=4
    )
    torch.nn.init.normal_(network.prediction[-1].weight)
    small, action = network.small, torch.rand(2, 21, 3) * 2 - 1
    assert small is not None
    with torch.no_grad():
        found = expected = network.initial(torch.randn(21, 3))[2]
        for step in action:
            network.small = small
            *fast, found = network.recurrent(found, step)
            network.small = None
            *slow, expected = network.recurrent(expected, step)
            for one, other in zip((*fast, *found.values()), (*slow, *expected.values()), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_replay_keeps_the_samples_beside_their_policy() -> None:
    """And acts at random beyond an episode's end, within the bounds."""
    obs = np.zeros((1, 2), np.float32)
    replay = EpisodeReplay(200, obs, num_actions=3, dimensions=2, unroll_steps=3, td_steps=2)
    for t in range(30):
        rows = np.full((1, 3, 2), t, np.float32) + np.arange(3, dtype=np.float32)[None, :, None] / 10
        told = dict(policy=np.full((1, 3), t, np.float32), samples=rows)
        ends = np.array([t % 5 == 4])
        replay.add(rows[:, 0], np.ones(1), ends, np.zeros(1, bool), obs + t, obs, **told)
    seed_everything(1)
    batch = replay.sample(64, 0.9)
    assert batch["action"].shape == (3, 64, 2) and batch["samples"].shape == (4, 64, 3, 2)
    acted = batch["acted"] > 0
    torch.testing.assert_close(batch["samples"][acted][:, 0, 0], batch["policy"][acted][:, 0])
    torch.testing.assert_close(batch["samples"][:-1][acted[:-1]][:, 0], batch["action"][acted[:-1]])
    beyond = batch["action"][~acted[:-1]]
    assert len(beyond) > 20 and beyond.abs().max() < 1 and len(beyond.unique()) == beyond.numel()
    assert {"policy", "samples"} <= replay.state_dict()["slots"].keys()


def test_a_network_of_ones_own_that_knows_observations_alone_begins_a_search() -> None:
    class Own(MuZeroNetwork):
        def initial(self, obs: Any) -> Any:  # type: ignore[override]
            return super().initial(obs)

    network = Own(SEEN, 4, dimensions=2, **SIZES)
    with torch.no_grad():
        prior, value, latent = SampledModel(network, 8, repeats=True).initial(torch.randn(6, 3))
    assert prior.shape == (6, 8) and value.shape == (6,) and latent[SAMPLES].shape == (6, 8, 2)
