"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

import torch
from torch import Tensor


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


def surrogate_loss(
    log_prob: Tensor, entropy: Tensor, old: dict[str, Tensor], *, clip_coef: float, ent_coef: float
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
    old: dict[str, Tensor],
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
