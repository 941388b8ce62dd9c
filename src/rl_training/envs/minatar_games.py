"""MinAtar's games with independent episodes.

In the package sticky actions carry over: the first step of a game may repeat the last action of the previous game. Such
an episode is not determined by its seed and actions, so a run could not be resumed by replaying it.
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
