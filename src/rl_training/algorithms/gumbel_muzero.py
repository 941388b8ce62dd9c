"""Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"): the differences from MuZero."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def improved_policy_loss(logits: Tensor, target: Tensor) -> Tensor:
    """KL(π' ‖ p) = Σₐ π'(a) (log π'(a) - log p(a)), [...]: how far the policy [..., A] is from the improved one."""
    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)


def mixed_prior(logits: Tensor, noise: Tensor, fraction: float, invalid: Tensor | None = None) -> Tensor:
    """log((1 - f) softmax(logits) + f · noise), [B, A]: the root's prior with a share f of noise in it.

    Where actions are invalid both are distributions over the others. A valid action's probability of 0 becomes a
    tiny one; logits are finite.
    """
    if fraction == 0:
        return logits
    least = torch.finfo(logits.dtype).min
    invalid = torch.zeros_like(logits, dtype=torch.bool) if invalid is None else invalid
    mixed = (1 - fraction) * logits.masked_fill(invalid, least).softmax(-1) + fraction * noise
    return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log().masked_fill(invalid, least)
