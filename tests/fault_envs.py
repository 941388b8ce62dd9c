"""Environments that break promises, for tests of what training says then: `fault_envs:fault/<Name>-v0`."""

import errno
import multiprocessing
import os
import time
from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """A place on a line, moved by the action and by chance; sound. It ends after `length` steps."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=50):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, float(self.np_random.normal())
        return self.look(), {}

    def step(self, action):
        self.t += 1
        self.place += (1 if action else -1) + 0.1 * float(self.np_random.normal())
        self.place = float(np.clip(self.place, -90, 90))
        return self.look(), self.reward(action), self.over(), False, {}

    def look(self):
        return np.array([self.place, self.t], np.float32)

    def reward(self, action):
        return 1.0

    def over(self):
        return self.t >= self.length


class Counter(Walk):
    """Its reward grows with the number of its episodes, which no seed brings back."""

    episodes = 0

    def reset(self, **options):
        self.episodes += 1
        return super().reset(**options)

    def reward(self, action):
        return float(self.episodes)


class OwnGenerator(Walk):
    """Its reward comes from a generator that no reset seeds."""

    def __init__(self, length=50):
        super().__init__(length)
        self.chance = np.random.default_rng()

    def reward(self, action):
        return float(self.chance.normal())


class OtherOrder(Counter):
    """Its rewards have the same sum in every two steps, but come in another order."""

    def reward(self, action):
        return float((self.t + self.episodes) % 2)


class EndsEarlier(Counter):
    """Its episodes become shorter."""

    def reward(self, action):
        return 0.0

    def over(self):
        return self.t >= self.length - 10 * self.episodes


class Raises(Walk):
    """Raises in the step `at` of an episode."""

    def __init__(self, at=20, length=50):
        super().__init__(length)
        self.at = at

    def reward(self, action):
        if self.t == self.at:
            raise KeyError("no such piece")
        return 1.0


class BusyPort(Walk):
    """Takes a port that only one process can have: a worker finds it taken."""

    def __init__(self, length=50):
        super().__init__(length)
        if multiprocessing.parent_process() is not None:
            raise OSError(errno.EADDRINUSE, "Address already in use")


class Huge(Walk):
    """Its reward is `reward`."""

    def __init__(self, reward=1e30, length=50, continuous=False):
        super().__init__(length)
        self.huge = reward
        if continuous:
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        return super().step(np.ravel(action)[0] > 0)

    def reward(self, action):
        return self.huge


class FourValues(Walk):
    def step(self, action):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, over, info


class OldReset(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class ArrayReward(Walk):
    def reward(self, action):
        return np.ones(1)


class WrongShape(Walk):
    def look(self):
        return np.zeros(3, np.float32)


class NoSpaces(gym.Env):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class LateShape(Walk):
    """Its observations lose an entry after 30 steps."""

    def look(self):
        return super().look()[: 1 if self.t > 30 else 2]


class LateReward(Walk):
    """Its reward becomes an array after 30 steps."""

    def reward(self, action):
        return np.ones(2) if self.t > 30 else 1.0


class FarOutside(Walk):
    observation_space = spaces.Box(0, 1, (2,), np.float32)

    def look(self):
        return np.array([0.5, 255.0], np.float32)


class OtherType(Walk):
    def look(self):
        return super().look().astype(np.float64)


class Slow(Walk):
    """Says how often it was stepped."""

    steps: ClassVar[list[int]] = [0]

    def step(self, action):
        self.steps[0] += 1
        return super().step(action)


class Held(Walk):
    """Stands still after `at` steps for as long as there is a file `held`."""

    def __init__(self, held, at, length=50):
        super().__init__(length)
        self.held, self.at, self.steps = held, at, 0

    def step(self, action):
        self.steps += 1
        while self.steps > self.at and os.path.exists(self.held):
            time.sleep(0.01)
        return super().step(action)


KINDS = (
    Walk,
    Counter,
    OwnGenerator,
    OtherOrder,
    EndsEarlier,
    Raises,
    Huge,
    FourValues,
    OldReset,
    ArrayReward,
)
for kind in (
    *KINDS,
    BusyPort,
    WrongShape,
    NoSpaces,
    LateShape,
    LateReward,
    FarOutside,
    OtherType,
    Slow,
    Held,
):
    gym.register(f"fault/{kind.__name__}-v0", f"{__name__}:{kind.__name__}", max_episode_steps=200)
