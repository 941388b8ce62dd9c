"""CartPole with an expensive step, for measuring how actors scale with slow environments."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym

from rl_training.types import Env


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """Computes for `milliseconds` in every step: CPU time, not sleep, as a simulator would."""

    def __init__(self, env: Env, milliseconds: float) -> None:
        super().__init__(env)
        self.seconds = milliseconds / 1000

    def step(self, action: object) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return super().step(action)


def busy_cartpole(milliseconds: float = 1.0, **kwargs: Any) -> Env:
    return Busy(gym.make("CartPole-v1", **kwargs).unwrapped, milliseconds)
