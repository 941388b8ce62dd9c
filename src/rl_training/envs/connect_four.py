"""Two-player Connect Four in one environment, for self-play."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS = 6, 7
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


class ConnectFour(gym.Env[np.ndarray, Any]):
    """Whoever is to move sees its own stones in the first plane of 6 × 7 and the other side's in the second.

    The top row comes first. A stone falls to the lowest free square of its column. Four in a row earn their mover 1
    and end the game; a full board ends it with nothing. `info` says whose turn it is (`to_play`, 0 or 1) and which
    columns are not full (`action_mask`). With `random_moves` a game begins after up to so many moves at random, each
    number as likely, fewer where one would end the game: who plays only against itself sees few positions otherwise.
    """

    def __init__(self, random_moves: int = 0) -> None:
        if not 0 <= random_moves < ROWS * COLUMNS:
            raise ValueError(f"random_moves must be 0 to {ROWS * COLUMNS - 1}, not {random_moves}")
        self.random_moves = random_moves
        self.observation_space = spaces.Box(0, 1, (2, ROWS, COLUMNS), np.float32)
        self.action_space = spaces.Discrete(COLUMNS)

    @property
    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The board mirrored: which number of the observation and which action take the place of each."""
        numbers = np.arange(2 * ROWS * COLUMNS).reshape(2, ROWS, COLUMNS)
        return [(numbers[..., ::-1].reshape(-1), np.arange(COLUMNS)[::-1])]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.stones = np.zeros((2, ROWS, COLUMNS), np.float32)
        self.to_play = 0
        for _ in range(int(self.np_random.integers(self.random_moves + 1))):
            row, column = self._drop(int(self.np_random.choice(np.flatnonzero(self._mask()))))
            if wins(self.stones[1 - self.to_play], row, column):
                self.to_play = 1 - self.to_play
                self.stones[self.to_play, row, column] = 0
                break
        return self._seen(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._mask()[action]:
            raise ValueError(f"column {action} is full")
        won = wins(self.stones[self.to_play], *self._drop(action))
        full = not self._mask().any()
        return self._seen(), float(won), won or full, False, self._info()

    def _drop(self, column: int) -> tuple[int, int]:
        """Put the mover's stone on top of a column, and let the other side move; where the stone lies."""
        row = int(ROWS - 1 - self.stones[:, :, column].sum())
        self.stones[self.to_play, row, column] = 1
        self.to_play = 1 - self.to_play
        return row, column

    def _mask(self) -> np.ndarray:
        mask: np.ndarray = (self.stones.sum(0)[0] == 0).astype(np.int8)
        return mask

    def _seen(self) -> np.ndarray:
        return self.stones[[self.to_play, 1 - self.to_play]]

    def _info(self) -> dict[str, Any]:
        return {"to_play": self.to_play, "action_mask": self._mask()}


def wins(stones: np.ndarray, row: int, column: int) -> bool:
    """Whether a side's stones [6, 7] hold four in a row through a square."""
    for down, right in DIRECTIONS:
        length = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < ROWS and 0 <= c < COLUMNS and stones[r, c]:
                length += 1
                r, c = r + sign * down, c + sign * right
        if length >= 4:
            return True
    return False
