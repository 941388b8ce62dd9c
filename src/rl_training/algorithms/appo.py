"""Asynchronous PPO with a target network: IMPACT (Luo et al. 2020, arXiv 1912.00167), which RLlib calls APPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.ppo import Acted, ppo_loss, ppo_slopes
from rl_training.algorithms.slopes import DIVERGENCE, Slopes
from rl_training.compiling import njit

SCALES = (1e-6, 1e6)  # between which the coefficient of the KL penalty adapts
MOST_BEHIND = 2.0  # how many times likelier the actor may have been than the target, before it is the anchor


def anchor_log_prob(target: Tensor, behaviour: Tensor) -> Tensor:
    """The log-probability that the surrogate's ratio is taken against: log max(π_target, μ / 2).

    IMPACT's ratio (section 3.2) is min(μ / π_target, 2) · π / μ = π / max(π_target, μ / 2): the ratio to the target
    network, which holds still while actors of many ages deliver, but never much larger than that to the actor's
    own policy. All tensors are of one shape.
    """
    return torch.max(target, behaviour - math.log(MOST_BEHIND))


def adapt_scale(scale: float, kl: float, target: float) -> float:
    """The scale of the KL penalty's coefficient after an update that ended at this KL (RLlib's rule).

        c ← 1.5 c  where KL > 2 KL_target,    c ← 0.5 c  where KL < KL_target / 2

    Held within `SCALES`: from 0 it would never come back.
    """
    factor = 1.5 if kl > 2 * target else 0.5 if kl < target / 2 else 1.0
    low, high = SCALES
    return min(max(scale * factor, low), high)


def appo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    divergence: Tensor,
    old: Acted,
    *,
    clip_coef: float,
    ent_coef: float,
    vf_coef: float,
    kl_coef: float,
    value_clip_coef: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss around the anchor, + c_KL E[KL(π_target ‖ π)], and what is worth logging of it.

    `log_prob`, `entropy`, `value` and `divergence` [N] are the current network's on the minibatch; `old` holds the
    anchor's `log_prob`, the target network's `value`, and V-trace's `advantage` and `return` for it, all [N].
    """
    loss, parts = ppo_loss(
        log_prob,
        entropy,
        value,
        old,
        clip_coef=clip_coef,
        ent_coef=ent_coef,
        vf_coef=vf_coef,
        value_clip_coef=value_clip_coef,
    )
    distance = divergence.mean()
    if kl_coef:  # without a weight it is only logged
        loss = loss + kl_coef * distance
    return loss, parts | {"kl": distance.detach()}


@njit(nogil=True, error_model="numpy")
def appo_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`appo_loss` and its slopes, row by row: PPO's, and ∂L/∂KL = c_KL / N."""
    ppo_slopes(said, old, share, knobs[:4], slopes, sums)
    for i in range(len(said)):
        slopes[i, DIVERGENCE] = share * knobs[4]
        sums[0] += share * knobs[4] * said[i, DIVERGENCE]
        sums[6] += share * said[i, DIVERGENCE]


APPO_SLOPES = Slopes(
    appo_loss,
    appo_slopes,
    columns=("log_prob", "value", "advantage", "return"),
    knobs=("clip_coef", "ent_coef", "vf_coef", "value_clip_coef", "kl_coef"),
    numbers=("policy_loss", "entropy", "approx_kl", "clip_fraction", "value_loss", "kl"),
    anchored=True,
)
