"""One compiled environment as Gymnasium knows environments: for evaluation, `play`, `check-env` and wrappers."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rl_training.dynamics.interface import Dynamics
from rl_training.envs.compiled import flat_size, shaped


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
        return self._seen(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = np.array(action, np.float64).reshape(-1)
        reward, terminated = self.dynamics.step(self.state, taken, self.chance)
        return self._seen(), float(reward), bool(terminated), False, {}

    def _seen(self) -> Any:
        row = np.empty(flat_size(self.observation_space), np.float32)
        self.dynamics.observe(self.state, row)
        return shaped(self.observation_space, row)
