"""Scalars on bins: many rows of a few hundred logits, in one pass over memory each.

What `decode` and `two_hot_loss` of `algorithms.symexp_bins` say, for single precision on a CPU; elsewhere those do it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.symexp_bins import decode, two_hot_loss
from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.functions import FAST
from rl_training.kernels.supports import exponentials

MAGNITUDE = np.int32(2**31 - 1)  # all bits but the sign
LEAST_GAP = np.float32(1e-30)  # between two bins


def decode_bins(logits: Tensor, bins: Tensor) -> Tensor:
    """The numbers [...] that logits [..., bins] stand for, without gradients."""
    if not fits(logits):
        return decode(logits.detach(), bins)
    rows = logits.detach().reshape(-1, len(bins)).contiguous().numpy()
    out = np.empty(len(rows), np.float32)
    decode_rows(rows, bins.numpy(), np.empty(len(bins), np.float32), out)
    return torch.from_numpy(out).view(logits.shape[:-1])


def bins_loss(logits: Tensor, targets: list[Tensor], bins: Tensor) -> Tensor:
    """Σ over targets [...] of the cross-entropy of their two-hot code with logits [..., bins]."""
    if not fits(logits):
        return two_hot_loss(logits, targets, bins)
    return _BinsLoss.apply(logits, torch.stack([target.reshape(-1) for target in targets]), bins)


class _BinsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
        rows = logits.detach().reshape(-1, logits.shape[-1]).contiguous().numpy()
        places, weights = _two_hot(targets.numpy(), bins.numpy())
        ctx.shape, ctx.arrays = logits.shape, (rows, places, weights)
        loss, ctx.normaliser = _loss_forward(rows, places, weights)
        return torch.from_numpy(loss).view(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        rows, places, weights = ctx.arrays
        slopes = _loss_backward(rows, ctx.normaliser, places, weights, slope.reshape(-1).contiguous().numpy())
        return torch.from_numpy(slopes).view(ctx.shape), None, None


@njit(nogil=True, error_model="numpy")
def around(target, bins):  # type: ignore[no-untyped-def]
    """The bins below and above a number, and the weight of the one above; NaN has the weight NaN."""
    below, above = 0, len(bins)
    while above - below > 1:  # bins[below] ≤ target < bins[above], where there are such
        middle = (below + above) // 2
        if bins[middle] <= target:
            below = middle
        else:
            above = middle
    above = min(above, len(bins) - 1)
    share = (target - bins[below]) / max(bins[above] - bins[below], LEAST_GAP)
    share = np.float32(0) if share < 0 else np.float32(1) if share > 1 else share
    return below, above, share


@njit(nogil=True, error_model="numpy")
def _two_hot(targets, bins):  # type: ignore[no-untyped-def]
    """`two_hot` of targets [T, N]: the bins around them and their weights, [N, 2 T]."""
    count = targets.shape[1]
    places, weights = (
        np.empty((count, 2 * len(targets)), np.int64),
        np.empty((count, 2 * len(targets)), np.float32),
    )
    for k in range(len(targets)):
        for i in range(count):
            below, above, share = around(targets[k, i], bins)
            places[i, 2 * k], places[i, 2 * k + 1] = below, above
            weights[i, 2 * k], weights[i, 2 * k + 1] = np.float32(1) - share, share
    return places, weights


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def sum_of(row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(len(row)):
        total += row[j]
    return total


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def top_of(row):  # type: ignore[no-untyped-def]
    """The largest, and NaN where a number is none: it would be lost in comparisons.

    Numbers are compared as integers of the same order: of these the compiler makes vectors.
    """
    top, nothing = np.int32(-(2**31)), np.float32(0)
    for j in range(len(row)):
        nothing += np.float32(0) * row[j]
        bits = np.float32(row[j]).view(np.int32)
        rank = np.int32(bits ^ ((bits >> 31) & MAGNITUDE))
        top = rank if rank > top else top
    return np.int32(top ^ ((top >> 31) & MAGNITUDE)).view(np.float32) + nothing


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def paired_sum(shares, bins):  # type: ignore[no-untyped-def]
    """Σ pᵢ bᵢ, each bin with its mirror image, as in `algorithms.symexp_bins.decode`."""
    middle, total = len(bins) // 2, np.float32(0)
    for j in range(1, middle + 1):
        total += (shares[middle + j] - shares[middle - j]) * bins[middle + j]
    return total


@njit(borrows=True, nogil=True, error_model="numpy")
def decode_rows(rows, bins, shares, out):  # type: ignore[no-untyped-def]
    """`decode_bins` of each row, in room for one: `shares`."""
    for i in range(len(rows)):
        top = top_of(rows[i])
        exponentials(rows[i], top, shares)
        # The last term is 0, and NaN where a logit is: comparisons made a number of it.
        out[i] = paired_sum(shares, bins) / sum_of(shares) + np.float32(0) * top


@njit(nogil=True, error_model="numpy")
def _loss_forward(rows, places, weights):  # type: ignore[no-untyped-def]
    """Each row's loss, and log Σ exp of it; the weights of every target sum to 1."""
    targets = places.shape[1] // 2
    loss, normaliser = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    shares = np.empty(rows.shape[1], np.float32)
    for i in range(len(rows)):
        top = top_of(rows[i])
        exponentials(rows[i], top, shares)
        normaliser[i] = top + np.float32(math.log(sum_of(shares)))
        total = targets * normaliser[i]
        for k in range(2 * targets):
            total -= weights[i, k] * rows[i, places[i, k]]
        loss[i] = total
    return loss, normaliser


@njit(nogil=True, error_model="numpy")
def _loss_backward(rows, normaliser, places, weights, slope):  # type: ignore[no-untyped-def]
    targets = places.shape[1] // 2
    slopes = np.empty(rows.shape, np.float32)
    for i in range(len(rows)):
        exponentials(rows[i], normaliser[i], slopes[i])
        factor = np.float32(targets) * slope[i]
        for j in range(rows.shape[1]):
            slopes[i, j] *= factor
        for k in range(2 * targets):
            slopes[i, places[i, k]] -= slope[i] * weights[i, k]
    return slopes
