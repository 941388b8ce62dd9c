"""Dreamer's maths: hand-made numbers, identities, and every fused pass against torch's own operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.dreamer import (
    actor_loss,
    bounded_normal,
    continue_loss,
    imagined_weights,
    lambda_returns,
    latent_losses,
    move_range,
)
from rl_training.algorithms.one_hot import draw_one_hot, unimix
from rl_training.algorithms.symexp_bins import decode, make_bins, symexp, symlog, two_hot, two_hot_loss
from rl_training.kernels import bins, fused
from rl_training.kernels.bins import bins_loss, decode_bins
from rl_training.networks.dreamer import DreamerNetwork
from rl_training.networks.rssm import RSSM, State
from rl_training.runtime.optim import LaProp
from rl_training.settings.dreamer import SIZES, preset
from rl_training.state.seeding import seed_everything

BINS = make_bins(255)


def test_symlog_and_its_inverse() -> None:
    x = torch.tensor([-1e6, -3.0, -0.01, 0.0, 0.01, 3.0, 1e6])
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-5, atol=1e-6)
    assert symlog(torch.tensor([math.e - 1, 1 - math.e])).tolist() == pytest.approx([1.0, -1.0])


def test_bins_are_symmetric_around_an_exact_zero() -> None:
    assert len(BINS) == 255 and BINS[127] == 0
    assert torch.equal(BINS, -BINS.flip(0))
    assert BINS[-1].item() == pytest.approx(math.exp(20) - 1)


def test_equal_logits_decode_to_exactly_zero() -> None:
    assert not decode(torch.zeros(3, 255), BINS).any()
    assert not decode(torch.full((3, 255), -7.3), BINS).any()


def test_decoding_in_one_pass_is_decoding() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(2, 40, 255)
    logits[0, 0] = 0.7
    logits[0, 1, 100] = float("nan")
    found, expected = decode_bins(logits, BINS), decode(logits, BINS)
    torch.testing.assert_close(
        found, expected, rtol=1e-3, atol=1e-2 * expected[1].abs().min(), equal_nan=True
    )
    assert found[0, 0] == 0 and found[0, 1].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["in one pass", "by torch"])
def test_decoded_numbers_have_no_gradient(dtype: torch.dtype) -> None:
    assert not decode_bins(torch.randn(2, 255, dtype=dtype, requires_grad=True), BINS.to(dtype)).requires_grad


def test_two_hot_and_decode_are_inverse() -> None:
    target = torch.cat([symexp(torch.linspace(-13.8, 13.8, 1001)), torch.tensor([0.0, 1.0, -1.0, 1e6, -1e6])])
    places, weights = two_hot(target, BINS)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(target)))
    probs = torch.zeros(len(target), 255).scatter_add_(-1, places, weights)
    torch.testing.assert_close(decode(probs.log(), BINS), target, rtol=1e-4, atol=1e-5)


def test_two_hot_by_hand() -> None:
    bins = torch.tensor([-2.0, 0.0, 1.0])
    places, weights = two_hot(torch.tensor([-5.0, -0.5, 0.25, 1.0, 9.0]), bins)
    assert ((weights >= 0) & (weights <= 1)).all()
    dense = torch.zeros(5, 3).scatter_add_(-1, places, weights)
    expected = [[1, 0, 0], [0.25, 0.75, 0], [0, 0.75, 0.25], [0, 0, 1], [0, 0, 1]]
    torch.testing.assert_close(dense, torch.tensor(expected))


def test_the_gathered_loss_is_the_dense_cross_entropy() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 255, requires_grad=True)
    targets = [3 * torch.randn(50), 100 * torch.randn(50)]
    loss = two_hot_loss(logits, targets, BINS)
    dense = torch.zeros(50)
    for target in targets:
        places, weights = two_hot(target, BINS)
        dense = dense - (torch.zeros(50, 255).scatter_add_(-1, places, weights) * logits.log_softmax(-1)).sum(
            -1
        )
    torch.testing.assert_close(loss, dense)
    one, other = (torch.autograd.grad(part.sum(), logits, retain_graph=True)[0] for part in (loss, dense))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("with_ends", [False, True])
def test_lambda_returns_against_brute_force(with_ends: bool) -> None:
    """R_t = Σ over n of (1 - λ) λⁿ⁻¹ times the n-step return, cut where λ or the discount is 0."""
    torch.manual_seed(1)
    steps, decay = 7, 0.9
    reward, discount, bootstrap = torch.randn(steps, 2), torch.rand(steps, 2), torch.randn(steps, 2)
    last = (torch.rand(steps, 2) < 0.3).float() if with_ends else torch.zeros(steps, 2)
    found = lambda_returns(reward, discount, bootstrap, decay, last if with_ends else None)
    assert found.shape == (steps - 1, 2)
    for b in range(2):
        for t in range(steps - 1):
            total, kept, earned, factor = 0.0, 1.0, 0.0, 1.0
            for k in range(t + 1, steps):
                earned += factor * reward[k, b].item()
                factor *= discount[k, b].item()
                stays = decay * (1 - last[k, b].item()) if k < steps - 1 else 0.0
                total += kept * (1 - stays) * (earned + factor * bootstrap[k, b].item())
                kept *= stays
            assert found[t, b].item() == pytest.approx(total, abs=1e-5)


def test_a_constant_reward_gives_a_geometric_sum() -> None:
    ones, zeros = torch.ones(6, 1), torch.zeros(6, 1)
    found = lambda_returns(ones, ones, zeros, 1.0)
    assert found.flatten().tolist() == [5, 4, 3, 2, 1]
    found = lambda_returns(ones, 0.5 * ones, zeros, 1.0)
    assert found[0].item() == pytest.approx(sum(0.5**k for k in range(5)))


def test_the_weight_of_a_state_counts_the_state_it_began_with() -> None:
    live = torch.tensor([[0.0, 0.9], [0.9, 0.5], [0.9, 1.0]])
    torch.testing.assert_close(imagined_weights(live), torch.tensor([[0.0, 0.9], [0.0, 0.45], [0.0, 0.45]]))


def test_the_divergence_is_clipped_per_element_and_goes_one_way() -> None:
    torch.manual_seed(2)
    posterior_logits, prior_logits = torch.randn(5, 4, 3), torch.randn(5, 4, 3)
    prior_logits[0] = posterior_logits[0]  # no divergence at all: below the free nats
    posterior_logits[1:] *= 5
    posterior_logits.requires_grad_()
    prior_logits.requires_grad_()
    posterior, prior = unimix(posterior_logits), unimix(prior_logits)
    dynamics, representation = latent_losses(posterior, prior, 1.0)
    torch.testing.assert_close(dynamics, representation)
    by_hand = (posterior * (posterior / prior).log()).sum((1, 2))
    assert dynamics[0] == 1.0 and (by_hand[1:] > 1).all()
    torch.testing.assert_close(dynamics[1:], by_hand[1:])
    to_posterior, to_prior = torch.autograd.grad(
        dynamics.sum(), (posterior_logits, prior_logits), allow_unused=True, retain_graph=True
    )
    assert to_posterior is None and not to_prior[0].any() and to_prior[1:].any()
    to_posterior, to_prior = torch.autograd.grad(
        representation.sum(), (posterior_logits, prior_logits), allow_unused=True
    )
    assert to_prior is None and not to_posterior[0].any() and to_posterior[1:].any()


def test_unimix_keeps_a_hundredth_uniform() -> None:
    probs = unimix(torch.tensor([100.0, 0.0, 0.0, 0.0]).view(4, 1))
    assert probs.flatten().tolist() == pytest.approx([0.9925, 0.0025, 0.0025, 0.0025])


def test_draws_follow_the_probabilities() -> None:
    probs = torch.tensor([[0.1, 0.5], [0.6, 0.5], [0.3, 0.0]]).expand(20_000, 3, 2)
    noise = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    drawn = draw_one_hot(probs, noise)
    assert (drawn.sum(-2) == 1).all() and ((drawn == 0) | (drawn == 1)).all()
    torch.testing.assert_close(drawn.mean(0), probs[0], atol=0.02, rtol=0)
    edges = draw_one_hot(probs[:2], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert edges.argmax(-2).tolist() == [[0, 0], [2, 2]]


def test_straight_through_draws_have_the_gradient_of_the_probabilities() -> None:
    torch.manual_seed(3)
    logits, weight = torch.randn(6, 4, 3, requires_grad=True), torch.randn(6, 4, 3)
    drawn, _ = fused.draw_latent(logits, torch.rand(6, 3))
    (slope,) = torch.autograd.grad((drawn * weight).sum(), logits)
    (expected,) = torch.autograd.grad((unimix(logits) * weight).sum(), logits)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-6)
    assert set(drawn.detach().flatten().tolist()) == {0.0, 1.0}


FUSED: dict[str, Any] = {
    "norm_silu": (fused.norm_silu, lambda: (3 * torch.randn(40, 24), torch.rand(24))),
    "gated_step": (
        fused.gated_step,
        lambda: (3 * torch.randn(4, 10, 24), torch.randn(96), torch.randn(10, 32)),
    ),
    "bins_loss": (
        lambda logits: bins_loss(logits, [torch.linspace(-9, 9, 30), torch.linspace(50, -1e9, 30)], BINS),
        lambda: (3 * torch.randn(30, 255),),
    ),
    "draw_latent": (
        lambda logits: fused.draw_latent(logits, torch.linspace(0, 0.999, 70).view(10, 7)),
        lambda: (3 * torch.randn(10, 5, 7),),
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_pass_is_what_torch_computes_with_its_gradients(name: str, monkeypatch: Any) -> None:
    torch.manual_seed(4)
    function, make = FUSED[name]
    inputs = [part.requires_grad_() for part in make()]

    def run() -> list[torch.Tensor]:
        outputs = function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.manual_seed(5)
        total = sum((part * torch.randn_like(part)).sum() for part in outputs)
        return [*outputs, *torch.autograd.grad(total, inputs)]

    fast = run()
    with torch.no_grad():
        without_gradient = function(*inputs)
    for module in (fused, bins):
        monkeypatch.setattr(module, "fits", lambda x: False)
    for one, other in zip(fast, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    first = without_gradient[0] if isinstance(without_gradient, tuple) else without_gradient
    assert torch.equal(first, fast[0].detach())


@pytest.mark.parametrize("name", FUSED)
def test_what_is_not_a_number_stays_none(name: str) -> None:
    function, make = FUSED[name]
    inputs = make()
    inputs[-1 if name == "gated_step" else 0][2] = float("nan")
    with torch.no_grad():
        output = function(*inputs)
    output = output[1] if isinstance(output, tuple) else output
    assert not output[2].isfinite().any() and output[3].isfinite().all()


def make_rssm() -> RSSM:
    seed_everything(6)
    return RSSM(5, 2, deter_size=16, rssm_hidden=8, num_latents=3, num_classes=4, blocks=4)


def test_a_scan_with_a_reset_is_two_scans(monkeypatch: Any) -> None:
    rssm, (steps, begins) = make_rssm(), (9, 4)
    tokens, action = torch.randn(steps, 2, 5), torch.randn(steps, 2, 2)
    noise = torch.rand(steps, 2, 3)
    first = torch.zeros(steps, 2)
    first[begins] = 1
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: noise[:steps])
    start = State(torch.randn(2, 16), torch.randn(2, 12))
    whole, probs = rssm.observe(start, tokens, action, first)
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: noise[:begins])
    before, _ = rssm.observe(start, tokens[:begins], action[:begins], first[:begins])
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: noise[begins:])
    fresh = action[begins:].clone()
    fresh[0] = 0
    after, _ = rssm.observe(rssm.initial(2), tokens[begins:], fresh, torch.zeros(steps - begins, 2))
    torch.testing.assert_close(whole.deter, torch.cat([before.deter, after.deter]))
    torch.testing.assert_close(whole.stoch, torch.cat([before.stoch, after.stoch]))
    assert probs.shape == (steps, 2, 4, 3)
    # And only where the episode of that lane begins.
    first[begins, 1] = 0
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: noise)
    half, _ = rssm.observe(start, tokens, action, first)
    torch.testing.assert_close(half.deter[:, 0], whole.deter[:, 0])
    assert not torch.allclose(half.deter[begins, 1], whole.deter[begins, 1])


def test_the_blocks_of_the_memory_are_a_block_diagonal_matrix() -> None:
    rssm = make_rssm()
    torch.nn.init.normal_(rssm.own.bias)
    x = torch.randn(3, 16)
    dense = torch.block_diag(*rssm.own.weight)
    torch.testing.assert_close(rssm.own(x), x @ dense + rssm.own.bias)


def test_large_actions_are_scaled_down_and_small_ones_kept() -> None:
    rssm = make_rssm()
    actions = torch.tensor([[5.0, -0.3], [1.0, -0.3], [0.5, -0.3]])
    made = rssm.action_inputs(actions)
    torch.testing.assert_close(made[0], made[1])
    assert not torch.allclose(made[0], made[2])


def make_network(action_space: spaces.Space[Any]) -> DreamerNetwork:
    seed_everything(7)
    sizes = dict(deter_size=32, rssm_hidden=8, num_latents=4, num_classes=4, units=16, cnn_depth=2, blocks=4)
    return DreamerNetwork(spaces.Box(-9, 9, (3,)), action_space, **sizes, mlp_layers=2)


@pytest.mark.parametrize("space", [spaces.Discrete(5), spaces.MultiDiscrete([5, 5])])
def test_at_first_rewards_and_values_are_zero_and_the_policy_is_uniform(space: Any) -> None:
    network = make_network(space)
    features = torch.randn(100, 32 + 16)
    with torch.no_grad():
        assert not network.says(network.reward, features).any()
        assert not decode(network.critic(features), network.bins).any()
        entropy = network.family.entropy(network.policy(features))
    torch.testing.assert_close(
        entropy, torch.full((100,), math.log(5) * len(network.action_sizes)), atol=1e-2, rtol=0
    )


def test_the_bounded_normal() -> None:
    made = bounded_normal(torch.tensor([[0.0, 50.0, -50.0, 50.0, -50.0, -2.0]]))
    assert made[0, :3].tolist() == pytest.approx([0.0, 1.0, -1.0])
    assert made[0, 3:].exp().tolist() == pytest.approx([1.0, 0.1, 0.55])


def test_the_running_percentiles() -> None:
    low, high = torch.zeros(()), torch.zeros(())
    returns = torch.arange(101.0).view(-1, 1)
    move_range(low, high, returns, 0.01)
    assert (low.item(), high.item()) == pytest.approx((0.05, 0.95))
    for _ in range(2000):
        move_range(low, high, returns, 0.01)
    assert (low.item(), high.item()) == pytest.approx((5.0, 95.0), abs=1e-3)


def test_the_actor_follows_the_advantage_and_the_entropy() -> None:
    log_prob, entropy = torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.5, 0.7]])
    advantage, weight = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 0.5]])
    expected = -((1.0 * (-2.0 + 0.1 * 0.5)) + 0.5 * (2.0 + 0.1 * 0.7)) / 2
    assert actor_loss(log_prob, entropy, advantage, weight, 0.1).item() == pytest.approx(expected)


def test_the_continue_loss_is_least_at_the_discount() -> None:
    logits = torch.linspace(0, 12, 1201)
    loss = continue_loss(logits, torch.full_like(logits, 0.997))
    assert logits[loss.argmin()].sigmoid().item() == pytest.approx(0.997, abs=1e-4)


def test_laprop_by_hand() -> None:
    """g is clipped to 0.3 ‖p‖, normalised by its root mean square, and only then averaged."""
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
    optimizer = LaProp([layer])
    weight = np.array([3.0, 4.0])
    square = mean = np.zeros(2)
    for count, slope in enumerate(([30.0, 40.0], [0.3, -0.1], [-1.0, 0.5]), 1):
        optimizer.gradient.copy_(torch.tensor(slope))
        optimizer.update(0.1)
        g = np.array(slope)
        g = g / max(1.0, np.linalg.norm(g) / (0.3 * max(1e-3, np.linalg.norm(weight))))
        square = 0.999 * square + 0.001 * g**2
        mean = 0.9 * mean + 0.1 * g / np.sqrt(square / (1 - 0.999**count))
        weight = weight - 0.1 * mean / (1 - 0.9**count)
        np.testing.assert_allclose(optimizer.parameters.numpy(), weight, rtol=1e-5)


def test_laprop_clips_each_tensor_by_itself_and_lets_zeros_grow() -> None:
    layer = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(layer.bias)
    optimizer = LaProp([layer])
    before = layer.weight.clone()
    optimizer.gradient.copy_(torch.tensor([0.0, 0.0, 1e6]))
    optimizer.update(0.01)
    assert torch.equal(layer.weight, before) and layer.bias.item() == pytest.approx(-0.01)
    assert optimizer.square[-1].item() == pytest.approx(0.001 * (0.3e-3) ** 2)


def test_the_sizes_are_those_of_the_paper() -> None:
    assert preset("12M") == dict(
        deter_size=2048, rssm_hidden=256, num_latents=32, num_classes=16, units=256, cnn_depth=16, blocks=8
    )
    assert [preset(size)["deter_size"] for size in SIZES] == [512, 2048, 3072, 4096, 6144, 8192, 12288]
    network = DreamerNetwork(
        spaces.Box(0, 255, (64, 64, 3), np.uint8), spaces.Discrete(6), **preset("1M"), mlp_layers=3
    )
    assert 0.5e6 < sum(parameter.numel() for parameter in network.parameters()) < 1.5e6


@pytest.mark.parametrize("shape", [(64, 64, 3), (4, 84, 84), (12, 12, 1), (4, 4, 1)])
def test_pictures_of_any_size_come_back_in_their_own_shape(shape: tuple[int, ...]) -> None:
    sizes = dict(deter_size=16, rssm_hidden=8, num_latents=4, num_classes=4, units=8, cnn_depth=2, blocks=4)
    space = spaces.Dict({"camera": spaces.Box(0, 255, shape, np.uint8), "digit": spaces.Discrete(3, start=1)})
    network = DreamerNetwork(space, spaces.Discrete(2), **sizes, mlp_layers=1)
    obs = {"camera": torch.randint(0, 255, (5, 2, *shape), dtype=torch.uint8), "digit": torch.ones(5, 2)}
    tokens = network.reconstruction.encode(obs)
    assert tokens.shape == (5, 2, network.reconstruction.tokens)
    features = torch.randn(5, 2, 32)
    loss = network.reconstruction.loss(features, obs)
    assert loss.shape == (5, 2) and loss.isfinite().all()
    predicted = network.reconstruction.predict(features)
    assert predicted["obs/camera"].shape == (5, 2, *shape) and predicted["obs/camera"].dtype == torch.uint8
    assert set(predicted["obs/digit"].flatten().tolist()) <= {1, 2, 3}
