"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783), in its synchronous form."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.slopes import ENTROPY, LOG_PROB, VALUE, Slopes
from rl_training.compiling import njit


def a2c_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    ent_coef: float,
    vf_coef: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-E[log π(a|s) A] + c_v ½ E[(V - R)²] - c_e E[H], and its parts.

    All arguments are [N]. The advantages and the targets R are numbers from the rollout: no gradient goes
    through them.
    """
    policy = -(log_prob * advantage).mean()
    critic = 0.5 * (value - target).square().mean()
    bonus = entropy.mean()
    loss = policy + vf_coef * critic
    if ent_coef:  # without a weight it is only logged
        loss = loss - ent_coef * bonus
    return loss, {
        "policy_loss": policy.detach(),
        "value_loss": critic.detach(),
        "entropy": bonus.detach(),
    }


@njit(nogil=True, error_model="numpy")
def a2c_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`a2c_loss` and its slopes, row by row: ∂L/∂log π = -A / N, ∂L/∂H = -c_e / N, ∂L/∂V = c_v (V - R) / N."""
    ent_coef, vf_coef = knobs
    for i in range(len(said)):
        advantage, target = old[i]
        error = said[i, VALUE] - target
        policy, critic = -said[i, LOG_PROB] * advantage, 0.5 * error * error
        slopes[i, LOG_PROB] = -share * advantage
        slopes[i, ENTROPY] = -share * ent_coef
        slopes[i, VALUE] = share * vf_coef * error
        sums[0] += share * (policy + vf_coef * critic - ent_coef * said[i, ENTROPY])
        sums[1] += share * policy
        sums[2] += share * critic
        sums[3] += share * said[i, ENTROPY]


A2C_SLOPES = Slopes(
    a2c_loss,
    a2c_slopes,
    columns=("advantage", "return"),
    knobs=("ent_coef", "vf_coef"),
    numbers=("policy_loss", "value_loss", "entropy"),
    given=("advantage", "return"),
)
