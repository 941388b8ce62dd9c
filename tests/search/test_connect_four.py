"""Connect Four: the solver against brute force and published scores, minimax, and its environment."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training.envs  # noqa: F401  # registers the games
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.connect_four import wins
from rl_training.search.connect_four import Board, Solver, drop, from_planes, key_of, position
from rl_training.search.minimax import minimax_values

Stones = frozenset[tuple[int, int]]


def has_four(stones: Stones) -> bool:
    return any(
        all((column + i * right, row + i * up) in stones for i in range(4))
        for column, row in stones
        for right, up in ((1, 0), (0, 1), (1, 1), (1, -1))
    )


@cache
def brute(mine: Stones, others: Stones, board: Board) -> int:
    """The score of who moves, from sets of squares and no bits: (W H + 2 - n) // 2 for a win by the n-th stone."""
    made, squares = len(mine) + len(others), board.columns * board.rows
    best = -squares
    for column in range(board.columns):
        height = sum(square[0] == column for square in mine | others)
        if height == board.rows:
            continue
        after = mine | {(column, height)}
        if has_four(after):
            return (squares + 2 - (made + 1)) // 2
        best = max(best, 0 if made + 1 == squares else -brute(others, after, board))
    return best


def random_game(board: Board, rng: np.random.Generator) -> list[int] | None:
    """Columns of a game that goes on: neither won nor full."""
    sides: list[Stones] = [frozenset(), frozenset()]
    columns: list[int] = []
    for _ in range(int(rng.integers(board.columns * board.rows))):
        open_ = [c for c in range(board.columns) if columns.count(c) < board.rows]
        column = int(rng.choice(open_))
        sides[len(columns) % 2] |= {(column, columns.count(column))}
        columns.append(column)
        if has_four(sides[(len(columns) - 1) % 2]):
            return None
    return columns


@pytest.mark.parametrize("board", [Board(4, 4), Board(5, 3), Board(3, 5), Board(6, 2)])
def test_scores_of_small_boards_equal_brute_force(board: Board) -> None:
    solver, rng, compared = Solver(board, entries=997), np.random.default_rng(1), set()
    for _ in range(150):
        columns = random_game(board, rng)
        if columns is None:
            continue
        mine, others = (
            frozenset((c, columns[:i].count(c)) for i, c in enumerate(columns) if i % 2 == side)
            for side in (len(columns) % 2, 1 - len(columns) % 2)
        )
        score = brute(mine, others, board)
        assert solver.score(*position(columns, board)) == score, columns
        assert max(solver.scores(*position(columns, board)).values()) == score
        for remembering in (solver, Solver(board, entries=997)):
            assert remembering.outcome(*position(columns, board)) == np.sign(score), columns
        compared.add(score)
    assert len(compared) > 3 or board.rows == 2
    brute.cache_clear()


@pytest.mark.parametrize(
    ("moves", "score"),
    [  # of P. Pons's benchmark of Connect Four solvers (blog.gamesolver.org), columns counted from 1
        ("2252576253462244111563365343671351441", -1),
        ("7422341735647741166133573473242566", 1),
        ("23163416124767223154467471272416755633", 0),
        ("74425337641465475671176741236615215533", 0),
        ("427631264721", 10),
        ("43745416472735", -13),
        ("6146", 18),
        ("4737", 18),
        ("51615567", 15),
        ("265756512", -12),
        ("32164625", 11),
        ("22144426444", 15),
        ("335662333565", -2),
        ("157564142155", -5),
    ],
)
def test_published_scores(moves: str, score: int) -> None:
    stones = position([int(column) - 1 for column in moves])
    assert Solver(entries=100_003).score(*stones) == score
    assert Solver(entries=100_003).outcome(*stones) == np.sign(score)


def test_a_board_that_does_not_fit_and_a_full_column_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into 63 bits"):
        Solver(Board(9, 7))
    with pytest.raises(ValueError, match="column 2 is full"):
        position([2] * 7)
    assert drop(*position([2] * 6), 2) is None


