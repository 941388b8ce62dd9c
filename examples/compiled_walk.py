"""An environment in compiled code: a walk on a line, with wind. `env_id: compiled_walk.py:WindyWalk`."""

import numpy as np
from gymnasium import spaces

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform
from rl_training.dynamics.interface import Dynamics
from rl_training.envs.compiled_env import CompiledEnv

LENGTH = 10


@njit()
def reset(state, chance):
    """The state of a new episode: one number, the place."""
    state[0] = int(uniform(chance) * LENGTH)


@njit()
def step(state, action, chance):
    """The reward, and whether the episode is over."""
    state[0] += 1 if action[0] == 1 else -1
    if uniform(chance) < 0.1:  # the wind
        state[0] -= 1
    state[0] = max(state[0], 0.0)
    return -1.0, state[0] >= LENGTH


@njit()
def observe(state, obs):
    obs[0] = state[0] / LENGTH


class WindyWalk(CompiledEnv):
    """Each step costs 1; the right end ends the episode."""

    dynamics = Dynamics(reset, step, observe, lowest=(0,), highest=(LENGTH,))
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
