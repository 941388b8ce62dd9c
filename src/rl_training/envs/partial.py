"""Partially observable environments, for policies with a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class OnlyEntries(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Shows only some entries of a vector."""

    def __init__(self, env: gym.Env[np.ndarray, Any], entries: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.entries = list(entries)
        self.observation_space = spaces.Box(
            space.low[self.entries], space.high[self.entries], dtype=space.dtype.type
        )

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.entries]


def cartpole_no_velocity(**options: Any) -> gym.Env[np.ndarray, Any]:
    """CartPole with the cart's position and the pole's angle only."""
    return OnlyEntries(CartPoleEnv(**options), entries=(0, 2))
