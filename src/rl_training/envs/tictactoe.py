"""Two-player tic-tac-toe in one environment, for self-play."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


class TicTacToe(gym.Env[np.ndarray, Any]):
    """Whoever is to move sees its own stones in the first nine entries and the other side's in the last nine.

    A move that completes a line earns its mover 1 and ends the game; a full board ends it with nothing. `info` says
    whose turn it is (`to_play`, 0 or 1) and which squares are free (`action_mask`). With `random_moves` a game begins
    after up to so many moves at random, at most 4, so that nobody has won yet: who plays only against itself sees few
    openings otherwise.
    """

    def __init__(self, random_moves: int = 0) -> None:
        if not 0 <= random_moves <= 4:
            raise ValueError(f"random_moves must be 0 to 4, not {random_moves}")
        self.random_moves = random_moves
        self.observation_space = spaces.Box(0, 1, (18,), np.float32)
        self.action_space = spaces.Discrete(9)

    @property
    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The seven other ways to look at the board: which number and which action take the place of each."""
        squares = np.arange(9).reshape(3, 3)
        turns = [np.rot90(board, k).reshape(-1) for board in (squares, squares.T) for k in range(4)][1:]
        return [(np.concatenate([turn, 9 + turn]), turn) for turn in turns]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.stones = np.zeros((2, 9), np.float32)
        made = int(self.np_random.integers(self.random_moves + 1))
        for move, square in enumerate(self.np_random.permutation(9)[:made]):
            self.stones[move % 2, square] = 1
        self.to_play = made % 2
        return self._seen(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.stones[:, action].any():
            raise ValueError(f"square {action} is taken")
        self.stones[self.to_play, action] = 1
        won = wins(self.stones[self.to_play])
        self.to_play = 1 - self.to_play
        return self._seen(), float(won), won or bool(self.stones.sum() == 9), False, self._info()

    def _seen(self) -> np.ndarray:
        return self.stones[[self.to_play, 1 - self.to_play]].reshape(-1)

    def _info(self) -> dict[str, Any]:
        return {"to_play": self.to_play, "action_mask": 1 - self.stones.any(0).astype(np.int8)}


def wins(stones: np.ndarray) -> bool:
    """Whether a side's stones [9] hold a line."""
    return bool((stones[LINES].sum(1) == 3).any())
