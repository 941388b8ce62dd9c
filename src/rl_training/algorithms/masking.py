"""Invalid action masking (Huang & Ontañón 2022, arXiv 2006.14171): logits of forbidden actions are put out of reach.

The probability of a forbidden action is then exactly 0 in single precision, its logit gets no gradient, and the
entropy and the divergence are those of the allowed actions alone. It is not minus infinity: 0 · ∞ is no number.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

MASK = "action_mask"
BLOCKED = -1e8


def mask_logits(logits: Tensor, obs: Any) -> Tensor:
    """Logits [N, P] with those blocked that the `action_mask` [N, P] of a Dict observation forbids, if it has one."""
    if not isinstance(obs, dict) or MASK not in obs:
        return logits
    return logits.masked_fill(obs[MASK] == 0, BLOCKED)
