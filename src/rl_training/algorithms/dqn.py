"""Deep Q-Networks (Mnih et al. 2015, Nature 518), and four improvements that can be switched on one by one.

Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461), the dueling architecture (Wang et al. 2016, arXiv
1511.06581), prioritised replay (Schaul et al. 2016, arXiv 1511.05952) and n-step returns (Sutton 1988).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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


def q_loss(q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """E[w · huber(Q(s, a) - y)] with errors beyond 1 counted linearly, and the errors δ = Q(s, a) - y [N].

    For q [N, actions], action and target [N]; `weight` corrects what prioritised sampling has bent.
    """
    chosen = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    if weight is None:
        return F.smooth_l1_loss(chosen, target), (chosen - target).detach()
    losses = F.smooth_l1_loss(chosen, target, reduction="none")
    return torch.dot(weight, losses) / len(losses), (chosen - target).detach()
