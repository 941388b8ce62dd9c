"""Space Invaders of MinAtar: a cannon below a cluster of aliens that come closer and shoot back."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.minatar import FIRE, FULL_ROW, LEFT, NOOP, RIGHT, SIDE, mark, mark_rows, taken

# Aliens and the bullets of both sides are rows of bits.
_, CANNON, DIRECTION, MOVE_INTERVAL, MOVE_TIMER, ALIENS_SHOT_TIMER, SHOT_TIMER, MAPS = range(8)
ALIENS, OURS, THEIRS = range(3)
ACTIONS = np.array([NOOP, LEFT, RIGHT, FIRE])
COOL_DOWN, SLOWEST, FASTEST, ALIENS_SHOT_INTERVAL = 5, 12, 6, 10
WAVE = 0b0011111100  # columns 2 to 7 of rows 0 to 3
CHANNELS = 6  # cannon, alien, alien that moves left, that moves right, bullet of ours, bullet of theirs


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    state[CANNON], state[DIRECTION], state[MOVE_INTERVAL], state[MOVE_TIMER] = 5, -1, SLOWEST, SLOWEST
    state[ALIENS_SHOT_TIMER], state[SHOT_TIMER] = ALIENS_SHOT_INTERVAL, 0
    state[MAPS:] = 0
    state[MAPS : MAPS + 4] = WAVE


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    move = taken(state, ACTIONS[np.int64(action[0])], chance)
    maps = state[MAPS:].reshape(3, SIDE)
    if move == FIRE and state[SHOT_TIMER] == 0:
        maps[OURS, SIDE - 1] = np.int64(maps[OURS, SIDE - 1]) | 1 << np.int64(state[CANNON])
        state[SHOT_TIMER] = COOL_DOWN
    elif move == LEFT:
        state[CANNON] = max(state[CANNON] - 1, 0)
    elif move == RIGHT:
        state[CANNON] = min(state[CANNON] + 1, SIDE - 1)
    for row in range(SIDE - 1):
        maps[OURS, row] = maps[OURS, row + 1]
    maps[OURS, SIDE - 1] = 0
    for row in range(SIDE - 1, 0, -1):
        maps[THEIRS, row] = maps[THEIRS, row - 1]
    maps[THEIRS, 0] = 0
    over = _at_the_cannon(state, maps, THEIRS) or _at_the_cannon(state, maps, ALIENS)
    if state[MOVE_TIMER] == 0:
        state[MOVE_TIMER] = min(_count(maps[ALIENS]), state[MOVE_INTERVAL])
        over = _march(state, maps[ALIENS]) or over
        over = _at_the_cannon(state, maps, ALIENS) or over
    if state[ALIENS_SHOT_TIMER] == 0:
        state[ALIENS_SHOT_TIMER] = ALIENS_SHOT_INTERVAL
        _shoot_back(state, maps)
    reward = _hits(maps)
    state[SHOT_TIMER] -= state[SHOT_TIMER] > 0
    state[MOVE_TIMER] -= 1
    state[ALIENS_SHOT_TIMER] -= 1
    if not maps[ALIENS].any():
        state[MOVE_INTERVAL] -= state[MOVE_INTERVAL] > FASTEST
        maps[ALIENS, :4] = WAVE
    return reward, over


@njit(error_model="numpy")
def _at_the_cannon(state, maps, which):  # type: ignore[no-untyped-def]
    return (np.int64(maps[which, SIDE - 1]) >> np.int64(state[CANNON]) & 1) == 1


@njit(error_model="numpy")
def _count(rows):  # type: ignore[no-untyped-def]
    total = 0
    for row in rows:
        bits = np.int64(row)
        while bits:
            bits &= bits - 1
            total += 1
    return total


@njit(error_model="numpy")
def _march(state, aliens):  # type: ignore[no-untyped-def]
    """All aliens move aside, or down where one is at the edge; → whether one was in the last row then."""
    everywhere = 0
    for row in aliens:
        everywhere |= np.int64(row)
    left = state[DIRECTION] < 0
    if everywhere & (1 if left else 1 << SIDE - 1):
        state[DIRECTION] = -state[DIRECTION]
        last = aliens[SIDE - 1]
        for row in range(SIDE - 1, 0, -1):
            aliens[row] = aliens[row - 1]
        aliens[0] = last
        return last != 0
    for row in range(SIDE):
        bits = np.int64(aliens[row])
        aliens[row] = bits >> 1 if left else bits << 1 & FULL_ROW
    return False


@njit(error_model="numpy")
def _shoot_back(state, maps):  # type: ignore[no-untyped-def]
    """The lowest alien of the nearest column shoots; of two that are as near the left one."""
    cannon = np.int64(state[CANNON])
    for away in range(SIDE):
        for column in (cannon - away, cannon + away):
            if 0 <= column < SIDE:
                for row in range(SIDE - 1, -1, -1):
                    if np.int64(maps[ALIENS, row]) >> column & 1:
                        maps[THEIRS, row] = np.int64(maps[THEIRS, row]) | 1 << column
                        return


@njit(error_model="numpy")
def _hits(maps):  # type: ignore[no-untyped-def]
    """Aliens and bullets that meet are gone; a reward of 1 each."""
    reward = 0.0
    for row in range(SIDE):
        hit = np.int64(maps[ALIENS, row]) & np.int64(maps[OURS, row])
        if hit:
            maps[ALIENS, row] = np.int64(maps[ALIENS, row]) & ~hit
            maps[OURS, row] = np.int64(maps[OURS, row]) & ~hit
            while hit:
                hit &= hit - 1
                reward += 1.0
    return reward


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[:] = np.float32(0)
    maps = state[MAPS:].reshape(3, SIDE)
    mark(obs, CHANNELS, SIDE - 1, np.int64(state[CANNON]), 0)
    mark_rows(obs, CHANNELS, maps[ALIENS], 0, 1)
    mark_rows(obs, CHANNELS, maps[ALIENS], 0, 2 if state[DIRECTION] < 0 else 3)
    mark_rows(obs, CHANNELS, maps[OURS], 0, 4)
    mark_rows(obs, CHANNELS, maps[THEIRS], 0, 5)


SPACE_INVADERS = Dynamics(
    reset,
    step,
    observe,
    (0, 0, -1, FASTEST, -1, -1, 0, *(0,) * 30),
    (5, 9, 1, SLOWEST, SLOWEST, ALIENS_SHOT_INTERVAL, COOL_DOWN, *(FULL_ROW,) * 30),
)
