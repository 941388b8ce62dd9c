"""Two sides in one environment: the rules, perfect play, and signs that change with every move."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learning.tictactoe import load_example

from rl_training import load_config
from rl_training.envs.tictactoe import wins
from rl_training.runtime.controls import Controls
from rl_training.runtime.muzero_trainer import MuZeroTrainer


@pytest.fixture(scope="module")
def players() -> Any:
    return load_example()


@pytest.fixture
def env() -> Any:
    return gym.make("rl_training/TicTacToe-v0")


def play_moves(env: Any, moves: list[int]) -> tuple[Any, ...]:
    stepped: tuple[Any, ...] = env.reset(seed=0)
    for move in moves:
        stepped = env.step(move)
    return stepped


def test_the_rules(env: Any) -> None:
    obs, info = env.reset(seed=0)
    assert not obs.any() and info["to_play"] == 0 and info["action_mask"].tolist() == [1] * 9
    obs, reward, terminated, _, info = env.step(4)
    assert obs.reshape(2, 9)[1].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0], (
        "the other side sees it in the last nine"
    )
    assert (reward, terminated, info["to_play"]) == (0.0, False, 1)
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="square 4 is taken"):
        env.step(4)
    _, reward, terminated, _, _ = play_moves(env, [0, 3, 1, 4, 2])
    assert (reward, terminated) == (1.0, True), "the mover has won"
    _, reward, terminated, _, _ = play_moves(env, [0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert (reward, terminated) == (0.0, True), "a full board"


def test_games_may_begin_after_random_moves() -> None:
    env = gym.make("rl_training/TicTacToe-v0", random_moves=4)
    stones = [env.reset(seed=seed) for seed in range(60)]
    counts = {int(obs.sum()) for obs, _ in stones}
    assert counts == {0, 1, 2, 3, 4}
    assert all(info["to_play"] == obs.sum() % 2 for obs, info in stones)
    with pytest.raises(ValueError, match="0 to 4"):
        gym.make("rl_training/TicTacToe-v0", random_moves=5)


def test_perfect_players_draw_and_random_ones_lose(players: Any) -> None:
    empty = ((0,) * 9, (0,) * 9)
    assert players.value(empty) == 0
    assert players.value(((1, 1, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1, 0, 0, 0, 0))) == 1

    def perfect(obs: dict[str, np.ndarray]) -> int:
        stones = obs["observation"].astype(int).reshape(2, 9).tolist()
        return players.perfect_player((tuple(stones[0]), tuple(stones[1])), np.random.default_rng(0))

    assert players.play(perfect, players.perfect_player, 20, seed=1) == {"drawn": 20}
    against_random = players.play(perfect, players.random_player, 40, seed=1)
    assert against_random["lost"] == 0 and against_random["won"] > 25


class TrueModel:
    """The game itself as the model: a state is the mover's stones and the other's, and whether the game is over."""

    def initial(self, obs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        boards = obs["observation"].float()
        return (
            torch.zeros(len(boards), 9),
            torch.zeros(len(boards)),
            torch.cat([boards, boards[:, :1] * 0], 1),
        )

    def recurrent(self, latent: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reward, following = torch.zeros(len(latent)), latent.clone()
        for row, (state, move) in enumerate(zip(latent, action.tolist(), strict=True)):
            mine, other, over = state[:9].clone(), state[9:18], bool(state[18])
            free = not over and not mine[move] and not other[move]
            mine[move] = 1
            won = free and wins(mine.numpy())
            reward[row] = (
                float(won) if free else -float(not over)
            )  # a forbidden move inside the tree is a loss
            full = bool((mine + other).sum() == 9)
            following[row] = torch.cat([other, mine, torch.tensor([float(over or won or full or not free)])])
        return reward, torch.zeros(len(latent), 9), torch.zeros(len(latent)), following


@pytest.mark.parametrize(
    ("mine", "others", "best"),
    [
        ([0, 1], [3, 4], 2),  # wins at once, and does not only stop the other side
        ([0, 8], [3, 4], 5),  # stops the other side
        ([2, 3], [0, 4], 8),
    ],
)
def test_a_search_sees_the_other_side_move_against_it(mine: list[int], others: list[int], best: int) -> None:
    trainer = MuZeroTrainer(load_config("muzero/tictactoe"))
    board = np.zeros((1, 18), np.float32)
    board[0, mine] = board[0, 9 + np.array(others)] = 1
    mask = 1 - board.reshape(2, 9).max(0, keepdims=True).astype(np.int8)
    obs = {"observation": board, "action_mask": mask}
    settings: dict[str, Any] = dict(temperature=0.0, root_exploration_fraction=0.0, gamma=1.0)
    plan = trainer.agent.plan(obs, num_simulations=200, **settings, network=TrueModel())  # type: ignore[arg-type]
    assert plan.action.tolist() == [best]
    assert (plan.policy[mask == 0] == 0).all()


def test_values_of_a_game_are_its_outcome_from_each_side() -> None:
    config = load_config(
        "muzero/tictactoe", ["learning_starts=1000", "num_simulations_schedule=2", "num_envs=4"]
    )
    trainer = MuZeroTrainer(config)
    knobs = Controls.of(config)
    for step in range(0, 200, 4):
        trainer.iterate(knobs.at(step))
    now = knobs.at(0).after(0)
    batch = trainer.draw(now)
    target = trainer.targets(batch, now).value
    assert not batch["discount"].any(), "no value is bootstrapped from"
    assert set(target.unique().tolist()) <= {-1.0, 0.0, 1.0} and (target < 0).any()
    # Where the game goes on, what is good for one side is as bad for the other, less what was just earned.
    torch.testing.assert_close(target[:-1], (batch["reward"] - target[1:]) * batch["known"][1:])
