"""Two-player Connect Four, as in `rl_training/ConnectFour-v0`; the state is 42 squares and the player to move."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.tictactoe import clear_board

ROWS, COLUMNS = 6, 7
SQUARES = ROWS * COLUMNS
TURN = SQUARES  # where the state says who is to move: 1 or 2, as their stones are
DIRECTIONS = np.array([[0, 1], [1, 0], [1, 1], [1, -1]])


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    column, mover = np.int64(action[0]), state[TURN]
    if state[column] != 0:
        raise ValueError("the column is full")
    row = ROWS - 1
    while state[row * COLUMNS + column] != 0:
        row -= 1
    state[row * COLUMNS + column], state[TURN] = mover, 3.0 - mover
    won = False
    for i in range(4):
        length = 1
        for sign in (1, -1):
            down, right = sign * DIRECTIONS[i, 0], sign * DIRECTIONS[i, 1]
            r, c = row + down, column + right
            while 0 <= r < ROWS and 0 <= c < COLUMNS and state[r * COLUMNS + c] == mover:
                length += 1
                r, c = r + down, c + right
        won = won or length >= 4
    return (1.0 if won else 0.0), won or bool((state[:COLUMNS] != 0).all())


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    """The mover's stones, the other side's, and the columns that are not full."""
    for i in range(SQUARES):
        obs[i] = np.float32(state[i] == state[TURN])
        obs[SQUARES + i] = np.float32(state[i] == 3.0 - state[TURN])
    for column in range(COLUMNS):
        obs[2 * SQUARES + column] = np.float32(state[column] == 0)


CONNECT_FOUR = Dynamics(clear_board, step, observe, (*(0,) * SQUARES, 1), (*(2,) * SQUARES, 2), masked=True)
