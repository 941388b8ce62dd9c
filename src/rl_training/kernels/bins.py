"""Scalars on bins: many rows of a few hundred logits, in one pass over memory each.

What `decode` and `two_hot_loss` of `algorithms.symexp_bins` say, for single precision on a CPU; elsewhere those do it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.symexp_bins import decode, two_hot, two_hot_loss
from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.functions import FAST
from rl_training.kernels.supports import exponentials


def decode_bins(logits: Tensor, bins: Tensor) -> Tensor:
    """The numbers [...] that logits [..., bins] stand for, without gradients."""
    if not fits(logits):
        return decode(logits.detach(), bins)
    rows = logits.detach().reshape(-1, len(bins))
    tops = rows.amax(1)
    return torch.from_numpy(_decode(rows.numpy(), tops.numpy(), bins.numpy())).view(logits.shape[:-1])


def bins_loss(logits: Tensor, targets: list[Tensor], bins: Tensor) -> Tensor:
    """Σ over targets [...] of the cross-entropy of their two-hot code with logits [..., bins]."""
    if not fits(logits):
        return two_hot_loss(logits, targets, bins)
    places, weights = zip(*(two_hot(target, bins) for target in targets), strict=True)
    return _BinsLoss.apply(logits, torch.cat(places, -1), torch.cat(weights, -1))


class _BinsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        rows = logits.detach().reshape(-1, logits.shape[-1])
        tops = rows.amax(1)
        codes = (part.reshape(len(rows), -1).numpy() for part in (places, weights))
        ctx.shape, ctx.arrays = logits.shape, (rows.numpy(), *codes)
        loss, ctx.normaliser = _loss_forward(ctx.arrays[0], tops.numpy(), ctx.arrays[1], ctx.arrays[2])
        return torch.from_numpy(loss).view(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        rows, places, weights = ctx.arrays
        slopes = _loss_backward(rows, ctx.normaliser, places, weights, slope.reshape(-1).numpy())
        return torch.from_numpy(slopes).view(ctx.shape), None, None


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _sum(row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(len(row)):
        total += row[j]
    return total


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _paired_sum(shares, bins):  # type: ignore[no-untyped-def]
    middle, total = len(bins) // 2, np.float32(0)
    for j in range(1, middle + 1):
        total += (shares[middle + j] - shares[middle - j]) * bins[middle + j]
    return total


@njit(nogil=True, error_model="numpy")
def _decode(rows, tops, bins):  # type: ignore[no-untyped-def]
    out, shares = np.empty(len(rows), np.float32), np.empty(rows.shape[1], np.float32)
    for i in range(len(rows)):
        exponentials(rows[i], tops[i], shares)
        # The last term is 0, and NaN where a logit is: comparisons made a number of it.
        out[i] = _paired_sum(shares, bins) / _sum(shares) + np.float32(0) * tops[i]
    return out


@njit(nogil=True, error_model="numpy")
def _loss_forward(rows, tops, places, weights):  # type: ignore[no-untyped-def]
    """Each row's loss, and log Σ exp of it; the weights of every target sum to 1."""
    targets = places.shape[1] // 2
    loss, normaliser = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    shares = np.empty(rows.shape[1], np.float32)
    for i in range(len(rows)):
        exponentials(rows[i], tops[i], shares)
        normaliser[i] = tops[i] + np.float32(math.log(_sum(shares)))
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
