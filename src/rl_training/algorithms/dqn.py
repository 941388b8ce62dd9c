"""Deep Q-Networks (Mnih et al. 2015, Nature 518), and four optional extensions.

Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461), the dueling architecture (Wang et al. 2016, arXiv
1511.06581), prioritised replay (Schaul et al. 2016, arXiv 1511.05952) and n-step returns (Sutton 1988).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.compiling import njit


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
    q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None, delta: float | None = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """E[w · huber(e)] with e = Q(s, a) - y, its slope in Q [N, actions], and e [N].

        huber(e) = ½ e² up to |e| = δ, δ (|e| - ½ δ) beyond        slope: w · clip(e, -δ, δ) / N at the action taken

    With δ = 1 the slope is the error clipped to [-1, 1], as the paper puts it; without a δ the loss is ½ e². For
    q [N, actions], action and target [N]; `weight` [N] corrects what prioritised sampling has bent.
    """
    index = action.unsqueeze(-1)
    error = q.gather(-1, index).squeeze(-1) - target
    clipped = error if delta is None else error.clamp(-delta, delta)
    losses = clipped * (error - 0.5 * clipped)
    if weight is not None:
        losses, clipped = losses * weight, clipped * weight
    slope = torch.zeros_like(q).scatter_(-1, index, (clipped / len(q)).unsqueeze(-1))
    return losses.mean(), slope, error


# Number by number: arrays in arithmetic and assignments take numba seconds to compile, for the sake of error messages.
@njit(borrows=True, nogil=True, error_model="numpy", inline="always")
def total(line):  # type: ignore[no-untyped-def]
    found = np.float32(0)
    for j in range(len(line)):
        found += line[j]
    return found


@njit(borrows=True, nogil=True, error_model="numpy")
def dueling_rows(streams, q):  # type: ignore[no-untyped-def]
    """`dueling`, compiled."""
    actions = q.shape[1]
    for i in range(len(q)):
        mean = total(streams[i, 1:]) / actions
        for a in range(actions):
            q[i, a] = streams[i, 0] + streams[i, 1 + a] - mean


@njit(borrows=True, nogil=True, error_model="numpy")
def dueling_slopes(to_q, slopes):  # type: ignore[no-untyped-def]
    """Slopes [N, 1 + actions] in V and A from those in Q [N, actions]: ∂V = Σ ∂Q, ∂A = ∂Q - mean ∂Q."""
    actions = to_q.shape[1]
    for i in range(len(to_q)):
        slopes[i, 0] = total(to_q[i])
        for a in range(actions):
            slopes[i, 1 + a] = to_q[i, a] - slopes[i, 0] / actions


@njit(borrows=True, nogil=True, error_model="numpy")
def q_slopes(batch, next_q, chooser, masks, q, share, delta, slopes, errors, sums):  # type: ignore[no-untyped-def]
    """`q_loss` to `q_target` and its slopes in q [N, actions], compiled; sums: the loss, mean Q.

    batch: actions, rewards, discounts and weights [N]; `masks` [N, actions] of the next actions may be empty;
    `delta` is infinite where the loss is ½ e².
    """
    action, reward, discount, weight = batch
    for i in range(len(q)):
        best = -1
        for a in range(q.shape[1]):
            allowed = not len(masks) or masks[i, a]
            if allowed and (best < 0 or chooser[i, a] > chooser[i, best]):
                best = a
        errors[i] = q[i, action[i]] - (reward[i] + discount[i] * next_q[i, best])
        clipped = -delta if errors[i] < -delta else delta if errors[i] > delta else np.float64(errors[i])
        sums[0] += share * weight[i] * clipped * (errors[i] - 0.5 * clipped)
        sums[1] += share * (total(q[i]) / q.shape[1])
        for a in range(q.shape[1]):
            slopes[i, a] = np.float32(0)
        slopes[i, action[i]] = share * weight[i] * clipped


DQN_LOSSES = (q_target, q_loss)  # what these slopes are of
