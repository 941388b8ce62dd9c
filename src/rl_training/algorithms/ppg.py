"""Phasic Policy Gradient (Cobbe et al. 2021, arXiv 2009.04416)."""

from __future__ import annotations

from torch import Tensor


def joint_loss(
    auxiliary_value: Tensor, target: Tensor, divergence: Tensor, beta_clone: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """L^joint = ½ E[(V_aux - V_targ)²] + β_clone E[KL(π_old ‖ π)], and its parts; all tensors are [N].

    π_old is the policy as it was before the auxiliary phase: the trunk learns values while the policy is held.
    """
    distillation = 0.5 * (auxiliary_value - target).square().mean()
    clone = divergence.mean()
    terms = {"auxiliary_value_loss": distillation.detach(), "clone_kl": clone.detach()}
    return distillation + beta_clone * clone, terms
