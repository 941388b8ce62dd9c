"""Environments that are uneven in speed or fail now and then, for tests of fleets: `fleet_envs:fleet/<Name>-v0`."""

import os
import signal
import time
from contextlib import suppress

import gymnasium as gym
import numpy as np


class Uneven(gym.Wrapper):
    """CartPole that now and then sleeps, for a time that nobody can foresee."""

    def __init__(self, env):
        super().__init__(env)
        self.clock = np.random.default_rng()

    def step(self, action):
        if self.clock.random() < 0.05:
            time.sleep(self.clock.random() * 0.01)
        return super().step(action)


class Faulty(gym.Wrapper):
    """CartPole that fails after `at` steps, as long as there is a file in the folder `faults` to be used up for it.

    In the process `learner` it never fails: what a learner plays by itself is not what actors are tested for.
    """

    def __init__(self, env, faults, kind, at, learner=None):
        super().__init__(env)
        self.faults, self.kind, self.at, self.steps = faults, kind, at, 0
        self.spared = os.getpid() == learner

    def reset(self, *, seed=None, options=None):
        # By `train`, before the run: that shall pass.
        self.tried_out = self.spared or (seed is not None and seed < 10)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.steps += not self.tried_out
        if self.steps >= self.at and not self.tried_out and self.use_up():
            self.steps = 0
            if self.kind == "raise":
                raise RuntimeError("the pole has broken")
            os.kill(os.getpid(), signal.SIGKILL if self.kind == "die" else signal.SIGSTOP)
        return super().step(action)

    def use_up(self):
        for name in os.listdir(self.faults):
            with suppress(FileNotFoundError):  # another actor was faster
                os.unlink(os.path.join(self.faults, name))
                return True
        return False


def cartpole(wrapper):
    return lambda **kwargs: wrapper(gym.make("CartPole-v1").unwrapped, **kwargs)


for wrapper in (Uneven, Faulty):
    gym.register(f"fleet/{wrapper.__name__}-v0", cartpole(wrapper), max_episode_steps=500)
