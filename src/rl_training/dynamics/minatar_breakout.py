"""Breakout of MinAtar: a paddle, a ball that flies along diagonals, and three rows of bricks."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import below
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.minatar import FULL_ROW, LEFT, NOOP, RIGHT, SIDE, mark, mark_rows, taken

# The state: the last action, the paddle, the ball, its direction, where it was, whether it strikes, and the bricks.
_, PADDLE, BALL_X, BALL_Y, DIRECTION, TRAIL_X, TRAIL_Y, STRIKE, BRICKS = range(9)
ROWS, FIRST_ROW = 3, 1
ACTIONS = np.array([NOOP, LEFT, RIGHT])
# Directions 0 to 3 lead up left, up right, down right and down left; what they become at a side, a floor and a corner.
AT_A_SIDE, AT_A_FLOOR, BACK = np.array([1, 0, 3, 2]), np.array([3, 2, 1, 0]), np.array([2, 3, 0, 1])
CHANNELS = 4  # paddle, ball, trail, brick


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    side = below(chance, 2)
    state[PADDLE], state[BALL_Y], state[STRIKE] = 4, 3, 0
    state[BALL_X], state[DIRECTION] = 9 * side, 2 + side
    state[TRAIL_X], state[TRAIL_Y] = state[BALL_X], state[BALL_Y]
    state[BRICKS:] = FULL_ROW


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    move = taken(state, ACTIONS[np.int64(action[0])], chance)
    if move == LEFT:
        state[PADDLE] = max(state[PADDLE] - 1, 0)
    elif move == RIGHT:
        state[PADDLE] = min(state[PADDLE] + 1, SIDE - 1)
    return _fly(state)


@njit(error_model="numpy")
def _fly(state):  # type: ignore[no-untyped-def]
    """The ball's next cell, and what it meets there."""
    reward, over, striking = 0.0, False, False
    state[TRAIL_X], state[TRAIL_Y] = state[BALL_X], state[BALL_Y]
    way = np.int64(state[DIRECTION])
    x = np.int64(state[BALL_X]) + (1 if way in (1, 2) else -1)
    y = np.int64(state[BALL_Y]) + (1 if way >= 2 else -1)
    if x < 0 or x >= SIDE:
        x, way = min(max(x, 0), SIDE - 1), AT_A_SIDE[way]
    row = y - FIRST_ROW
    if y < 0:
        y, way = 0, AT_A_FLOOR[way]
    elif 0 <= row < ROWS and np.int64(state[BRICKS + row]) >> x & 1:
        striking = True
        if not state[STRIKE]:
            reward, state[STRIKE] = 1.0, 1
            state[BRICKS + row] = np.int64(state[BRICKS + row]) & ~(1 << x)
            y, way = np.int64(state[TRAIL_Y]), AT_A_FLOOR[way]
    elif y == SIDE - 1:
        if not state[BRICKS:].any():
            state[BRICKS:] = FULL_ROW
        if state[BALL_X] == state[PADDLE]:
            y, way = np.int64(state[TRAIL_Y]), AT_A_FLOOR[way]
        elif x == state[PADDLE]:
            y, way = np.int64(state[TRAIL_Y]), BACK[way]
        else:
            over = True
    if not striking:
        state[STRIKE] = 0
    state[BALL_X], state[BALL_Y], state[DIRECTION] = x, y, way
    return reward, over


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[:] = np.float32(0)
    mark(obs, CHANNELS, SIDE - 1, np.int64(state[PADDLE]), 0)
    mark(obs, CHANNELS, np.int64(state[BALL_Y]), np.int64(state[BALL_X]), 1)
    mark(obs, CHANNELS, np.int64(state[TRAIL_Y]), np.int64(state[TRAIL_X]), 2)
    mark_rows(obs, CHANNELS, state[BRICKS:], FIRST_ROW, 3)


BREAKOUT = Dynamics(reset, step, observe, (0,) * 11, (5, 9, 9, 9, 3, 9, 9, 1, FULL_ROW, FULL_ROW, FULL_ROW))
