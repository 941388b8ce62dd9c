"""GAIL's equations against numbers worked out by hand, and what must hold for every discriminator."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.gail import (
    REWARDS,
    discriminator_answers,
    discriminator_loss,
    end_reward,
    gradient_penalty,
    interpolate,
)
from rl_training.data.imitation import draw, time_after_ends
from rl_training.envs.spaces import ActionCodec
from rl_training.networks.discriminator import Discriminator, SpectralLinear
from rl_training.runtime.gail_trainer import GAILTrainer

LOG3, LOG4 = math.log(3), math.log(4)


def loss_of_pairs(expert: Tensor, agent: Tensor) -> Tensor:
    """Where nobody ends an episode, the absorbing state counts nothing."""
    return discriminator_loss(expert, agent, torch.tensor([7.0]), 0.0, 0.0)


def test_the_loss_by_hand() -> None:
    """Logits log 3 and -log 3 are D = 3/4 and 1/4."""
    expert, agent = torch.tensor([LOG3, 0.0]), torch.tensor([-LOG3, LOG3, LOG3])
    parts = discriminator_answers(expert, agent)
    # -(log 3/4 + log 1/2) / 2 for the expert; -(log 3/4 + 2 log 1/4) / 3 for the agent, in which 1 - D counts.
    by_hand = (math.log(4 / 3) + math.log(2)) / 2 + (math.log(4 / 3) + 2 * LOG4) / 3
    assert loss_of_pairs(expert, agent).item() == pytest.approx(by_hand, abs=1e-6)
    assert parts["discriminator_loss"].item() == pytest.approx(by_hand, abs=1e-6)
    # The expert: one right and one undecided, 3/4; the agent: one of three.
    assert parts["discriminator_accuracy"].item() == pytest.approx((3 / 4 + 1 / 3) / 2)
    unsure = 0.75 * math.log(4 / 3) + 0.25 * LOG4  # the entropy of (3/4, 1/4)
    assert parts["discriminator_entropy"].item() == pytest.approx(
        ((unsure + math.log(2)) / 2 + unsure) / 2, abs=1e-6
    )


def test_the_loss_is_the_cross_entropy_of_labels() -> None:
    expert, agent = torch.randn(7), torch.randn(7)
    labels = torch.cat([torch.ones(7), torch.zeros(7)])
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(torch.cat([expert, agent]), labels)
    assert loss_of_pairs(expert, agent).item() == pytest.approx(2 * wanted.item(), rel=1e-5)


def test_the_loss_of_the_absorbing_state_by_hand() -> None:
    """The expert spends half of its time there and the agent a fifth; all logits are log 3, D = 3/4."""
    logit = torch.tensor([LOG3])
    right, wrong = math.log(4 / 3), LOG4
    by_hand = 2 / (0.5 + 0.8) * (0.5 * right + 0.8 * wrong) + 0.5 * right + 0.2 * wrong
    assert discriminator_loss(logit, logit, logit, 0.5, 0.2).item() == pytest.approx(by_hand, abs=1e-6)


def test_the_best_discriminator_knows_the_shares_of_time() -> None:
    """With one pair for both, the best logits are log (1 - w_e) / (1 - w_π) there, and log w_e / w_π after the end."""
    pair = torch.tensor([math.log(0.5 / 0.8)], requires_grad=True)
    after = torch.tensor([math.log(0.5 / 0.2)], requires_grad=True)
    discriminator_loss(pair, pair, after, 0.5, 0.2).backward()
    assert pair.grad is not None and after.grad is not None
    assert pair.grad.item() == pytest.approx(0, abs=1e-6)
    assert after.grad.item() == pytest.approx(0, abs=1e-6)


def test_its_gradient_pulls_the_two_sides_apart() -> None:
    expert, agent = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    loss_of_pairs(expert, agent).backward()
    assert expert.grad is not None and agent.grad is not None
    assert expert.grad.tolist() == [-0.25, -0.25]
    assert agent.grad.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("form", "rewards"),
    [
        # D = 1/4, 1/2, 3/4
        ("positive", [math.log(4 / 3), math.log(2), LOG4]),  # -log(1 - D)
        ("negative", [-LOG4, -math.log(2), -math.log(4 / 3)]),  # log D
        ("logit", [-LOG3, 0.0, LOG3]),  # log D - log(1 - D)
    ],
)
def test_reward_forms_by_hand(form: str, rewards: list[float]) -> None:
    logits = torch.tensor([-LOG3, 0.0, LOG3])
    assert REWARDS[form](logits).tolist() == pytest.approx(rewards, abs=1e-6)
    assert torch.isfinite(REWARDS[form](torch.tensor([-1e4, 1e4]))).all()


def test_the_logit_is_the_sum_of_the_other_two() -> None:
    logits = torch.linspace(-5, 5, 11)
    assert torch.allclose(REWARDS["positive"](logits) + REWARDS["negative"](logits), logits, atol=1e-6)


@pytest.mark.parametrize(("target", "penalty"), [(1.0, (16 + 144) / 2), (0.0, (25 + 169) / 2)])
def test_the_gradient_penalty_by_hand(target: float, penalty: float) -> None:
    """Slopes (3, 4) and (5, 12) have the lengths 5 and 13."""
    slope = torch.tensor([[3.0, 4.0], [5.0, 12.0]])
    assert gradient_penalty(slope, target).item() == pytest.approx(penalty)


def test_the_gradient_penalty_teaches_the_weights() -> None:
    """d/dw (|w| - 1)² = 2 (|w| - 1) w / |w|, the slope of f = w·x being w: 2 · 4 · (3, 4) / 5."""
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    gradient_penalty(weight.expand(6, 2), 1.0).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([4.8, 6.4])


def test_the_slope_of_a_network_of_ones_own_is_the_same() -> None:
    """Through torch, where a layer may be anything, and with gradients for the penalty as well."""
    made = network(hidden_sizes=(8,))
    torch.nn.init.normal_(made.output.weight)
    inputs, found = torch.randn(9, 6), []
    for kind in (Discriminator, type("Own", (Discriminator,), {})):
        made.__class__ = kind
        penalty = gradient_penalty(made.slope(inputs), 1.0)
        weights = [made.hidden[0].weight, made.output.weight]
        found.append([penalty.detach(), *torch.autograd.grad(penalty, weights)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 5)])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_the_slope_written_out_is_the_gradient(hidden_sizes: tuple[int, ...], spectral_norm: bool) -> None:
    """And so is its own gradient, through a penalty, in every parameter."""
    made = network(hidden_sizes=hidden_sizes, spectral_norm=spectral_norm)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for _ in range(100):  # until the power method stands still, since each pass moves it
        made(torch.zeros(1, 6))
    inputs = torch.randn(9, 6, requires_grad=True)
    (by_torch,) = torch.autograd.grad(made(inputs).sum(), inputs, create_graph=True)
    by_hand = made.slope(inputs.detach())
    assert torch.allclose(by_hand.expand_as(by_torch), by_torch, atol=1e-5)
    weights = [parameter for name, parameter in made.named_parameters() if "weight" in name]
    one, two = (
        torch.autograd.grad(gradient_penalty(slope, 1.0), weights, retain_graph=True)
        for slope in (by_hand, by_torch)
    )
    for mine, theirs in zip(one, two, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_the_logits_for_a_loss_have_the_gradient_of_the_plain_ones() -> None:
    made = network(hidden_sizes=(8, 5))
    torch.nn.init.normal_(made.output.weight)
    inputs, gradients = torch.randn(9, 6), []
    for logits in (made(inputs), made.for_loss(inputs)):
        made.zero_grad()
        logits.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in made.parameters()])
    assert made.stack is not None and network(spectral_norm=True).stack is None
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_a_constant_discriminator_has_a_penalty_and_no_nan() -> None:
    made = network()
    penalty = gradient_penalty(made.slope(torch.randn(5, 6)), 1.0)
    assert penalty.item() == pytest.approx(1.0, abs=1e-5)
    penalty.backward()
    assert all(torch.isfinite(part.grad).all() for part in made.parameters() if part.grad is not None)


def test_points_between_expert_and_agent_lie_on_their_lines() -> None:
    expert, agent = torch.randn(50, 3), torch.randn(50, 3)
    between = interpolate(expert, agent)
    share = (between - agent) / (expert - agent)
    assert torch.allclose(share, share[:, :1].expand(-1, 3), atol=1e-3)
    assert share.min() > -1e-3 and share.max() < 1 + 1e-3 and share[:, 0].std() > 0.1


def test_what_follows_an_end_is_a_geometric_series() -> None:
    assert end_reward(2.0, 0.9) == pytest.approx(sum(2.0 * 0.9**k for k in range(1, 500)))
    assert end_reward(-1.0, 0.5) == -1.0
    assert end_reward(3.0, 0.0) == 0.0


def network(**changes: object) -> Discriminator:
    settings: dict = dict(hidden_sizes=(8,), image_encoder="nature", spectral_norm=False)
    return Discriminator(
        spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2, start=5), **settings | changes
    )


def test_an_untrained_discriminator_is_one_half_everywhere() -> None:
    made = network()
    inputs = made.inputs(torch.randn(3, 3), torch.tensor([0, 1, 1]))
    assert made(inputs).tolist() == [0.0] * 3
    assert inputs.shape == (3, 6)
    assert inputs[:, 3:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert made.absorbing().tolist() == [[0, 0, 0, 0, 0, 1]]
    assert made(made.absorbing()).item() == 0.0


def test_a_spectrally_normalised_layer_stretches_nothing() -> None:
    layer = SpectralLinear(5, 7)
    torch.nn.init.normal_(layer.weight, std=3.0)
    for _ in range(200):  # each pass follows the largest singular value a little further
        layer(torch.zeros(1, 5))
    effective = (layer(torch.eye(5)) - layer.bias).detach().t()
    assert torch.linalg.matrix_norm(effective, 2).item() == pytest.approx(1.0, abs=1e-3)
    small = SpectralLinear(5, 7)
    torch.nn.init.normal_(small.weight, std=0.01)
    assert torch.equal(
        small(torch.eye(5)), torch.nn.functional.linear(torch.eye(5), small.weight, small.bias)
    )
    before = layer.direction.clone()
    with torch.no_grad():
        layer(torch.zeros(1, 5))
    assert torch.equal(layer.direction, before)  # rewards read the discriminator and must not move it


def test_pairs_are_drawn_evenly() -> None:
    np.random.seed(0)
    rows = draw({"obs": np.arange(60.0)[:, None], "action": np.arange(60), "ends": 2.0}, 12_000)
    assert np.bincount(rows["action"], minlength=60).min() > 120  # 200 expected of each
    assert (rows["obs"][:, 0] == rows["action"]).all()


def test_the_time_after_ends() -> None:
    pairs = {"obs": np.zeros((60, 1)), "action": np.zeros(60), "ends": 2.0}
    assert time_after_ends(pairs, 20.0) == pytest.approx(40 / 100)
    assert time_after_ends(pairs, 0.0) == 0.0
    assert time_after_ends(pairs | {"ends": 0.0}, 20.0) == 0.0


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3, start=2), np.array([2, 4, 3])),
        (spaces.MultiDiscrete([2, 3]), np.array([[0, 2], [1, 1]])),
        (spaces.MultiBinary(3), np.array([[0, 1, 1]], np.int8)),
        (spaces.Box(-1, np.array([3, 9], np.float32)), np.array([[-1, 9], [1, 0.5]], np.float32)),
        (spaces.Box(-np.inf, np.inf, (1,)), np.array([[42.0]], np.float32)),
        (spaces.Box(-2, 2, (2, 2)), np.zeros((1, 2, 2), np.float32)),
    ],
)
def test_actions_go_to_model_space_and_back(space: spaces.Space, actions: np.ndarray) -> None:
    codec = ActionCodec(space)
    model = codec.to_model(actions)
    assert np.allclose(codec.to_env(model), actions, atol=1e-6)
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all():
        assert np.abs(model).max() <= 1


@pytest.mark.parametrize("learns", [False, True], ids=["inputs that are fixed", "inputs that are learned"])
def test_batches_are_encoded_at_once_or_each_when_its_turn_comes(learns: bool) -> None:
    """What is learned has moved by the time of the second batch, and its graph is gone."""
    calls: list[list[int]] = []

    def inputs(pairs: Any) -> torch.Tensor:
        calls.append(pairs["action"].tolist())
        return torch.from_numpy(pairs["action"])

    trainer: Any = SimpleNamespace(discriminator=SimpleNamespace(learns_inputs=learns), inputs=inputs)
    batches = [{"action": np.arange(2)}, {"action": np.arange(2) + 7}]
    encoded = GAILTrainer.encoded(trainer, batches)
    assert next(encoded).tolist() == [0, 1] and calls == ([[0, 1]] if learns else [[0, 1, 7, 8]])
    assert next(encoded).tolist() == [7, 8] and len(calls) == (2 if learns else 1)
    assert list(GAILTrainer.encoded(trainer, [])) == []
