"""Wrappers of one's own, for tests: named as `wrapping:Scaled` or by the path of this file."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Scaled(gym.ObservationWrapper):
    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by
        low, high = (
            np.asarray(bound * by, np.float32)
            for bound in (env.observation_space.low, env.observation_space.high)
        )
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, obs):
        return np.asarray(obs * self.by, np.float32)


class Tired(gym.Wrapper):
    """Each step of an episode is worth less than the one before: a wrapper with a state."""

    def reset(self, **options):
        self.worth = 1.0
        return self.env.reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.worth *= 0.99
        return obs, reward * self.worth, terminated, truncated, info


def nothing(env):
    return None


class Talking(gym.Wrapper):
    """Says something besides what is seen."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"seen": env.observation_space, "said": spaces.Text(40)})

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return {"seen": obs, "said": "balance the pole"}, info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return ({"seen": obs, "said": "balance the Pole, the pole"}, *rest)
