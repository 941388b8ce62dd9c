"""Shared by the five games of MinAtar (Young and Tian 2019): a grid of 10 by 10, six actions, and sticky actions.

Written from the rules of the games as its package plays them, in the versions with minimal actions (`MinAtar/*-v1`).
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import uniform

SIDE = 10
NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
LAST = 0  # where a state holds the action taken last, which the package keeps when a game begins
STICKY = 0.1  # how often it is taken again
FULL_ROW = 2**SIDE - 1  # a row of cells as bits


@njit(error_model="numpy")
def taken(state, action, chance):  # type: ignore[no-untyped-def]
    """The action that the game sees, which is now and then the one before."""
    if uniform(chance) < STICKY:
        action = np.int64(state[LAST])
    state[LAST] = action
    return action


@njit(error_model="numpy")
def mark(obs, channels, row, column, channel):  # type: ignore[no-untyped-def]
    """Set a cell of a flat observation [10, 10, C]; cells outside the grid are left out."""
    if 0 <= row < SIDE and 0 <= column < SIDE:
        obs[(row * SIDE + column) * channels + channel] = np.float32(1)


@njit(error_model="numpy")
def mark_rows(obs, channels, rows, first, channel):  # type: ignore[no-untyped-def]
    """Set the cells of rows of bits, the first of which is row `first`."""
    for i in range(len(rows)):
        bits = np.int64(rows[i])
        for column in range(SIDE):
            if bits >> column & 1:
                mark(obs, channels, first + i, column, channel)
