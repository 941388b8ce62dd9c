"""Batch normalisation of frames by the statistics of their batch, without gradients, and the ReLU behind it.

With x [N, C, H, W], channels last in memory, and for each channel the mean and the variance v of its M numbers:

    out = max(0, (x - mean) / √(v + ε) · weight + bias + what is added)

The running statistics move by a tenth towards the mean and v M / (M - 1), as torch's do.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import njit
from rl_training.kernels.functions import FAST

EPSILON, MOMENTUM = 1e-5, 0.1
ZERO = np.float32(0)


class Normalisation(Protocol):
    """Of C channels: what scales and shifts them, and the running statistics."""

    weight: nn.Parameter
    bias: nn.Parameter
    mean: Tensor
    variance: Tensor


def normalise(frames: Tensor, norm: Normalisation, added: Tensor | None = None) -> Tensor:
    """In place of the frames, if their channels are last in memory; in single precision on the CPU."""
    rows = _rows(frames)
    count, sums = rows.size // rows.shape[3], np.zeros((2, rows.shape[3]))
    # Of the distances from each channel's first number: squares of a mean far from 0 would leave no digits for v.
    first = rows[0, 0, 0].copy()
    _sum(rows, first, sums, np.empty((2, rows.shape[3]), np.float32))
    distance = sums[0] / count
    mean, variance = first + distance, np.maximum(sums[1] / count - distance * distance, 0.0)
    factor = norm.weight.detach().numpy() / np.sqrt(variance + EPSILON)
    shift = norm.bias.detach().numpy() - factor * mean
    # In memory, as torch does it: to change the tensors would end the graphs that hold them, though none reads them.
    for running, now in ((norm.mean, mean), (norm.variance, variance * (count / max(count - 1, 1)))):
        numbers = running.numpy()
        numbers += MOMENTUM * (now.astype(np.float32) - numbers)
    more = np.empty((0, 1, 1, 1), np.float32) if added is None else _rows(added)
    _scale(rows, factor.astype(np.float32), shift.astype(np.float32), more)
    return torch.from_numpy(rows).permute(0, 3, 1, 2)


def _rows(frames: Tensor) -> np.ndarray:
    """[N, C, H, W] → [N, H, W, C] in the order of memory."""
    return frames.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


@njit(borrows=True, nogil=True, fastmath=FAST)
def _sum(rows, first, sums, line):  # type: ignore[no-untyped-def]
    """Σ (x - first) and Σ (x - first)² of each channel: of a line of a frame in `line`, float32, of all in float64."""
    count, height, width, channels = rows.shape
    for n in range(count):
        for y in range(height):
            for c in range(channels):
                line[0, c] = line[1, c] = 0
            for x in range(width):
                for c in range(channels):
                    number = rows[n, y, x, c] - first[c]
                    line[0, c] += number
                    line[1, c] += number * number
            for c in range(channels):
                sums[0, c] += line[0, c]
                sums[1, c] += line[1, c]


@njit(borrows=True, nogil=True, fastmath=FAST)
def _scale(rows, factor, shift, more):  # type: ignore[no-untyped-def]
    count, height, width, channels = rows.shape
    for n in range(count):
        for y in range(height):
            for x in range(width):
                if len(more) > 0:
                    for c in range(channels):
                        number = rows[n, y, x, c] * factor[c] + shift[c] + more[n, y, x, c]
                        rows[n, y, x, c] = ZERO if number < ZERO else number  # what is no number stays none
                else:
                    for c in range(channels):
                        number = rows[n, y, x, c] * factor[c] + shift[c]
                        rows[n, y, x, c] = ZERO if number < ZERO else number
