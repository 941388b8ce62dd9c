"""EfficientZero (Ye et al. 2021, "Mastering Atari games with limited data"; arXiv 2111.00210): additions to MuZero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.shifts import brightened

LARGEST_SHIFT = 4  # pixels, and
INTENSITY = 0.05  # the standard deviation of a picture's brightness, as in the paper


Brightened: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Mixed(NamedTuple):
    """Shares of a run: how old data with rewards of its own may be, and when older data gets searched values."""

    recent: float
    searched_from: float


# EfficientZero V2's, of 100 000 transitions and as many updates: 5 000 transitions and 30 000 updates for Atari,
# 20 000 and 40 000 for control.
DISCRETE, CONTINUOUS = Mixed(0.05, 0.3), Mixed(0.2, 0.4)


def value_prefixes(reward: Tensor, horizon: int) -> Tensor:
    """Σ of the rewards since the last reset, [K, B] → [K, B]: the memory begins anew after every `horizon` steps.

    With a horizon of 3:  r₁  r₁ + r₂  r₁ + r₂ + r₃  r₄  r₄ + r₅  …
    Without a discount: the reward of a step is the difference to the prefix before it.
    """
    return torch.cat([window.cumsum(0) for window in reward.split(horizon)])


def consistency_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """-cos(prediction, target), [N, D] → [N]; no gradient reaches the target (SimSiam, Chen & He 2021)."""
    return -F.cosine_similarity(prediction, target.detach(), dim=-1)


def td_horizons(age: np.ndarray, td_steps: int, steps_per_cut: float) -> np.ndarray:
    """l = clip(n - ⌊age / (τ T)⌋, 1, n), [N]: the older the data, the fewer of its rewards before bootstrapping.

    Old rewards are those of an old policy; the value after l of them is that of the present one. `steps_per_cut`
    is τ T, the age in steps that costs one of the n = `td_steps`.
    """
    return np.clip(td_steps - age // steps_per_cut, 1, td_steps).astype(np.int64)


def has_searched_value(age: Tensor, steps: int, total_timesteps: int, mixed: Mixed) -> Tensor:
    """EfficientZero V2's mixed targets: which positions [N], of an age in steps, learn the value that a search finds.

    Those whose rewards an older policy earned, late in the run: early the model is too poor (Wang et al. 2024). V2
    counts the start in updates; here it is in steps, of which learning has a constant share of updates.
    """
    return (age > mixed.recent * total_timesteps) & (steps >= mixed.searched_from * total_timesteps)


def augment(frames: Tensor, brightened: Brightened = brightened) -> Tensor:
    """Pictures [N, C, H, W] moved by up to 4 pixels and made up to a tenth brighter or darker, as floats."""
    draws = torch.randint(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (2, len(frames)))
    brightness = 1 + INTENSITY * torch.randn(len(frames), 1, 1, 1).clamp_(-2, 2)
    device = frames.device
    down, right = draws.to(device)
    return brightened(frames, down, right, brightness.flatten().to(device))
