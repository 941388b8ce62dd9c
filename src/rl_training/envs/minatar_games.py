"""MinAtar's games with independent episodes.

In the package sticky actions carry over: the first step of a game may repeat the last action of the previous game. Such
an episode is not determined by its seed and actions, so a run could not be resumed by replaying it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from minatar import gym as package

NOOP = 0
MIRROR = str.maketrans("lr", "rl")  # of the names of actions
MIRRORED = {"breakout"}  # games whose rules do not tell left from right


class Game(package.BaseEnv):  # type: ignore[misc]
    @property
    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """The grid mirrored, of games whose rules do not tell left from right; None of the others."""
        if self.game.env_name not in MIRRORED:
            return None
        numbers = np.arange(np.prod(self.observation_space.shape)).reshape(self.observation_space.shape)
        names = [self.game.env.action_map[action] for action in self.action_set]
        mirrored = [names.index(name.translate(MIRROR)) for name in names]
        return [(numbers[:, ::-1].reshape(-1), np.array(mirrored))]

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
