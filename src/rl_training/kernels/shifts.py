"""Pictures of bytes moved and made brighter or darker, in one pass: as `algorithms.shifts` says it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms import shifts
from rl_training.compiling import njit


def brightened(frames: Tensor, down: Tensor, right: Tensor, brightness: Tensor) -> Tensor:
    """`shifts.brightened`, the same numbers, whose channels are last in memory."""
    if frames.dtype != torch.uint8 or frames.device.type != "cpu" or torch.compiler.is_compiling():
        return shifts.brightened(frames, down, right, brightness)
    count, channels, height, width = frames.shape
    out = np.empty((count, height, width, channels), np.float32)
    _brightened(frames.numpy(), down.numpy(), right.numpy(), brightness.numpy(), out)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


@njit(nogil=True)
def _brightened(frames, down, right, brightness, out):  # type: ignore[no-untyped-def]
    count, channels, height, width = frames.shape
    for n in range(count):
        for y in range(height):
            line = min(max(y - down[n], 0), height - 1)
            for x in range(width):
                column = min(max(x - right[n], 0), width - 1)
                for c in range(channels):
                    out[n, y, x, c] = np.float32(frames[n, c, line, column]) * brightness[n]
