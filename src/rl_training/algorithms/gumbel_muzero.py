"""Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"): what differs from MuZero."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def improved_policy_loss(logits: Tensor, target: Tensor) -> Tensor:
    """KL(π' ‖ p) = Σₐ π'(a) (log π'(a) - log p(a)), [...]: how far the policy [..., A] is from the improved one."""
    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)


def mixed_prior(logits: Tensor, noise: Tensor, fraction: float) -> Tensor:
    """log((1 - f) softmax(logits) + f · noise), [B, A]: the root's prior with a share f of noise in it."""
    if fraction == 0:
        return logits
    return torch.log((1 - fraction) * logits.softmax(-1) + fraction * noise)
