"""V-trace: off-policy returns and advantages (Espeholt et al. 2018, arXiv 1802.01561)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.returns import Estimates
from rl_training.compiling import njit


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    rho_bar: float,
    c_bar: float,
    trace_decay: float = 1.0,
    policy_rho_bar: float | None = None,
) -> Estimates:
    """Equation 1 in its recursive form (remark 1), and the advantages of section 4.2.

        ρₜ = min(ρ̄, π(aₜ|sₜ) / μ(aₜ|sₜ)),    cₜ = λ min(c̄, π / μ)
        δₜ = ρₜ (rₜ + γ V(s'ₜ) (1 - terminatedₜ) - V(sₜ))
        vₜ = V(sₜ) + δₜ + γ cₜ (1 - doneₜ) (vₜ₊₁ - V(sₜ₊₁))
        Aₜ = ρₜ' (rₜ + γ V(s'ₜ) (1 - terminatedₜ) - V(sₜ) + γ λ (1 - doneₜ) (vₜ₊₁ - V(sₜ₊₁)))

    vₜ₊₁ - V(sₜ₊₁) is 0 at the last row, where nothing follows. With λ = 1 the bracket is the paper's
    rₜ + γ vₜ₊₁ - V(sₜ); with π = μ the advantages are GAE(λ). ρₜ' is ρₜ with the bound `policy_rho_bar`, the same
    one unless given.

    All tensors are [T, B]. `log_ratio` is log π - log μ, the values are those of the policy that learns, and
    `next_value` is the value of the state the action led to, never that of a reset state. Returns `return` (v) and
    `advantage` [T, B], float32, on the CPU, where rollouts live.
    """
    target, advantage = (np.empty(reward.shape, np.float32) for _ in range(2))
    columns = (log_ratio, reward, value, next_value, terminated, truncated)
    arrays = [column.detach().cpu().numpy() for column in columns]
    policy_bound = rho_bar if policy_rho_bar is None else policy_rho_bar
    _vtrace(*arrays, gamma, rho_bar, policy_bound, c_bar, trace_decay, target, advantage)
    return {"return": torch.from_numpy(target), "advantage": torch.from_numpy(advantage)}


@njit()
def _vtrace(  # type: ignore[no-untyped-def]
    log_ratio,
    reward,
    value,
    next_value,
    terminated,
    truncated,
    gamma,
    rho_bar,
    policy_rho_bar,
    c_bar,
    trace_decay,
    target,
    advantage,
):
    steps, lanes = reward.shape
    for lane in range(lanes):
        # What follows row t: vₜ₊₁ - V(sₜ₊₁), 0 where the recursion begins anew.
        excess = 0.0
        for t in range(steps - 1, -1, -1):
            ratio = np.exp(np.float64(log_ratio[t, lane]))
            rho, trace = min(rho_bar, ratio), trace_decay * min(c_bar, ratio)
            if terminated[t, lane] or truncated[t, lane]:
                excess = 0.0
            ahead = 0.0 if terminated[t, lane] else gamma * next_value[t, lane]
            error = reward[t, lane] + ahead - value[t, lane]
            advantage[t, lane] = min(policy_rho_bar, ratio) * (error + gamma * trace_decay * excess)
            excess = rho * error + gamma * trace * excess
            target[t, lane] = value[t, lane] + excess


def ratio_statistics(log_ratio: Tensor, rho_bar: float) -> dict[str, Tensor]:
    """How far the policies are apart: the mean of π / μ, and the share of it that ρ̄ cuts."""
    ratio = log_ratio.detach().exp()
    return {"rho_mean": ratio.mean(), "rho_clipped": (ratio > rho_bar).float().mean()}
