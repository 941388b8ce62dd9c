"""MinAtar's games, with episodes that do not depend on the one before.

The package repeats an action now and then, and still knows the one before when a game begins: the last of the game
before. An episode would then not follow from its seed and its actions, and no run could be resumed by replay.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from minatar import gym as package

NOOP = 0


class Game(package.BaseEnv):  # type: ignore[misc]
    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.game.last_action = NOOP
        return super().reset(seed=seed, options=options)


def register_envs() -> None:
    """Register the package's ids where they are not yet, and have all of them make this class."""
    if not any(env_id.startswith("MinAtar/") for env_id in gym.registry):
        package.register_envs()
    for env_id, spec in gym.registry.items():
        if env_id.startswith("MinAtar/") and spec.entry_point == "minatar.gym:BaseEnv":
            spec.entry_point = f"{__name__}:{Game.__name__}"
