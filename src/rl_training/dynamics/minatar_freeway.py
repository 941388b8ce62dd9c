"""Freeway of MinAtar: a chicken crosses eight lanes of cars, for 2500 frames."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import below, uniform
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.minatar import DOWN, NOOP, SIDE, UP, mark, taken

_, ROW, MOVE_TIMER, TIME, CARS = range(5)
LANES, FIELDS = (
    8,
    3,
)  # a car in each lane: its column, its timer, and its speed with the sign of its direction
COLUMN, TIMER, SPEED = range(FIELDS)
ACTIONS = np.array([NOOP, UP, DOWN])
CHICKENS_COLUMN, PLAYER_SPEED, FRAMES = 4, 3, 2500
CHANNELS = 7  # chicken, car, and a trail for each of five speeds


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    cars = state[CARS:].reshape(LANES, FIELDS)
    cars[:, COLUMN] = 0
    _new_speeds(cars, chance)
    state[ROW], state[MOVE_TIMER], state[TIME] = SIDE - 1, PLAYER_SPEED, FRAMES


@njit(error_model="numpy")
def _new_speeds(cars, chance):  # type: ignore[no-untyped-def]
    for i in range(LANES):
        cars[i, TIMER] = 1 + below(chance, 5)
    for i in range(LANES):
        cars[i, SPEED] = cars[i, TIMER] if uniform(chance) >= 0.5 else -cars[i, TIMER]


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    move = taken(state, ACTIONS[np.int64(action[0])], chance)
    cars, reward = state[CARS:].reshape(LANES, FIELDS), 0.0
    if move != NOOP and state[MOVE_TIMER] == 0:
        if move == UP:
            state[MOVE_TIMER], state[ROW] = PLAYER_SPEED, max(state[ROW] - 1, 0)
        elif move == DOWN:
            state[MOVE_TIMER], state[ROW] = PLAYER_SPEED, min(state[ROW] + 1, SIDE - 1)
    if state[ROW] == 0:
        reward, state[ROW] = 1.0, SIDE - 1
        _new_speeds(cars, chance)
    for i in range(LANES):
        _hit(state, cars, i)
        if cars[i, TIMER] == 0:
            cars[i, TIMER] = abs(cars[i, SPEED])
            cars[i, COLUMN] = (cars[i, COLUMN] + (1 if cars[i, SPEED] > 0 else SIDE - 1)) % SIDE
            _hit(state, cars, i)
        else:
            cars[i, TIMER] -= 1
    state[MOVE_TIMER] -= state[MOVE_TIMER] > 0
    state[TIME] -= 1
    return reward, state[TIME] < 0


@njit(error_model="numpy")
def _hit(state, cars, i):  # type: ignore[no-untyped-def]
    """A car that meets the chicken sends it back."""
    if state[ROW] == i + 1 and cars[i, COLUMN] == CHICKENS_COLUMN:
        state[ROW] = SIDE - 1


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[:] = np.float32(0)
    mark(obs, CHANNELS, np.int64(state[ROW]), CHICKENS_COLUMN, 0)
    cars = state[CARS:].reshape(LANES, FIELDS)
    for i in range(LANES):
        column, speed = np.int64(cars[i, COLUMN]), np.int64(cars[i, SPEED])
        mark(obs, CHANNELS, i + 1, column, 1)
        behind = (column + (SIDE - 1 if speed > 0 else 1)) % SIDE
        mark(obs, CHANNELS, i + 1, behind, 1 + abs(speed))


FREEWAY = Dynamics(
    reset, step, observe, (0, 0, 0, -1, *(0, 0, -5) * LANES), (5, 9, 3, FRAMES, *(9, 5, 5) * LANES)
)
