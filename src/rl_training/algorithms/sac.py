"""Soft Actor-Critic (Haarnoja et al. 2018, arXiv 1801.01290; with a learned temperature: arXiv 1812.05905).

The policy maximises reward plus α times its entropy. Actions live in (-1, 1): a Gaussian squashed by tanh. Two
critics are learned and the smaller one is believed; they stand in the first dimension of every Q here, [2, N].
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.distributions import log_tanh_slope
from rl_training.compiling import njit


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u = μ + σ ε, and its log-density, for μ, log σ, ε of [N, D] → [N, D] and [N].

    log π(a) = Σ log N(u; μ, σ) - log(1 - tanh²u)
    """
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    slope = log_tanh_slope(raw)  # before the tanh: gradients are added up in the order of the calls
    return raw.tanh(), (normal - slope).sum(-1)


def soft_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, ent_coef: float
) -> Tensor:
    """y = r + γ (1 - terminated) [min_i Q̄_i(s', a') - α log π(a'|s')] for a' drawn from the policy as it is now.

    `discount` [N] holds γ (1 - terminated); `next_q` [2, N] are the target critics.
    """
    return reward + discount * (next_q.amin(0) - ent_coef * next_log_prob)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Σ_i ½ E[(Q_i(s, a) - y)²] (equation 5 of the second paper) for q [2, N] and y [N]."""
    return 0.5 * (q - target).square().mean(-1).sum()


def actor_loss(q: Tensor, log_prob: Tensor, ent_coef: float) -> Tensor:
    """E[α log π(a|s) - min_i Q_i(s, a)] (equation 7) for a drawn with gradients, q [2, N]."""
    return (ent_coef * log_prob - q.amin(0)).mean()


def temperature_loss(log_ent_coef: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """E[-log α (log π(a|s) + H̄)]: α grows while the policy's entropy is below H̄ and shrinks while it is above.

    Equation 18 has α for log α; both have the same sign and the same zero, and this one moves α by a factor.
    """
    return -log_ent_coef * (log_prob.mean() + target_entropy)


@njit(nogil=True)
def temperature_slope(log_prob: float, target_entropy: float) -> float:
    """∂/∂log α of `temperature_loss`, for the mean of log π(a|s)."""
    return -(log_prob + target_entropy)


def polyak(target: Tensor, online: Tensor, tau: float) -> None:
    """θ̄ ← θ̄ + τ (θ - θ̄), for all weights as one vector."""
    torch.lerp(target, online, tau, out=target)


@njit(borrows=True, nogil=True, fastmath={"contract"})
def move_average(target, online, tau):  # type: ignore[no-untyped-def]
    """`polyak`, compiled, and as torch rounds it: from the nearer end."""
    near, share, rest = tau < 0.5, np.float32(tau), np.float32(1) - np.float32(tau)
    for i in range(len(target)):
        apart = online[i] - target[i]
        target[i] = target[i] + share * apart if near else online[i] - rest * apart


@njit(borrows=True, nogil=True, error_model="numpy")
def squash_rows(outputs, noise, bounds, action, log_prob):  # type: ignore[no-untyped-def]
    """`squash`, compiled, for μ and log σ side by side in outputs [N, 2 D], log σ held between bounds."""
    count, size = noise.shape
    for i in range(count):
        total = 0.0
        for k in range(size):
            log_std = min(max(outputs[i, size + k], bounds[0]), bounds[1])
            raw = outputs[i, k] + math.exp(log_std) * noise[i, k]
            softplus = max(-2 * raw, 0.0) + math.log1p(math.exp(-abs(2 * raw)))
            action[i, k] = math.tanh(raw)
            total -= 0.5 * noise[i, k] ** 2 + log_std + 0.5 * math.log(2 * math.pi)
            total -= 2 * (math.log(2) - raw - softplus)
        log_prob[i] = total


@njit(borrows=True, nogil=True, error_model="numpy")
def squash_slopes(outputs, noise, bounds, action, to_action, weight, slopes):  # type: ignore[no-untyped-def]
    """Slopes [N, 2 D] in μ and log σ of a loss with slopes `to_action` [N, D] in a and `weight` in log π.

    ∂a/∂u = 1 - a²,  ∂log π/∂u = 2a,  ∂u/∂μ = 1,  ∂u/∂log σ = σ ε,  ∂log π/∂log σ = -1 besides; 0 beyond the bounds
    """
    count, size = noise.shape
    for i in range(count):
        for k in range(size):
            a, log_std = action[i, k], outputs[i, size + k]
            to_raw = to_action[i, k] * (1 - a * a) + weight * 2 * a
            slopes[i, k] = to_raw
            inside = bounds[0] <= log_std <= bounds[1]
            slopes[i, size + k] = to_raw * math.exp(log_std) * noise[i, k] - weight if inside else 0.0


@njit(borrows=True, nogil=True, error_model="numpy")
def soft_targets(reward, discount, next_q, next_log_prob, ent_coef, target):  # type: ignore[no-untyped-def]
    """`soft_target`, compiled: y into `target` [N]."""
    for i in range(len(reward)):
        least = min(next_q[0, i], next_q[1, i])
        target[i] = reward[i] + discount[i] * (least - ent_coef * next_log_prob[i])


@njit(borrows=True, nogil=True, error_model="numpy")
def critic_slopes(q, target, share, slopes):  # type: ignore[no-untyped-def]
    """The slopes (Q - y) / N of `critic_loss` in the Q [n, 1] of one critic."""
    for i in range(len(q)):
        slopes[i, 0] = share * (q[i, 0] - target[i])


@njit(borrows=True, nogil=True, error_model="numpy")
def critic_sums(q, target, sums):  # type: ignore[no-untyped-def]
    """`critic_loss`, and the mean of Q [2, N]."""
    share = 1 / len(target)
    for i in range(len(target)):
        for c in range(2):
            error = q[c, i] - target[i]
            sums[0] += 0.5 * share * error * error
            sums[1] += 0.5 * share * q[c, i]


@njit(borrows=True, nogil=True, error_model="numpy")
def least_slopes(q, log_prob, ent_coef, share, slopes, sums):  # type: ignore[no-untyped-def]
    """`actor_loss` and its slopes in q [2, n]: -1 / N in the smaller one, half of it in each where they are equal."""
    for i in range(len(log_prob)):
        sums[0] += share * (ent_coef * log_prob[i] - min(q[0, i], q[1, i]))
        sums[1] += share * log_prob[i]
        for c in range(2):
            other = q[1 - c, i]
            slopes[c, i] = -share if q[c, i] < other else -0.5 * share if q[c, i] == other else 0.0


SAC_LOSSES = (soft_target, critic_loss, actor_loss, temperature_loss)  # what these slopes are of
