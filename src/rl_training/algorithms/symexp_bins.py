"""Scalars as categorical distributions over exponentially spaced bins, with two-hot targets.

Hafner et al. 2025, Nature 640 (arXiv 2301.04104v2). Bins are symmetric, and the middle one is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|): nearly x for small numbers, and large ones stay manageable."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """The inverse of symlog: sign(x) (e^|x| - 1)."""
    return x.sign() * x.abs().expm1()


def make_bins(count: int) -> Tensor:
    """symexp of `count` equal steps from -20 to 20, an odd number; built from one half, so that the middle is 0."""
    assert count % 2 == 1, count
    half = symexp(torch.linspace(-20, 0, count // 2 + 1))
    return torch.cat([half, -half[:-1].flip(0)])


def decode(logits: Tensor, bins: Tensor) -> Tensor:
    """Σᵢ pᵢ bᵢ of logits [..., bins], each bin paired with its mirror image.

    Bins reach 5e8: summed in any other order, equal probabilities would not give 0.
    """
    share, middle = logits.softmax(-1), len(bins) // 2
    return (share[..., middle + 1 :] - share[..., :middle].flip(-1)) @ bins[middle + 1 :]


def two_hot(target: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The two bins around each target [...] and their weights, [..., 2] each.

    The target lies linearly between two bins; beyond the outermost it is that bin alone.
    """
    last = len(bins) - 1
    below = (torch.searchsorted(bins, target.contiguous(), right=True) - 1).clamp_(0, last)
    above = (below + 1).clamp_(max=last)
    low, high = bins[below], bins[above]
    share = ((target - low) / (high - low).clamp_min(1e-30)).clamp_(0.0, 1.0)
    return torch.stack([below, above], -1), torch.stack([1 - share, share], -1)


def two_hot_loss(logits: Tensor, targets: list[Tensor], bins: Tensor) -> Tensor:
    """Σ over targets [...] of the cross-entropy of their two-hot code with logits [..., bins].

    -Σᵢ tᵢ log pᵢ = logsumexp(l) - Σᵢ tᵢ lᵢ, where at most two tᵢ are not 0: they are gathered, and the rest is never
    touched.
    """
    places, weights = zip(*(two_hot(target, bins) for target in targets), strict=True)
    picked = (logits.gather(-1, torch.cat(places, -1)) * torch.cat(weights, -1)).sum(-1)
    return len(targets) * logits.logsumexp(-1) - picked
