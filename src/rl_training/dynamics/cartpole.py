"""CartPole (Barto, Sutton and Anderson 1983) with Gymnasium's arithmetic, operation by operation."""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform
from rl_training.dynamics.interface import Dynamics

GRAVITY = 9.8
MASS_OF_POLE = 0.1
MASS = MASS_OF_POLE + 1.0
HALF_LENGTH = 0.5
MASS_LENGTH = MASS_OF_POLE * HALF_LENGTH
FORCE = 10.0
SECONDS = 0.02  # between two states
WIDEST = 2.4
STEEPEST = 12 * 2 * math.pi / 360


@njit(borrows=True, error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    for i in range(4):
        state[i] = -0.05 + 0.1 * uniform(chance)


@njit(borrows=True, error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    x, speed, angle, turning = state
    force = FORCE if action[0] == 1 else -FORCE
    cosine, sine = math.cos(angle), math.sin(angle)
    pushed = (force + MASS_LENGTH * (turning * turning) * sine) / MASS
    turned = (GRAVITY * sine - cosine * pushed) / (
        HALF_LENGTH * (4.0 / 3.0 - MASS_OF_POLE * (cosine * cosine) / MASS)
    )
    moved = pushed - MASS_LENGTH * turned * cosine / MASS
    x += SECONDS * speed
    angle += SECONDS * turning
    state[0], state[1] = x, speed + SECONDS * moved
    state[2], state[3] = angle, turning + SECONDS * turned
    return 1.0, x < -WIDEST or x > WIDEST or angle < -STEEPEST or angle > STEEPEST


@njit(borrows=True, error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    for i in range(4):
        obs[i] = np.float32(state[i])


CARTPOLE = Dynamics(reset, step, observe, (-1e9,) * 4, (1e9,) * 4)
