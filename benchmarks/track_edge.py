"""What Dreamer's critic expects at the edge of CartPole's track, against what comes.

python -m benchmarks.track_edge runs/reproduce/dreamer/cartpole/s*

Episodes begin as usual. A simple controller drives the cart to within half a metre of an edge, the policy watching;
then the policy acts greedily, and most carts cannot be saved. The truth is the discounted return of the steps that
were left. Prints what results/track_edge.json keeps.
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
EPISODES, MOST = 40, 500
PLACE, SPEED = 1.9, 0.9  # metres from the middle, of 2.4, and metres a second


def drive(obs: np.ndarray, speed: float) -> int:
    """Left or right, so that the pole stays up and the cart reaches a speed: a linear law with weights of our own."""
    _, velocity, angle, turning = obs
    return int(angle + 0.35 * turning + 0.12 * (velocity - speed) > 0)


def episode(agent: Any, seed: int) -> list[float] | None:
    """The values at all steps, if the episode ended."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    carry, values, near = agent.initial(1), [], False
    for _ in range(MOST):
        near |= abs(obs[0]) > PLACE
        drawn = torch.get_rng_state()
        values.append(float(agent.value(obs[None], carry)[0]))
        torch.set_rng_state(drawn)  # the latent that is acted on
        acted, carry = agent.act(obs[None], carry, explore=False)
        action = int(acted["action"][0])
        if not near:
            action = drive(obs, SPEED if seed % 2 else -SPEED)
            carry = (*carry[:-1], agent.network.encode_action(torch.tensor([action])))
        obs, _, ended, cut, _ = env.step(action)
        if ended or cut:
            return values if ended and near else None
    return None


def measure(run: str) -> dict[str, Any]:
    torch.manual_seed(0)
    policy, config = load_policy(run), load_config(Path(run, "config.yaml"))
    found = [values for seed in range(EPISODES) if (values := episode(policy.agent, seed)) is not None]
    told = {}
    for steps in BEFORE:
        at = [values[-steps] for values in found]
        truth = (1 - config.gamma**steps) / (1 - config.gamma)
        told[str(steps)] = {"value": float(np.mean(at)) if at else None, "truth": truth}
    return {"seed": config.seed, "ended": len(found), "of": EPISODES, "before": told}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([measure(run) for run in sys.argv[1:]], indent=1))
