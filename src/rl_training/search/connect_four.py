"""Exact values of Connect Four positions: alpha-beta over bitboards with a transposition table, compiled.

A board of W columns and H rows is a number with H + 1 bits a column, lowest square first; the bit above each column is
always 0, so that no line leads from one column into the next. A position is the stones of who moves, `mine`, and all
stones, `taken`. Its score is what a game is worth to who moves if both sides play perfectly:

    (W H + 2 - n) // 2 if its winner makes the last of n moves, negative for the other side; 0 for a draw

The earlier a win, the larger its score, so that a perfect player wins soon and loses late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_training.compiling import njit

ENTRIES = 4_194_301  # of the table, a prime: positions spread evenly over it
ONE = np.uint64(1)


class Board(NamedTuple):
    """The shape of a board as numbers; four in a row win."""

    columns: int = 7
    rows: int = 6

    @property
    def shape(self) -> np.ndarray:
        return np.array([self.columns, self.rows], np.int64)


USUAL = Board()


class Solver:
    """Solves positions of one board; what it finds it remembers for the next."""

    def __init__(self, board: Board = USUAL, entries: int = ENTRIES) -> None:
        if board.columns * (board.rows + 1) > 63 or min(board) < 1:
            raise ValueError(f"a board of {board.columns} × {board.rows} does not fit into 63 bits")
        self.board = board
        self.keys = np.zeros(entries, np.uint64)  # 0: nothing
        self.bounds = np.zeros(entries, np.int8)

    def score(self, mine: int, taken: int) -> int:
        """The score of a position that nobody has won and that is not full."""
        return self._solved(mine, taken, self.board.columns * self.board.rows)

    def _solved(self, mine: int, taken: int, most: int) -> int:
        bits = np.uint64(mine), np.uint64(taken)
        return int(solve(*bits, most, self.board.shape, self.keys, self.bounds))

    def outcome(self, mine: int, taken: int) -> int:
        """The sign of the score: 1 where who moves wins, 0 for a draw. Found in a fraction of the score's time."""
        return self._solved(mine, taken, 1)

    def scores(self, mine: int, taken: int) -> dict[int, int]:
        """What each move that is possible is worth to who makes it, by column."""
        found = {}
        for column in range(self.board.columns):
            after = drop(mine, taken, column, self.board)
            if after is None:
                continue
            following, full = after
            moves = taken.bit_count()
            if is_won(np.uint64(following ^ full), self.board.rows):
                found[column] = (self.board.columns * self.board.rows + 1 - moves) // 2
            elif moves + 1 == self.board.columns * self.board.rows:
                found[column] = 0
            else:
                found[column] = -self.score(following, full)
        return found


def drop(mine: int, taken: int, column: int, board: Board = USUAL) -> tuple[int, int] | None:
    """The position after a stone of who moves fell into a column, as the other side sees it; None if it is full."""
    bottom = 1 << column * (board.rows + 1)
    if taken & (bottom << board.rows - 1):
        return None
    return mine ^ taken, taken | (taken + bottom)


def position(columns: Sequence[int], board: Board = USUAL) -> tuple[int, int]:
    """The position after stones fell into columns, counted from 0, in turn."""
    mine = taken = 0
    for column in columns:
        after = drop(mine, taken, column, board)
        if after is None:
            raise ValueError(f"column {column} is full")
        mine, taken = after
    return mine, taken


def from_planes(planes: np.ndarray) -> tuple[int, int]:
    """The position of an observation [2, 6, 7] of `rl_training/ConnectFour-v0`, whose top row comes first."""
    bits = [0, 0]
    rows = planes.shape[1]
    for side, row, column in np.argwhere(planes > 0).tolist():
        bits[side] |= 1 << column * (rows + 1) + rows - 1 - row
    return bits[0], bits[0] | bits[1]


@njit(nogil=True)
def is_won(stones, rows):  # type: ignore[no-untyped-def]
    """Whether a side's stones hold four in a row: upwards, along a row, and along both diagonals."""
    for step in (1, rows, rows + 1, rows + 2):
        pairs = stones & (stones >> np.uint64(step))
        if pairs & (pairs >> np.uint64(2 * step)):
            return True
    return False


