"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.returns import Estimates
from rl_training.algorithms.slopes import ENTROPY, LOG_PROB, VALUE, Slopes
from rl_training.compiling import njit


class Acted(Estimates):
    """What was stored of N rows while acting, and what was computed from it, all [N]."""

    log_prob: Tensor
    value: Tensor


def normalize_advantage(advantage: Tensor) -> Tensor:
    """(A - mean) / std over a minibatch; one sample alone has no spread and is returned as it is."""
    if advantage.numel() < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """L^CLIP = E[min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)], equation 7; a number to maximise."""
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return torch.min(ratio * advantage, clipped * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip_coef: float | None) -> Tensor:
    """½ E[(V - R)²], or with a clip range c: ½ E[max((V - R)², (V_old + clip(V - V_old, -c, c) - R)²)].

    The clip is in units of the return, so it only means something where rewards are scaled.
    """
    error = (value - target).square()
    if clip_coef is not None:
        held = old_value + (value - old_value).clamp(-clip_coef, clip_coef)
        error = torch.max(error, (held - target).square())
    return 0.5 * error.mean()


def fit_loss(value: Tensor, target: Tensor, *, vf_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
    """c_v ½ E[(V - R)²], where a value function is fitted by itself, and its part without the weight."""
    critic = value_loss(value, value, target, None)
    return vf_coef * critic, {"value_loss": critic.detach()}


def surrogate_loss(
    log_prob: Tensor, entropy: Tensor, old: Acted, *, clip_coef: float, ent_coef: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-L^CLIP - c_e H, the part of the loss that is the policy's, and what is worth logging of it."""
    log_ratio = log_prob - old["log_prob"]
    ratio = log_ratio.exp()
    policy = -clipped_surrogate(ratio, old["advantage"], clip_coef)
    bonus = entropy.mean()
    # Without a weight the entropy is only logged: its gradient would be computed for nothing.
    loss = policy - ent_coef * bonus if ent_coef else policy
    with torch.no_grad():
        terms = {
            "policy_loss": policy.detach(),
            "entropy": bonus.detach(),
            # The estimator k3 of KL(old ‖ new): never negative, and of low variance near ratio 1.
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1).abs() > clip_coef).float().mean(),
        }
    return loss, terms


def ppo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old: Acted,
    *,
    clip_coef: float,
    ent_coef: float,
    vf_coef: float,
    value_clip_coef: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-L^CLIP + c_v L^VF - c_e H (equation 9, as a loss), and what is worth logging of it.

    `log_prob`, `entropy`, `value` [N] are the current network's on the minibatch; `old` holds what was
    stored while acting: `log_prob`, `value`, and the `advantage` and `return` computed from them, all [N].
    """
    loss, terms = surrogate_loss(log_prob, entropy, old, clip_coef=clip_coef, ent_coef=ent_coef)
    critic = value_loss(value, old["value"], old["return"], value_clip_coef)
    return loss + vf_coef * critic, terms | {"value_loss": critic.detach()}


@njit(borrows=True, nogil=True, error_model="numpy")
def ppo_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`ppo_loss` and its slopes, row by row.

    ∂L/∂log π = -ρ A / N, or 0 where the clip holds the smaller objective        ∂L/∂H = -c_e / N
    ∂L/∂V = c_v (V - R) / N, or 0 where the clip holds the larger error
    """
    clip_coef, ent_coef, vf_coef, value_clip_coef = knobs
    for i in range(len(said)):
        old_log_prob, old_value, advantage, target = old[i]
        log_ratio = np.float64(said[i, LOG_PROB]) - old_log_prob
        ratio = math.exp(log_ratio)
        objective = ratio * advantage
        clipped = min(max(ratio, 1 - clip_coef), 1 + clip_coef) * advantage
        error = said[i, VALUE] - target
        moved = said[i, VALUE] - old_value
        held = old_value + min(max(moved, -value_clip_coef), value_clip_coef) - target
        is_held = abs(moved) > value_clip_coef and held * held > error * error
        slopes[i, LOG_PROB] = 0.0 if objective > clipped else -share * objective
        slopes[i, ENTROPY] = -share * ent_coef
        slopes[i, VALUE] = 0.0 if is_held else share * vf_coef * error
        policy, critic = -min(objective, clipped), 0.5 * (held if is_held else error) ** 2
        sums[0] += share * (policy + vf_coef * critic - ent_coef * said[i, ENTROPY])
        sums[1] += share * policy
        sums[2] += share * said[i, ENTROPY]
        sums[3] += share * (ratio - 1 - log_ratio)
        sums[4] += share * (abs(ratio - 1) > clip_coef)
        sums[5] += share * critic


PPO_SLOPES = Slopes(
    ppo_loss,
    ppo_slopes,
    columns=("log_prob", "value", "advantage", "return"),
    knobs=("clip_coef", "ent_coef", "vf_coef", "value_clip_coef"),
    numbers=("policy_loss", "entropy", "approx_kl", "clip_fraction", "value_loss"),
)


@njit(borrows=True, nogil=True, error_model="numpy")
def surrogate_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`surrogate_loss` and its slopes, row by row: those of `ppo_slopes` without a value."""
    clip_coef, ent_coef = knobs
    for i in range(len(said)):
        log_ratio = np.float64(said[i, LOG_PROB]) - old[i, 0]
        ratio, advantage = math.exp(log_ratio), old[i, 1]
        objective = ratio * advantage
        clipped = min(max(ratio, 1 - clip_coef), 1 + clip_coef) * advantage
        slopes[i, LOG_PROB] = 0.0 if objective > clipped else -share * objective
        slopes[i, ENTROPY] = -share * ent_coef
        slopes[i, VALUE] = 0.0
        sums[0] -= share * (min(objective, clipped) + ent_coef * said[i, ENTROPY])
        sums[1] -= share * min(objective, clipped)
        sums[2] += share * said[i, ENTROPY]
        sums[3] += share * (ratio - 1 - log_ratio)
        sums[4] += share * (abs(ratio - 1) > clip_coef)


SURROGATE_SLOPES = Slopes(
    surrogate_loss,
    surrogate_slopes,
    columns=("log_prob", "advantage"),
    knobs=("clip_coef", "ent_coef"),
    numbers=("policy_loss", "entropy", "approx_kl", "clip_fraction"),
)


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_slopes(said, old, share, knobs, slopes, sums):  # type: ignore[no-untyped-def]
    """`fit_loss` and its slopes, row by row: ∂L/∂V = c_v (V - R) / N."""
    for i in range(len(said)):
        error = said[i, VALUE] - old[i, 0]
        slopes[i, LOG_PROB] = slopes[i, ENTROPY] = 0.0
        slopes[i, VALUE] = share * knobs[0] * error
        sums[0] += 0.5 * share * knobs[0] * error * error
        sums[1] += 0.5 * share * error * error


FIT_SLOPES = Slopes(
    fit_loss,
    fit_slopes,
    columns=("return",),
    knobs=("vf_coef",),
    numbers=("value_loss",),
    given=("return",),
)
