"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783), in its synchronous form."""

from __future__ import annotations

from torch import Tensor


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
