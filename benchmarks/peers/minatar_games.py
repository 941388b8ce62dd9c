"""MinAtar's own games with random actions, in their environment: one after the other, as the package has them.

python -m benchmarks.peers.minatar_games '{"env_id": "MinAtar/Breakout-v1", "num_envs": 64, "steps": 100000, ...}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from minatar import Environment

from benchmarks.meter import measured, report

PACKAGES = ("MinAtar", "numpy")


def play(games: list[Any], actions: np.ndarray) -> int:
    """Step through `actions` [T, B], see every state, and begin anew where a game is over."""
    for row in actions:
        for game, action in zip(games, row, strict=True):
            _, over = game.act(action)
            if over:
                game.reset()
            game.state()
    return actions.size


def main(settings: dict[str, Any]) -> None:
    count, seed = settings["num_envs"], settings["seed"]
    name = settings["env_id"].removeprefix("MinAtar/").removesuffix("-v1").lower()
    games = [Environment(name) for _ in range(count)]
    for lane, game in enumerate(games):
        game.seed(1000 * seed + lane)
        game.reset()
    choices = np.array(games[0].minimal_action_set())
    drawn = np.random.default_rng(seed).integers(len(choices), size=(settings["steps"] // count, count))
    actions = choices[drawn]
    play(games, actions[:100])
    steps, cost = measured(lambda: play(games, actions))
    report(steps, cost, PACKAGES)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
