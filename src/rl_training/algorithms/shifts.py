"""Pictures that are moved, and made brighter or darker."""

from __future__ import annotations

import torch
from torch import Tensor


def shift_frames(frames: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Pictures [N, C, H, W], each moved by its own whole pixels [N]; what moves in repeats the edge."""
    count, _, height, width = frames.shape
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)
    at = torch.arange(count)[:, None, None]
    # Indices around the channels put them last: [N, H, W, C].
    moved = frames.movedim(1, -1)[at, rows[:, :, None], columns[:, None, :]]
    return moved.movedim(-1, 1)


def brightened(frames: Tensor, down: Tensor, right: Tensor, brightness: Tensor) -> Tensor:
    """Pictures [N, C, H, W] moved, and each made brighter or darker [N], as floats."""
    return shift_frames(frames, down, right) * brightness.view(-1, 1, 1, 1)
