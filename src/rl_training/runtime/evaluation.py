"""Evaluation: episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

import numpy as np

from rl_training.config import Config
from rl_training.data.collector import Policy, fresh_where_ended
from rl_training.envs.making import make_environments
from rl_training.state.seeding import fold, seed_everything

MAX_LANES = 16


def evaluate(
    policy: Policy, config: Config, *, episodes: int, seed: int, sample: bool = False
) -> dict[str, float]:
    """Play `episodes` whole episodes and sum them up; greedy unless `sample`.

    Every lane plays a fixed share of the episodes: taking those that end first would favour short ones.
    New environments each time, so that nothing of an earlier evaluation can show in this one.
    """
    lanes = min(episodes, MAX_LANES)
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    seed_everything(fold(seed, "actions"))
    environments = make_environments(config, lanes, seed, "evaluate")
    try:
        carry = policy.initial(lanes)
        played: list[tuple[float, int]] = []
        while share.any():
            acted, carry = policy.act(environments.obs, carry, explore=sample)
            step = environments.step(acted["action"])
            carry = fresh_where_ended(policy, carry, step.ended)
            for lane, returned, length in environments.take_finished():
                if share[lane]:
                    share[lane] -= 1
                    played.append((returned, length))
    finally:
        environments.close()
    returns, lengths = np.array(played).T
    return {
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "episodes": episodes,
    }
