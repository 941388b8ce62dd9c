"""ScaleZero (Pu et al. 2025, arXiv 2509.07945): one model for many tasks, on UniZero's transformer (Pu et al. 2024).

The router that learns is that of the Switch Transformer (Fedus et al. 2021, arXiv 2101.03961), the adapters are LoRA's
(Hu et al. 2021, arXiv 2106.09685).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.gumbel_muzero import improved_policy_loss
from rl_training.algorithms.muzero import two_hot_loss

SCALE_RANGE = 0.2  # how far an adapter's scale may leave 1, as in the paper's code


def adapter_scale(logit: Tensor) -> Tensor:
    """a = 1 + 0.2 tanh(logit): from 0.8 to 1.2, and 1 to begin with."""
    return 1 + SCALE_RANGE * logit.tanh()


def adapted_weight(
    base: Tensor, logits: Tensor, adapters: Sequence[tuple[Tensor, Tensor]], strength: float
) -> Tensor:
    """W = a₀ W₀ + Σ_{j<s} aⱼ c Bⱼ Aⱼ + c Bₛ Aₛ: a weight [..., O, I] at stage s = len(adapters) ≥ 1.

    adapters: (Bⱼ [..., O, r], Aⱼ [..., r, I]) of the stages up to this one
    logits:   [s, ...], of the scales a₀ … aₛ₋₁. The newest adapter has none: it would say what B says.
    strength: c = α / r

    Only the newest adapter and the scales learn: no gradient reaches what earlier stages learned.
    """
    scales = adapter_scale(logits)[..., None, None]
    weight = scales[0] * base.detach()
    for scale, (up, down) in zip(scales[1:], adapters, strict=False):
        weight = weight + scale * (strength * up.detach() @ down.detach())
    up, down = adapters[-1]
    return weight + strength * up @ down


def route(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The one expert [N] each token goes to, and its probability [N], for logits [N, E].

    The expert's output is multiplied by it, which is how the router learns.
    """
    return logits.softmax(-1).max(-1)[::-1]


def normalised(latent: Tensor) -> Tensor:
    """(z - mean z) / std z for each latent [..., D]: all latents have one length, and cannot grow."""
    return F.layer_norm(latent, latent.shape[-1:])


def latent_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference [...] of latents [..., D]; no gradient reaches the target."""
    return (prediction - target.detach()).square().mean(-1)


def mean_where(losses: Tensor, known: Tensor) -> Tensor:
    """The mean of losses [...] where `known` [...] is 1; 0 where it nowhere is."""
    return (losses * known).sum() / known.sum().clamp(min=1)


def window_losses(
    said: Sequence[Tensor], true: Sequence[Tensor], acted: Tensor, known: Tensor
) -> dict[str, Tensor]:
    """lᵖ, lᵛ, lʳ and lᶻ of windows of K steps, each the mean over all positions where it is known.

    said:  logits of policies [B, K + 1, A], values [B, K + 1, 2S + 1] and rewards [B, K, 2S + 1]; latents [B, K, D]
    true:  improved policies [B, K + 1, A], returns [B, K + 1], rewards [B, K]; latents [B, K, D]
    acted: [B, K + 1], where an action was taken
    known: [B, K + 1]; past an episode's end nothing is earned and nothing changes
    """
    (policy, value, reward, latent), (improved, returns, earned, following) = said, true
    before = known[:, :-1]  # a reward, and where an action leads, are known where the position before it is
    return {
        "policy_loss": mean_where(improved_policy_loss(policy, improved), acted),
        "value_loss": mean_where(two_hot_loss(value, returns), known),
        "reward_loss": mean_where(two_hot_loss(reward, earned), before),
        "latent_loss": mean_where(latent_loss(latent, following), before),
    }


def is_solved(returns: Sequence[float], target: float | None, episodes: int) -> bool:
    """Whether the last `episodes` returns have a mean of at least the target."""
    if target is None or len(returns) < episodes:
        return False
    return sum(list(returns)[-episodes:]) / episodes >= target


def stage_is_over(
    stage: int,
    stages: int,
    *,
    updates: int,
    newly_solved: int,
    unsolved: int,
    least_updates: int,
    most_updates: int,
) -> bool:
    """Whether the next adapter's turn has come, after so many updates of this stage.

    newly_solved ≥ ⌈unsolved / adapters left⌉, or most_updates have passed, and in stage 0 not before least_updates.
    `unsolved` counts the tasks that are unsolved now, as the authors' code does.
    """
    left = stages - 1 - stage
    if left == 0 or (stage == 0 and updates < least_updates):
        return False
    return newly_solved >= max(1, math.ceil(unsolved / left)) or updates >= most_updates


def interleave(latents: Tensor, actions: Tensor) -> Tensor:
    """z₀ a₀ z₁ a₁ … z_K: tokens [N, 2 K + 1, D] of latents [N, K + 1, D] and actions [N, K, D]."""
    pairs = torch.stack([latents[:, :-1], actions], 2).flatten(1, 2)
    return torch.cat([pairs, latents[:, -1:]], 1)
