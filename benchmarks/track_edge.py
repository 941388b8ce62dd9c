"""What Dreamer's critic expects at the edge of CartPole's track, against what comes.

python -m benchmarks.track_edge runs/reproduce/dreamer/cartpole-*

Episodes begin near an edge, with a speed towards it, and the policy acts greedily: most cannot be saved. The truth is
the discounted return of the steps that were left. Prints the table as JSON, as results/track_edge.json keeps it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training import load_config, load_policy

BEFORE = (1, 10)  # steps before the end
EPISODES, MOST = 40, 200
PLACE, SPEED = 1.9, (0.8, 1.6)  # metres from the middle, of 2.4, and metres a second


def episode(agent: Any, seed: int) -> list[float] | None:
    """The values at all steps, if the cart left the track."""
    env, chance = gym.make("CartPole-v1"), np.random.default_rng(seed)
    env.reset(seed=seed)
    side: int = 1 if seed % 2 else -1
    state = np.array([side * PLACE, side * chance.uniform(*SPEED), *chance.uniform(-0.05, 0.05, 2)])
    env.unwrapped.state = state  # type: ignore[attr-defined]
    obs, carry, values = state.astype(np.float32), agent.initial(1), []
    for _ in range(MOST):
        drawn = torch.get_rng_state()
        values.append(float(agent.value(obs[None], carry)[0]))
        torch.set_rng_state(drawn)  # the latent that is acted on
        acted, carry = agent.act(obs[None], carry, explore=False)
        obs, _, ended, _, _ = env.step(int(acted["action"][0]))
        if ended:
            return values if abs(obs[0]) > env.unwrapped.x_threshold else None  # type: ignore[attr-defined]
    return None


def measure(run: str) -> dict[str, Any]:
    torch.manual_seed(0)
    policy, config = load_policy(run), load_config(Path(run, "config.yaml"))
    found = [values for seed in range(EPISODES) if (values := episode(policy.agent, seed)) is not None]
    told = {}
    for steps in BEFORE:
        at = [values[-steps] for values in found if len(values) >= steps]
        truth = (1 - config.gamma**steps) / (1 - config.gamma)
        told[str(steps)] = {"value": float(np.mean(at)) if at else None, "truth": truth, "episodes": len(at)}
    return {"seed": config.seed, "left": len(found), "of": EPISODES, "before": told}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([measure(run) for run in sys.argv[1:]], indent=1))
