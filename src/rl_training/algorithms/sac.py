"""Soft Actor-Critic (Haarnoja et al. 2018, arXiv 1801.01290; with a learned temperature: arXiv 1812.05905).

The policy maximises reward plus α times its entropy. Actions live in (-1, 1): a Gaussian squashed by tanh. Two
critics are learned and the smaller one is believed; they stand in the first dimension of every Q here, [2, N].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u = μ + σ ε, and its log-density, for μ, log σ, ε of [N, D] → [N, D] and [N].

        log π(a) = Σ log N(u; μ, σ) - log(1 - tanh²u)
        log(1 - tanh²u) = 2 (log 2 - u - softplus(-2u))

    The second line is exact where 1 - tanh²u is 0 in float32, and its gradient never vanishes.
    """
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
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


def polyak(target: Tensor, online: Tensor, tau: float) -> None:
    """θ̄ ← θ̄ + τ (θ - θ̄), for all weights as one vector."""
    torch.lerp(target, online, tau, out=target)
