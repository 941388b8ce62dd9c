"""Gymnasium's SyncVectorEnv with random actions, in its own environment.

    python -m benchmarks.peers.gymnasium_sync '{"env_id": "CartPole-v1", "num_envs": 4, "steps": 100000, "seed": 1}'

Its steps are real transitions: in the default autoreset mode a step after the end of an episode only resets,
and is not counted.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.meter import measured, report

PACKAGES = ("gymnasium", "numpy", "ale-py")


def make_env(env_id: str) -> gym.Env[Any, Any]:
    if not env_id.startswith("ALE/"):
        return gym.make(env_id, disable_env_checker=True)
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make(env_id, disable_env_checker=True, frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    return gym.wrappers.FrameStackObservation(env, 4)


def play(envs: gym.vector.SyncVectorEnv, actions: np.ndarray, seed: int) -> int:
    """Step through `actions` [T, B]; how many of the steps were real."""
    envs.reset(seed=seed)
    over, real = np.zeros(envs.num_envs, np.bool_), 0
    for row in actions:
        real += envs.num_envs - int(np.count_nonzero(over))
        _, _, terminated, truncated, _ = envs.step(row)
        over = terminated | truncated
    return real


def main(settings: dict[str, Any]) -> None:
    count, seed = settings["num_envs"], settings["seed"]
    envs = gym.vector.SyncVectorEnv([lambda: make_env(settings["env_id"])] * count)
    choices = envs.single_action_space.n  # type: ignore[attr-defined]
    actions = np.random.default_rng(seed).integers(choices, size=(settings["steps"] // count, count))
    play(envs, actions[:100], seed)
    real, cost = measured(lambda: play(envs, actions, seed))
    report(real, cost, PACKAGES)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
