"""Phasic Policy Gradient (Cobbe et al. 2021, arXiv 2009.04416)."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.slopes import DIVERGENCE, ENTROPY, LOG_PROB, VALUE, Slopes
from rl_training.compiling import njit


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


@njit(nogil=True, error_model="numpy")
def joint_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`joint_loss` and its slopes, row by row: ∂L/∂V_aux = (V_aux - V_targ) / N, ∂L/∂KL = β_clone / N."""
    for i in range(len(said)):
        error = said[i, VALUE] - old[i, 0]
        slopes[i, LOG_PROB] = slopes[i, ENTROPY] = 0.0
        slopes[i, VALUE] = share * error
        slopes[i, DIVERGENCE] = share * knobs[0]
        sums[0] += share * (0.5 * error * error + knobs[0] * said[i, DIVERGENCE])
        sums[1] += 0.5 * share * error * error
        sums[2] += share * said[i, DIVERGENCE]


JOINT_SLOPES = Slopes(
    joint_loss,
    joint_slopes,
    columns=("return",),
    knobs=("beta_clone",),
    numbers=("auxiliary_value_loss", "clone_kl"),
    anchored=True,
)
