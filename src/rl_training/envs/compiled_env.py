"""A compiled environment as a `gymnasium.Env`, for evaluation, `play`, `check-env` and wrappers."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rl_training.algorithms.masking import MASK
from rl_training.dynamics.interface import Dynamics
from rl_training.envs.compiled import flat_size, row_size, shaped


class CompiledEnv(gym.Env[Any, Any]):
    """A class of one's own names its `dynamics`, its `observation_space` and its `action_space`, and is done."""

    dynamics: ClassVar[Dynamics]

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.zeros(len(self.dynamics.lowest))
        self.chance = np.array([self.np_random.integers(2**63), 0], np.uint64)
        self.dynamics.reset(self.state, self.chance)
        return self._seen()

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = np.array(action, np.float64).reshape(-1)
        reward, terminated = self.dynamics.step(self.state, taken, self.chance)
        obs, info = self._seen()
        return obs, float(reward), bool(terminated), False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        """What is seen, and an info with the action mask behind it, if there is one."""
        size = flat_size(self.observation_space)
        row = np.empty(row_size(self.dynamics, self.observation_space, self.action_space), np.float32)
        self.dynamics.observe(self.state, row)
        info = {MASK: row[size:].astype(np.int8)} if size < len(row) else {}
        return shaped(self.observation_space, row[:size]), info
