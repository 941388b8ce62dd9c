"""The pendulum to swing up, with Gymnasium's arithmetic, operation by operation."""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform
from rl_training.dynamics.exact import square, square_single
from rl_training.dynamics.interface import Dynamics

FASTEST, STRONGEST, SECONDS = 8.0, np.float32(2.0), 0.05
PULL = 3 * 10.0 / (2 * 1.0)  # 3 g / 2 l
PUSH = np.float32(3.0 / (1.0 * 1.0**2))  # 3 / m l²


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    state[0] = -math.pi + 2 * math.pi * uniform(chance)
    state[1] = -1.0 + 2.0 * uniform(chance)


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    angle, speed = state
    # The torque stays in single precision until it meets the rest.
    torque = min(max(np.float32(action[0]), -STRONGEST), STRONGEST)
    upright = (angle + math.pi) % (2 * math.pi) - math.pi
    cost = square(upright) + 0.1 * square(speed) + np.float64(np.float32(0.001) * square_single(torque))
    speed += (PULL * math.sin(angle) + np.float64(PUSH * torque)) * SECONDS
    speed = min(max(speed, -FASTEST), FASTEST)
    state[0], state[1] = angle + speed * SECONDS, speed
    return -cost, False


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[0], obs[1] = np.float32(math.cos(state[0])), np.float32(math.sin(state[0]))
    obs[2] = np.float32(state[1])


PENDULUM = Dynamics(reset, step, observe, (-1e9, -FASTEST), (1e9, FASTEST))
