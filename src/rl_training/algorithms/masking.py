"""Invalid action masking (Huang & Ontañón 2022, arXiv 2006.14171): invalid logits become very negative.

The probability of a forbidden action is then exactly 0 in single precision, its logit gets no gradient, and the
entropy and the divergence are those of the allowed actions alone. It is not minus infinity: 0 · ∞ is no number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

MASK = "action_mask"
BLOCKED = -1e8


def mask_logits(logits: Tensor, obs: object, columns: tuple[int, ...] | None = None) -> Tensor:
    """Logits [N, P] with those blocked that the `action_mask` [N, P] of a Dict observation forbids, if it has one.

    columns: those of `logits` that the entries of the mask are for, unless for all
    """
    mask = mask_of(obs)
    if mask is None:
        return logits
    if columns is not None and len(columns) != logits.shape[-1]:
        every = mask.new_ones(logits.shape)
        every[..., list(columns)] = mask
        mask = every
    return logits.masked_fill(mask == 0, BLOCKED)


def mask_of(obs: object) -> Any:
    """The `action_mask` [N, P] of a Dict observation; None where there is none."""
    return obs.get(MASK) if isinstance(obs, dict) else None


def pick_allowed(noise: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """For noise [N] in [0, 1), one of the actions that the mask [N, P] allows, each as likely as the others."""
    rank = np.cumsum(mask != 0, -1)  # of allowed actions, counted from 1
    number = rank[:, -1]
    chosen = np.minimum((noise * number).astype(np.int64), number - 1)
    return (rank > chosen[:, None]).argmax(-1)