def played(moves: str) -> tuple[Any, ...]:
    env: Any = gym.make("rl_training/ConnectFour-v0")
    stepped: tuple[Any, ...] = env.reset(seed=0)
    for column in moves:
        stepped = env.step(int(column) - 1)
    return stepped


def test_the_rules() -> None:
    obs, info = played("")
    assert obs.shape == (2, 6, 7) and not obs.any() and info["to_play"] == 0
    obs, reward, over, _, info = played("44")
    assert (reward, over, info["to_play"]) == (0.0, False, 0)
    assert obs[0, 5, 3] == 1 and obs[1, 4, 3] == 1 and obs.sum() == 2, "stones fall, and mine come first"
    assert played("4444441")[4]["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="column 3 is full"):
        played("4444444")
    for won in ("1212121", "1122334", "12234334544", "76654554344"):
        assert played(won)[1:3] == (1.0, True), won
        assert played(won[:-1])[1:3] == (0.0, False), won


def test_games_may_begin_after_random_moves() -> None:
    env = gym.make("rl_training/ConnectFour-v0", random_moves=6)
    begun = [env.reset(seed=seed) for seed in range(80)]
    assert {int(obs.sum()) for obs, _ in begun} == set(range(7))
    assert all(info["to_play"] == obs.sum() % 2 for obs, info in begun)
    with pytest.raises(ValueError, match="0 to 41"):
        gym.make("rl_training/ConnectFour-v0", random_moves=42)


def test_random_moves_end_no_game() -> None:
    env: Any = gym.make("rl_training/ConnectFour-v0", random_moves=41)
    for seed in range(200):
        obs, info = env.reset(seed=seed)
        assert obs.sum() < 42 and info["action_mask"].any() and info["to_play"] == obs.sum() % 2
        lines = [wins(side, row, column) for side in obs for row, column in np.argwhere(side)]
        assert not any(lines), "nobody has four in a row yet"


def test_a_position_is_read_from_what_is_seen() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        columns = random_game(Board(), rng)
        if columns:
            obs = played("".join(str(column + 1) for column in columns))[0]
            assert from_planes(obs) == position(columns)


def test_minimax_equals_the_solver_within_its_depth() -> None:
    """A win or loss within five moves is seen, and nothing later is."""
    dynamics, rng, solver, seen = (
        KNOWN["rl_training/ConnectFour-v0"].load(),
        np.random.default_rng(3),
        Solver(),
        set(),
    )
    chance = np.zeros(2, np.uint64)
    while len(seen) < 3:
        columns = random_game(Board(), rng)
        if columns is None or len(columns) < 20:
            continue
        state = np.zeros(43)
        dynamics.reset(state, chance)
        for column in columns:
            dynamics.step(state, np.array([float(column)]), chance)
        values = minimax_values(dynamics, state, 5, 84 + 7, 7)
        for column, score in solver.scores(*position(columns)).items():
            # A score says with how many stones of the winner the game ends: 22 - score, of the loser's view likewise.
            stones = 2 * (22 - abs(score)) - (1 if (score > 0) == (len(columns) % 2 == 0) else 0)
            soon = score != 0 and stones - len(columns) <= 5
            assert np.sign(values[column]) == (np.sign(score) if soon else 0), (columns, column, score)
            seen.add(int(np.sign(values[column])))
        full = [column for column in range(7) if columns.count(column) == 6]
        assert all(values[column] == -np.inf for column in full)


def test_every_position_has_a_key_of_its_own_and_none_is_that_of_an_empty_entry() -> None:
    board = Board(3, 3)
    floor = sum(1 << column * (board.rows + 1) for column in range(board.columns))
    seen, new = set(), {(0, 0)}
    while new:
        seen |= new
        new = {
            after
            for here in new
            for column in range(board.columns)
            if (after := drop(*here, column, board)) is not None
        }
    keys = {int(key_of.py_func(mine, taken, floor)) for mine, taken in seen}
    assert len(keys) == len(seen) and 0 not in keys
