"""Returns and advantages.

Every function reads two masks and never one: `terminated` decides whether the next
state has a value, `terminated or truncated` decides whether the recursion goes on.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from rl_training.compiling import njit

# What is learned from a rollout, alike in shape; no class statement, because `return` is a keyword.
Estimates = TypedDict("Estimates", {"advantage": Tensor, "return": Tensor})


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Estimates:
    """Generalised advantage estimation (Schulman et al. 2016, equations 11 to 16).

        δₜ = rₜ + γ V(s'ₜ) (1 - terminatedₜ) - V(sₜ)
        Aₜ = δₜ + γλ (1 - doneₜ) Aₜ₊₁
        Rₜ = Aₜ + V(sₜ)

    All arguments are [T, B]. `next_value` is the value of the state the action led to,
    also where the episode was cut there by a time limit, and never that of a reset state.
    Returns `advantage` and `return` [T, B], float32, on the CPU, where rollouts live.
    """
    advantage, target = (torch.empty(reward.shape) for _ in range(2))
    columns = (reward, value, next_value, terminated, truncated)
    results = (advantage.numpy(), target.numpy())
    _gae(*[column.numpy() for column in columns], gamma, gae_lambda, *results)
    return {"advantage": advantage, "return": target}


@njit(borrows=True)
def _gae(reward, value, next_value, terminated, truncated, gamma, gae_lambda, advantage, target):  # type: ignore[no-untyped-def]
    steps, lanes = reward.shape
    for lane in range(lanes):
        trace = 0.0
        for t in range(steps - 1, -1, -1):
            delta = reward[t, lane] - value[t, lane]
            if not terminated[t, lane]:
                delta += gamma * next_value[t, lane]
            if terminated[t, lane] or truncated[t, lane]:
                trace = 0.0
            trace = delta + gamma * gae_lambda * trace
            advantage[t, lane] = trace
            target[t, lane] = advantage[t, lane] + value[t, lane]


def explained_variance(prediction: Tensor, target: Tensor) -> float:
    """1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant; 0 where Var is 0."""
    return _explained_variance(prediction.numpy().ravel(), target.numpy().ravel())


@njit(borrows=True)
def _explained_variance(prediction, target):  # type: ignore[no-untyped-def]
    # Twice over the data: a difference of means of squares would lose what little is left at the end.
    rows, total, missed, spread, left = len(target), 0.0, 0.0, 0.0, 0.0
    for i in range(rows):
        total += np.float64(target[i])
        missed += np.float64(target[i]) - prediction[i]
    for i in range(rows):
        spread += (np.float64(target[i]) - total / rows) ** 2
        left += (np.float64(target[i]) - prediction[i] - missed / rows) ** 2
    return 1.0 - (left / rows) / (spread / rows) if spread > 0 else 0.0
