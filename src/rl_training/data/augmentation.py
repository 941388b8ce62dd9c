"""Frames as learning sees them: augmented in compiled code."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.efficientzero import augment
from rl_training.kernels.shifts import brightened


def augmented(frames: Tensor) -> Tensor:
    """`augment` of pictures [N, C, H, W]: the same numbers."""
    return augment(frames, brightened)
