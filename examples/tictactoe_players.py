"""Play a trained tic-tac-toe policy against a random and against a perfect player.

rl-training train muzero/tictactoe
python examples/tictactoe_players.py runs/muzero-rl_training-TicTacToe-v0-s1
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache

import gymnasium as gym
import numpy as np

from rl_training import load_policy
from rl_training.envs.tictactoe import wins

Board = tuple[tuple[int, ...], tuple[int, ...]]  # the stones of who moves, and of the other side
Player = Callable[[Board, np.random.Generator], int]


def free_squares(board: Board) -> list[int]:
    return [square for square in range(9) if not board[0][square] and not board[1][square]]


def after(board: Board, move: int) -> Board:
    """The board as the other side sees it after a move."""
    mine = tuple(stone or int(square == move) for square, stone in enumerate(board[0]))
    return board[1], mine


@cache
def value(board: Board) -> int:
    """What a board is worth to who moves, if both sides play perfectly: 1, 0 or -1."""
    if wins(np.array(board[1])):
        return -1
    moves = free_squares(board)
    return max((-value(after(board, move)) for move in moves), default=0)


def random_player(board: Board, chance: np.random.Generator) -> int:
    return int(chance.choice(free_squares(board)))


def perfect_player(board: Board, chance: np.random.Generator) -> int:
    """One of the best moves, all of them equally likely."""
    moves = free_squares(board)
    worth = [-value(after(board, move)) for move in moves]
    return int(chance.choice([move for move, v in zip(moves, worth, strict=True) if v == max(worth)]))


def play(
    policy: Callable[[dict[str, np.ndarray]], int], opponent: Player, games: int, seed: int
) -> Counter[str]:
    """`games` games of a policy, which begins every second one: how many it won, drew and lost."""
    env, chance, outcomes = gym.make("rl_training/TicTacToe-v0"), np.random.default_rng(seed), Counter[str]()
    for game in range(games):
        obs, info = env.reset()
        over, reward, ours = False, 0.0, False
        while not over:
            ours = info["to_play"] == game % 2
            if ours:
                action = policy({"observation": obs, "action_mask": info["action_mask"]})
            else:
                stones = obs.astype(int).reshape(2, 9).tolist()
                action = opponent((tuple(stones[0]), tuple(stones[1])), chance)
            obs, reward, over, _, info = env.step(action)
        outcomes["drawn" if reward == 0 else "won" if ours else "lost"] += 1
    return outcomes


if __name__ == "__main__":
    trained = load_policy(sys.argv[1])
    for name, opponent in (("random", random_player), ("perfect", perfect_player)):
        found = play(lambda obs: int(trained.act(obs)), opponent, 200, seed=1)
        print(f"against a {name} player: " + ", ".join(f"{found[k]} {k}" for k in ("won", "drawn", "lost")))
