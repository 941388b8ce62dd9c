"""What is computed in two ways, compared in the shapes in which it is used; and draws at the edge of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as reference

from rl_training.algorithms import dreamer, muzero, one_hot, symexp_bins, value_transform
from rl_training.algorithms.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical
from rl_training.kernels import bins, fused

STEPS, LANES = 3, 4
BINS = symexp_bins.make_bins(255)


def both_ways(monkeypatch: Any, function: Any, *inputs: torch.Tensor) -> Any:
    """Outputs and gradients of one compiled pass, and of torch's operations."""

    def run() -> list[torch.Tensor]:
        leaves = [part.clone().requires_grad_() for part in inputs]
        output = function(*leaves)
        weight = torch.linspace(-1, 1, output.numel()).view(output.shape)
        return [output.detach(), *torch.autograd.grad((output * weight).sum(), leaves)]

    fast = run()
    for module in (fused, bins):
        monkeypatch.setattr(module, "fits", lambda x: False)
    return fast, run()


def test_the_loss_on_bins_of_sequences_against_sums_over_dense_targets(monkeypatch: Any) -> None:
    """Logits [T, B, bins] and two targets [T, B], as the critic has them."""
    torch.manual_seed(0)
    logits = torch.randn(STEPS, LANES, 255)
    targets = [10 * torch.randn(STEPS, LANES), torch.randn(STEPS, LANES)]
    fast, plain = both_ways(monkeypatch, lambda x: bins.bins_loss(x, targets, BINS), logits)
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for t in range(STEPS):
        for lane in range(LANES):
            expected = 0.0
            for target in targets:
                y = target[t, lane].item()
                upper = int(np.searchsorted(BINS.numpy(), y))
                share = (y - BINS[upper - 1].item()) / (BINS[upper] - BINS[upper - 1]).item()
                log_share = logits[t, lane].double().log_softmax(0)
                expected -= ((1 - share) * log_share[upper - 1] + share * log_share[upper]).item()
            assert plain[0][t, lane].item() == pytest.approx(expected, rel=1e-4)


def test_decoding_sequences_is_the_mean_over_bins(monkeypatch: Any) -> None:
    torch.manual_seed(1)
    logits = torch.randn(STEPS, LANES, 255) - BINS.abs().log1p()  # large bins are unlikely
    expected = (logits.double().softmax(-1) * BINS.double()).sum(-1).float()
    torch.testing.assert_close(bins.decode_bins(logits, BINS), expected, rtol=1e-3, atol=1e-2)
    monkeypatch.setattr(bins, "fits", lambda x: False)
    torch.testing.assert_close(bins.decode_bins(logits, BINS), expected, rtol=1e-3, atol=1e-2)


def test_the_two_hot_loss_of_windows_is_that_of_their_positions() -> None:
    """Logits [B, K + 1, atoms] as windows have them, and one position at a time."""
    torch.manual_seed(2)
    logits, target = torch.randn(LANES, STEPS, 21), 20 * torch.randn(LANES, STEPS)
    found = muzero.two_hot_loss(logits, target)
    assert found.shape == (LANES, STEPS)
    for b in range(LANES):
        for k in range(STEPS):
            y = value_transform.compress(target[b, k]).clamp(-10, 10).item()
            shares = torch.tensor([max(0.0, 1 - abs(y - atom)) for atom in range(-10, 11)])
            expected = -(shares * logits[b, k].log_softmax(0)).sum()
            torch.testing.assert_close(found[b, k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("leading", [(5,), (STEPS, LANES)])
def test_divergences_of_rows_and_of_sequences(leading: tuple[int, ...]) -> None:
    torch.manual_seed(3)

    def normal(parameters: torch.Tensor) -> Any:
        mean, log_std = parameters[..., :3], parameters[..., 3:]
        return reference.Independent(reference.Normal(mean, log_std.exp()), 1)

    one, other = 0.5 * torch.randn(2, *leading, 6)
    found = DiagonalGaussian(3).kl(one, other)
    assert found.shape == leading
    torch.testing.assert_close(found, reference.kl_divergence(normal(one), normal(other)))
    for family in (Categorical(6), MultiCategorical((2, 4)), Bernoulli(6)):
        whole = family.kl(one, other)
        assert whole.shape == leading and (whole > 0).all()
        rows = [family.kl(p, q) for p, q in zip(one.view(-1, 6), other.view(-1, 6), strict=True)]
        torch.testing.assert_close(whole.flatten(), torch.stack(rows))


def test_the_losses_of_latents_of_sequences_are_sums_over_classes_and_choices() -> None:
    """Probabilities [T, B, K, S]: the divergence of each state is the sum over its S choices, then clipped."""
    torch.manual_seed(4)
    posterior, prior = (2 * torch.randn(2, STEPS, LANES, 5, 2)).softmax(-2)
    dynamics, representation = dreamer.latent_losses(posterior, prior, 0.5)
    assert dynamics.shape == representation.shape == (STEPS, LANES)
    for t in range(STEPS):
        for lane in range(LANES):
            p, q = posterior[t, lane].T, prior[t, lane].T
            expected = sum(
                reference.kl_divergence(reference.Categorical(p[s]), reference.Categorical(q[s])).item()
                for s in range(2)
            )
            assert dynamics[t, lane].item() == pytest.approx(max(0.5, expected), rel=1e-4)
            assert representation[t, lane].item() == pytest.approx(max(0.5, expected), rel=1e-4)


def test_the_highest_noise_draws_the_last_class_where_rounding_leaves_less_than_one() -> None:
    """Noise of 1 - 2⁻²⁴: where probabilities sum to less, no class is reached, and the last one must be taken.

    Ordinary rows stand behind: there a write past a row's end would be seen.
    """
    torch.manual_seed(5)
    noise = torch.full((64, 32), np.nextafter(np.float32(1), np.float32(0)))
    noise[32:] = 0.5
    for classes in (4, 16, 96):
        logits = torch.randn(64, classes, 32)
        drawn, probs = fused.draw_latent(logits, noise)
        left = noise.numpy().copy()
        for k in range(classes):  # in the order and the precision of the compiled pass
            left -= probs[:, k].numpy()
        assert (left[:32] >= 0).any(), "some draws must be beyond all classes, or this shows nothing"
        torch.testing.assert_close(drawn.sum(-2), torch.ones(64, 32), rtol=0, atol=0)
        assert (drawn[:32].argmax(-2)[torch.from_numpy(left[:32] >= 0)] == classes - 1).all()


def test_double_precision_is_left_to_torch() -> None:
    """Compiled passes are of single precision: numbers of double precision stay what they are."""
    torch.manual_seed(0)
    logits, noise = torch.randn(2, 5, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    drawn, probs = fused.draw_latent(logits, noise)
    assert drawn.dtype == probs.dtype == torch.float64
    torch.testing.assert_close(probs, one_hot.unimix(logits), rtol=0, atol=0)
    single = fused.draw_latent(logits.float(), noise.float())
    assert [part.dtype for part in single] == [torch.float32] * 2
    torch.testing.assert_close(single[0], drawn.float(), rtol=0, atol=0)
