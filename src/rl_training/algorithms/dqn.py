"""Deep Q-Networks (Mnih et al. 2015, Nature 518), and four improvements that can be switched on one by one.

Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461), the dueling architecture (Wang et al. 2016, arXiv
1511.06581), prioritised replay (Schaul et al. 2016, arXiv 1511.05952) and n-step returns (Sutton 1988).
"""

from __future__ import annotations

import torch
from torch import Tensor


def dueling(streams: Tensor) -> Tensor:
    """Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a'), for [N, 1 + actions] with V first → [N, actions]."""
    value, advantage = streams[:, :1], streams[:, 1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


def q_target(reward: Tensor, discount: Tensor, next_q: Tensor, chooser: Tensor) -> Tensor:
    """y = r + γ (1 - terminated) Q̄(s', argmax_a' chooser(s', a')).

    `next_q` [N, actions] is the target network. It is its own chooser in the Nature paper, where this is its
    maximum; in Double DQN the online network chooses and the target network values the choice.
    """
    best = chooser.argmax(-1, keepdim=True)
    return reward + discount * next_q.gather(-1, best).squeeze(-1)


def q_loss(
    q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """E[w · huber(δ)] with δ = Q(s, a) - y, its slope in Q [N, actions], and δ [N].

        huber(δ) = ½ δ² up to |δ| = 1, |δ| - ½ beyond        slope: w · clip(δ, -1, 1) / N at the action taken

    The slope is the error clipped to [-1, 1], as the paper puts it. For q [N, actions], action and target [N];
    `weight` [N] corrects what prioritised sampling has bent.
    """
    index = action.unsqueeze(-1)
    error = q.gather(-1, index).squeeze(-1) - target
    clipped = error.clamp(-1, 1)
    losses = clipped * (error - 0.5 * clipped)
    if weight is not None:
        losses, clipped = losses * weight, clipped * weight
    slope = torch.zeros_like(q).scatter_(-1, index, (clipped / len(q)).unsqueeze(-1))
    return losses.mean(), slope, error
