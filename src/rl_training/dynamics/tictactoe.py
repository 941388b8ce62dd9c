"""Two-player tic-tac-toe, as in `rl_training/TicTacToe-v0`; the state is nine squares and the player to move."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.interface import Dynamics

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
TURN = 9  # where the state says who is to move: 1 or 2, as their stones are


@njit(error_model="numpy")
def clear_board(state, chance):  # type: ignore[no-untyped-def]
    """No stones; the state ends with who is to move, which is the first player."""
    state[:] = 0.0
    state[-1] = 1.0


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    square, mover = np.int64(action[0]), state[TURN]
    if state[square] != 0:
        raise ValueError("the square is taken")
    state[square], state[TURN] = mover, 3.0 - mover
    won = False
    for i in range(8):
        a, b, c = LINES[i]
        won = won or (state[a] == mover and state[b] == mover and state[c] == mover)
    return (1.0 if won else 0.0), won or bool((state[:TURN] != 0).all())


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    """The mover's stones, the other side's, and the squares that are free."""
    for i in range(9):
        obs[i] = np.float32(state[i] == state[TURN])
        obs[9 + i] = np.float32(state[i] == 3.0 - state[TURN])
        obs[18 + i] = np.float32(state[i] == 0)


TICTACTOE = Dynamics(clear_board, step, observe, (*(0,) * 9, 1), (*(2,) * 9, 2), masked=True)
