"""Asterix of MinAtar: collect gold and avoid enemies, both of which cross the grid in eight rows."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import below, uniform
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.minatar import DOWN, LEFT, NOOP, RIGHT, SIDE, UP, mark, taken

_, X, Y, SPAWN_SPEED, SPAWN_TIMER, MOVE_SPEED, MOVE_TIMER, RAMP_TIMER, RAMP, THINGS = range(10)
SLOTS, FIELDS = (
    8,
    4,
)  # a thing in each row at most: whether it is there, its column, its direction, whether it is gold
THERE, COLUMN, TO_THE_RIGHT, GOLD = range(FIELDS)
ACTIONS = np.array([NOOP, LEFT, UP, RIGHT, DOWN])
RAMP_INTERVAL = 100
CHANNELS = 4  # player, enemy, trail, gold


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    state[X], state[Y] = 5, 5
    state[SPAWN_SPEED], state[SPAWN_TIMER], state[MOVE_SPEED], state[MOVE_TIMER] = 10, 10, 5, 5
    state[RAMP_TIMER], state[RAMP] = RAMP_INTERVAL, 0
    state[THINGS:] = 0


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    move = taken(state, ACTIONS[np.int64(action[0])], chance)
    things = state[THINGS:].reshape(SLOTS, FIELDS)
    if state[SPAWN_TIMER] == 0:
        _spawn(things, chance)
        state[SPAWN_TIMER] = state[SPAWN_SPEED]
    if move == LEFT:
        state[X] = max(state[X] - 1, 0)
    elif move == RIGHT:
        state[X] = min(state[X] + 1, SIDE - 1)
    elif move == UP:
        state[Y] = max(state[Y] - 1, 1)
    elif move == DOWN:
        state[Y] = min(state[Y] + 1, SLOTS)
    reward, over = _meet(state, things, 0.0, False)
    if state[MOVE_TIMER] == 0:
        state[MOVE_TIMER] = state[MOVE_SPEED]
        for i in range(SLOTS):
            if things[i, THERE]:
                things[i, COLUMN] += 1 if things[i, TO_THE_RIGHT] else -1
                if things[i, COLUMN] < 0 or things[i, COLUMN] >= SIDE:
                    things[i] = 0
        reward, over = _meet(state, things, reward, over)
    state[SPAWN_TIMER] -= 1
    state[MOVE_TIMER] -= 1
    _ramp(state)
    return reward, over


@njit(error_model="numpy")
def _spawn(things, chance):  # type: ignore[no-untyped-def]
    """A thing at either side of a free row."""
    to_the_right, gold = uniform(chance) < 1 / 2, uniform(chance) < 1 / 3
    free = SLOTS - np.int64(things[:, THERE].sum())
    if free == 0:
        return
    chosen = below(chance, free)
    for i in range(SLOTS):
        if not things[i, THERE]:
            if chosen == 0:
                things[i, THERE], things[i, COLUMN] = 1, 0 if to_the_right else SIDE - 1
                things[i, TO_THE_RIGHT], things[i, GOLD] = to_the_right, gold
                return
            chosen -= 1


@njit(error_model="numpy")
def _meet(state, things, reward, over):  # type: ignore[no-untyped-def]
    """Gold where the player stands is a reward, an enemy is the end."""
    i = np.int64(state[Y]) - 1
    if things[i, THERE] and things[i, COLUMN] == state[X]:
        if things[i, GOLD]:
            things[i] = 0
            reward += 1.0
        else:
            over = True
    return reward, over


@njit(error_model="numpy")
def _ramp(state):  # type: ignore[no-untyped-def]
    """The game gets faster, now and then."""
    if state[SPAWN_SPEED] <= 1 and state[MOVE_SPEED] <= 1:
        return
    if state[RAMP_TIMER] >= 0:
        state[RAMP_TIMER] -= 1
        return
    if state[MOVE_SPEED] > 1 and state[RAMP] % 2:
        state[MOVE_SPEED] -= 1
    if state[SPAWN_SPEED] > 1:
        state[SPAWN_SPEED] -= 1
    state[RAMP] += 1
    state[RAMP_TIMER] = RAMP_INTERVAL


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[:] = np.float32(0)
    mark(obs, CHANNELS, np.int64(state[Y]), np.int64(state[X]), 0)
    things = state[THINGS:].reshape(SLOTS, FIELDS)
    for i in range(SLOTS):
        if things[i, THERE]:
            column = np.int64(things[i, COLUMN])
            mark(obs, CHANNELS, i + 1, column, 3 if things[i, GOLD] else 1)
            mark(obs, CHANNELS, i + 1, column - (1 if things[i, TO_THE_RIGHT] else -1), 2)


ASTERIX = Dynamics(
    reset,
    step,
    observe,
    (0, 0, 1, 1, 0, 1, 0, -1, 0, *(0,) * SLOTS * FIELDS),
    (5, 9, 8, 10, 10, 5, 5, RAMP_INTERVAL, 1e9, *(1, 9, 1, 1) * SLOTS),
)
