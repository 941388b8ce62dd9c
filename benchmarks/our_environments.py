"""Our environments alone, with random actions: the other side of `peers.gymnasium_sync` and `peers.minatar_games`."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.meter import measured, report
from rl_training import load_config
from rl_training.envs.compiled import CompiledEnvironments
from rl_training.envs.environments import Environments
from rl_training.envs.making import make_environments

PACKAGES = ("rl-training", "gymnasium", "numpy")


def play(environments: Environments | CompiledEnvironments, actions: np.ndarray) -> int:
    """Step through `actions` [T, B]; every step is a transition."""
    for row in actions:
        environments.step(row)
    environments.take_finished()
    return actions.size


def main(settings: dict[str, Any]) -> None:
    count, seed = settings["num_envs"], settings["seed"]
    lanes = settings.get("vectorization", "sync")
    config = load_config({"algo": "ppo", "env_id": settings["env_id"], "seed": seed, "vectorization": lanes})
    environments = make_environments(config, count, seed, "train")
    choices = environments.lanes.action_space.n  # type: ignore[attr-defined]
    actions = np.random.default_rng(seed).integers(choices, size=(settings["steps"] // count, count))
    play(environments, actions[:100])
    steps, cost = measured(lambda: play(environments, actions))
    report(steps, cost, PACKAGES)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
