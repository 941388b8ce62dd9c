"""The two mountain cars (Moore 1990) with Gymnasium's arithmetic, operation by operation."""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform
from rl_training.dynamics.interface import Dynamics

LEFTMOST, RIGHTMOST, FASTEST = -1.2, 0.6, 0.07
GRAVITY = 0.0025
FORCE, GOAL = 0.001, 0.5  # of the car with three actions
POWER, CONTINUOUS_GOAL = 0.0015, 0.45  # of the one with a throttle
DOUBLE = (LEFTMOST, RIGHTMOST, FASTEST, CONTINUOUS_GOAL)
SINGLE = (np.float32(LEFTMOST), np.float32(RIGHTMOST), np.float32(FASTEST), np.float32(CONTINUOUS_GOAL))


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    state[0], state[1] = -0.6 + (-0.4 - -0.6) * uniform(chance), 0.0


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    position, velocity = state
    velocity += (action[0] - 1) * FORCE + math.cos(3 * position) * (-GRAVITY)
    velocity = min(max(velocity, -FASTEST), FASTEST)
    position = min(max(position + velocity, LEFTMOST), RIGHTMOST)
    if position == LEFTMOST and velocity < 0:
        velocity = 0.0
    state[0], state[1] = position, velocity
    return -1.0, position >= GOAL and velocity >= 0


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[0], obs[1] = np.float32(state[0]), np.float32(state[1])


@njit(error_model="numpy")
def reset_continuous(state, chance):  # type: ignore[no-untyped-def]
    """The third number says that this is an episode's first state, which Gymnasium holds in double precision."""
    reset(state, chance)
    state[2] = 1.0


@njit(error_model="numpy")
def _rolled(position, velocity, limits):  # type: ignore[no-untyped-def]
    """Where a velocity leads: all in the precision of its arguments."""
    leftmost, rightmost, fastest, goal = limits
    velocity = min(max(velocity, -fastest), fastest)
    position = min(max(position + velocity, leftmost), rightmost)
    if position == leftmost and velocity < 0:
        velocity -= velocity  # a 0 of its own precision
    return np.float32(position), np.float32(velocity), position >= goal and velocity >= 0


@njit(error_model="numpy")
def step_continuous(state, action, chance):  # type: ignore[no-untyped-def]
    throttle = np.float32(action[0])
    position = np.float32(state[0])
    angle = 3 * state[0] if state[2] else np.float64(np.float32(3) * position)
    pull = np.float32(GRAVITY * math.cos(angle))
    push = min(max(throttle, np.float32(-1)), np.float32(1)) * np.float32(POWER) - pull
    if state[2]:
        speed = state[1] + np.float64(push)
        position, velocity, there = _rolled(state[0], speed, DOUBLE)
    else:
        position, velocity, there = _rolled(position, np.float32(np.float32(state[1]) + push), SINGLE)
    state[0], state[1], state[2] = position, velocity, 0.0
    return (100.0 if there else 0.0) - np.float64(throttle) * np.float64(throttle) * 0.1, there


MOUNTAIN_CAR = Dynamics(reset, step, observe, (LEFTMOST, -FASTEST), (RIGHTMOST, FASTEST))
CONTINUOUS_MOUNTAIN_CAR = Dynamics(
    reset_continuous, step_continuous, observe, (-1.3, -0.1, 0.0), (0.7, 0.1, 1.0)
)
