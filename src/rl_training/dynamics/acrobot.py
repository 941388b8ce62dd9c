"""Acrobot (Sutton 1996) with Gymnasium's arithmetic, operation by operation."""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform
from rl_training.dynamics.exact import square
from rl_training.dynamics.interface import Dynamics

SECONDS = 0.2 - 0
MASS = LENGTH = INERTIA = 1.0
CENTRE = 0.5  # of mass of a link
GRAVITY = 9.8
FASTEST = (4 * math.pi, 9 * math.pi)


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    for i in range(4):
        state[i] = np.float32(-0.1 + 0.2 * uniform(chance))


@njit(error_model="numpy")
def _slopes(first, second, first_speed, second_speed, torque):  # type: ignore[no-untyped-def]
    """d/dt of the two speeds, after Sutton and Barto's book."""
    inertia = (
        MASS * CENTRE**2
        + MASS * (LENGTH**2 + CENTRE**2 + 2 * LENGTH * CENTRE * math.cos(second))
        + INERTIA
        + INERTIA
    )
    coupling = MASS * (CENTRE**2 + LENGTH * CENTRE * math.cos(second)) + INERTIA
    below = MASS * CENTRE * GRAVITY * math.cos(first + second - math.pi / 2.0)
    above = (
        -MASS * LENGTH * CENTRE * square(second_speed) * math.sin(second)
        - 2 * MASS * LENGTH * CENTRE * second_speed * first_speed * math.sin(second)
        + (MASS * CENTRE + MASS * LENGTH) * GRAVITY * math.cos(first - math.pi / 2)
        + below
    )
    second_slope = (
        torque
        + coupling / inertia * above
        - MASS * LENGTH * CENTRE * square(first_speed) * math.sin(second)
        - below
    ) / (MASS * CENTRE**2 + INERTIA - square(coupling) / inertia)
    return -(coupling * second_slope + above) / inertia, second_slope


@njit()
def _shifted(state, by, slopes):  # type: ignore[no-untyped-def]
    return (
        state[0] + by * slopes[0],
        state[1] + by * slopes[1],
        state[2] + by * slopes[2],
        state[3] + by * slopes[3],
    )


@njit(error_model="numpy")
def _wrapped(angle):  # type: ignore[no-untyped-def]
    """The angle in [-π, π]."""
    turn = math.pi - -math.pi
    while angle > math.pi:
        angle -= turn
    while angle < -math.pi:
        angle += turn
    return angle


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    """One step of Runge and Kutta's method of fourth order."""
    torque, half = action[0] - 1.0, SECONDS / 2.0
    start = (state[0], state[1], state[2], state[3])
    k1 = (start[2], start[3], *_slopes(*start, torque))
    seen = _shifted(start, half, k1)
    k2 = (seen[2], seen[3], *_slopes(*seen, torque))
    seen = _shifted(start, half, k2)
    k3 = (seen[2], seen[3], *_slopes(*seen, torque))
    seen = _shifted(start, SECONDS, k3)
    k4 = (seen[2], seen[3], *_slopes(*seen, torque))
    for i in range(4):
        state[i] = start[i] + SECONDS / 6.0 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i])
    for i in range(2):
        state[i] = _wrapped(state[i])
        state[2 + i] = min(max(state[2 + i], -FASTEST[i]), FASTEST[i])
    there = -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1.0
    return 0.0 if there else -1.0, there


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    for i in range(2):
        obs[2 * i] = np.float32(math.cos(state[i]))
        obs[2 * i + 1] = np.float32(math.sin(state[i]))
        obs[4 + i] = np.float32(state[2 + i])


ACROBOT = Dynamics(
    reset,
    step,
    observe,
    (-math.pi, -math.pi, -FASTEST[0], -FASTEST[1]),
    (math.pi, math.pi, FASTEST[0], FASTEST[1]),
)