@njit(nogil=True)
def _threats(stones, rows):  # type: ignore[no-untyped-def]
    """The squares, free or not, that would complete four in a row."""
    found = (stones << ONE) & (stones << np.uint64(2)) & (stones << np.uint64(3))
    for step in (rows, rows + 1, rows + 2):
        one, two, three = np.uint64(step), np.uint64(2 * step), np.uint64(3 * step)
        pair = (stones << one) & (stones << two)
        found |= pair & ((stones << three) | (stones >> one))
        pair = (stones >> one) & (stones >> two)
        found |= pair & ((stones >> three) | (stones << one))
    return found


@njit(nogil=True)
def _count(bits):  # type: ignore[no-untyped-def]
    total = 0
    while bits:
        bits &= bits - ONE
        total += 1
    return total


@njit(nogil=True)
def _floor(shape):  # type: ignore[no-untyped-def]
    """The lowest squares of all columns."""
    bottom = np.uint64(0)
    for column in range(shape[0]):
        bottom |= ONE << np.uint64(column * (shape[1] + 1))
    return bottom


@njit(nogil=True)
def key_of(mine, taken, floor):  # type: ignore[no-untyped-def]
    """A number of its own for each position, none of them 0: the table is full of zeros where it holds nothing."""
    return mine + taken + floor


@njit(nogil=True)
def solve(mine, taken, most, shape, keys, bounds):  # type: ignore[no-untyped-def]
    """The score, or ±`most` where it is beyond that, by asking again and again whether it is above a number."""
    squares, moves = shape[0] * shape[1], _count(taken)
    floor = _floor(shape)
    inside = floor * ((ONE << np.uint64(shape[1])) - ONE)
    if _threats(mine, shape[1]) & inside & (taken + floor) & ~taken:
        return min((squares + 1 - moves) // 2, most)
    low, high = max(-((squares - moves) // 2), -most), min((squares + 1 - moves) // 2, most)
    while low < high:
        middle = low + (high - low) // 2
        # Numbers near 0 first: whether a game is won is soon said, how soon it is takes longer.
        if middle <= 0 and low // 2 < middle:
            middle = low // 2
        elif middle >= 0 and high // 2 > middle:
            middle = high // 2
        found = _search(mine, taken, moves, middle, middle + 1, shape, floor, inside, keys, bounds)
        if found <= middle:
            high = max(found, low)
        else:
            low = min(found, high)
    return low


@njit(nogil=True)
def _search(mine, taken, moves, alpha, beta, shape, floor, inside, keys, bounds):  # type: ignore[no-untyped-def]
    """The score within [alpha, beta] of a position whose mover cannot win at once; a bound on it elsewhere."""
    rows, squares = shape[1], shape[0] * shape[1]
    possible = (taken + floor) & inside & ~taken
    against = _threats(mine ^ taken, rows) & inside & ~taken
    forced = possible & against
    if forced:
        if forced & (forced - ONE):
            return -((squares - moves) // 2)  # two squares to stop at once
        possible = forced
    possible &= ~(against >> ONE)  # never under a square where the other side wins
    if not possible:
        return -((squares - moves) // 2)
    if moves >= squares - 2:
        return 0
    lowest = -((squares - 2 - moves) // 2)
    if alpha < lowest:
        alpha = lowest
        if alpha >= beta:
            return alpha
    key = key_of(mine, taken, floor)
    place = key % np.uint64(len(keys))
    highest = (squares - 1 - moves) // 2
    if keys[place] == key:
        highest = min(highest, np.int64(bounds[place]))
    if beta > highest:
        beta = highest
        if alpha >= beta:
            return beta
    # Moves that make more threats first, and of equals those nearer to the middle.
    order = np.empty(shape[0], np.uint64)
    worth = np.empty(shape[0], np.int64)
    count = 0
    for i in range(shape[0]):
        column = shape[0] // 2 + (1 - 2 * (i % 2)) * ((i + 1) // 2)
        move = possible & (((ONE << np.uint64(rows)) - ONE) << np.uint64(column * (rows + 1)))
        if not move:
            continue
        threats = _count(_threats(mine | move, rows) & inside & ~taken)
        at = count
        while at > 0 and worth[at - 1] < threats:
            order[at], worth[at] = order[at - 1], worth[at - 1]
            at -= 1
        order[at], worth[at] = move, threats
        count += 1
    for i in range(count):
        # The other side cannot win at once: that was ruled out above.
        after = taken | order[i]
        found = -_search(mine ^ taken, after, moves + 1, -beta, -alpha, shape, floor, inside, keys, bounds)
        if found >= beta:
            return found
        alpha = max(alpha, found)
    keys[place], bounds[place] = key, alpha  # at most this
    return alpha
