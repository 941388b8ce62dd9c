"""Behavioural cloning (Pomerleau 1991): supervised learning of an expert's actions."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.slopes import ENTROPY, LOG_PROB, VALUE, Slopes
from rl_training.compiling import njit


def bc_loss(
    log_prob: Tensor, entropy: Tensor, *_: object, ent_coef: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-E_expert[log π(a|s)] - c_e E[H], and its parts.

    The log-probabilities [N] are those of the expert's actions. For a Gaussian of fixed spread this is the squared
    error of its mean, for choices the cross-entropy.
    """
    cloning, bonus = -log_prob.mean(), entropy.mean()
    loss = cloning - ent_coef * bonus if ent_coef else cloning
    return loss, {"cloning_loss": cloning.detach(), "entropy": bonus.detach()}


@njit(nogil=True, error_model="numpy")
def bc_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`bc_loss` and its slopes, row by row: ∂L/∂log π = -1 / N, ∂L/∂H = -c_e / N; no value is learned."""
    for i in range(len(said)):
        slopes[i, LOG_PROB] = -share
        slopes[i, ENTROPY] = -share * knobs[0]
        slopes[i, VALUE] = 0.0
        sums[0] -= share * (said[i, LOG_PROB] + knobs[0] * said[i, ENTROPY])
        sums[1] -= share * said[i, LOG_PROB]
        sums[2] += share * said[i, ENTROPY]


BC_SLOPES = Slopes(bc_loss, bc_slopes, columns=(), knobs=("ent_coef",), numbers=("cloning_loss", "entropy"))
