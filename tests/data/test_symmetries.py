"""Symmetries of board games: what they turn, and that planners learn the same from it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import BOARD_GAME

from rl_training import load_config
from rl_training.algorithms.masking import MASK
from rl_training.algorithms.muzero import Targets
from rl_training.data.symmetries import Symmetries
from rl_training.dynamics.minatar import SIDE
from rl_training.dynamics.minatar_breakout import AT_A_SIDE, BALL_X, BREAKOUT, DIRECTION, PADDLE, TRAIL_X
from rl_training.envs.board_games import refuse_other_turns, symmetries_of
from rl_training.envs.connect_four import ConnectFour
from rl_training.envs.making import make_env
from rl_training.envs.tictactoe import TicTacToe
from rl_training.errors import ConfigError
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls

TINY: dict[str, Any] = BOARD_GAME | dict(symmetries=True, temperature_moves=3)


def test_connect_four_is_mirrored_by_hand() -> None:
    turns = Symmetries(ConnectFour().symmetries)
    board = torch.zeros(2, 2, 6, 7)
    board[:, 0, 5, 1] = 1
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1]] * 2)
    turn = torch.tensor([0, 1])
    seen = turns.observations({"observation": board, MASK: mask}, turn)
    assert torch.equal(seen["observation"][0], board[0]), "the first turn leaves all in place"
    assert (
        seen["observation"][1, 0, 5].tolist() == [0, 0, 0, 0, 0, 1, 0] and seen["observation"][1].sum() == 1
    )
    assert seen[MASK].tolist() == [[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]]
    assert turns.action(torch.tensor([[1, 1], [6, 6]]), turn).tolist() == [[1, 5], [6, 0]]
    assert turns.policy(torch.eye(7)[torch.tensor([[1, 1], [6, 6]])], turn).argmax(-1).tolist() == [
        [1, 5],
        [6, 0],
    ]


@pytest.mark.parametrize(("env", "count"), [(ConnectFour(), 2), (TicTacToe(), 8)])
def test_a_turned_game_goes_on_as_the_turned_position_would(env: Any, count: int) -> None:
    turns = Symmetries(env.symmetries)
    assert len(turns.squares) == len(set(map(tuple, turns.squares.tolist()))) == count
    chance = np.random.default_rng(1)
    for s in range(count):
        turn, other = torch.tensor([s]), type(env)()
        env.reset(seed=0), other.reset(seed=0)
        over = False
        while not over:
            action = int(chance.choice(np.flatnonzero(env._info()["action_mask"])))
            turned = int(turns.action(torch.tensor([action]), turn)[0])
            seen, reward, over, _, info = env.step(action)
            expected = turns.observations(
                {
                    "observation": torch.from_numpy(seen)[None],
                    MASK: torch.from_numpy(info["action_mask"])[None],
                },
                turn,
            )
            mirrored, its_reward, its_over, _, its_info = other.step(turned)
            assert np.array_equal(mirrored, expected["observation"][0].numpy())
            assert np.array_equal(its_info["action_mask"], expected[MASK][0].numpy())
            assert (its_reward, its_over) == (reward, over)


def test_breakout_of_minatar_is_played_alike_in_the_mirror() -> None:
    pytest.importorskip("minatar")
    chance = np.random.default_rng(1)
    with closing(make_env("MinAtar/Breakout-v1", {}, None)) as env:
        ((numbers, actions),) = env.unwrapped.symmetries  # type: ignore[attr-defined]
    for _ in range(100):
        state = np.zeros(len(BREAKOUT.lowest))
        noise = np.array([chance.integers(2**63), 0], np.uint64)
        BREAKOUT.reset(state, noise)
        other, same_noise = state.copy(), noise.copy()
        for column in (PADDLE, BALL_X, TRAIL_X):
            other[column] = SIDE - 1 - state[column]
        other[DIRECTION] = AT_A_SIDE[int(state[DIRECTION])]
        over = False
        while not over:
            action = int(chance.integers(3))
            reward, over = BREAKOUT.step(state, np.array([float(action)]), noise)
            mirrored = BREAKOUT.step(other, np.array([float(actions[action])]), same_noise)
            assert mirrored == (reward, over)
            seen, shown = np.empty(400, np.float32), np.empty(400, np.float32)
            BREAKOUT.observe(state, seen), BREAKOUT.observe(other, shown)
            assert np.array_equal(shown, seen[numbers])


def test_a_game_of_minatar_that_tells_left_from_right_names_no_symmetries() -> None:
    pytest.importorskip("minatar")
    with closing(make_env("MinAtar/Freeway-v1", {}, None)) as env:
        assert env.unwrapped.symmetries is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero", "efficientzero"])
def test_planners_learn_from_turned_positions(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(TINY, algo=algo, env_id="rl_training/ConnectFour-v0")
    trainer = trainer_class(algo)(config)
    turn, batches, shown = torch.tensor([0, 1, 1, 0]), [], []
    draw, represent = trainer.draw, trainer.agent.network.represent
    monkeypatch.setattr(Symmetries, "draw", lambda self, count: turn[:count])
    monkeypatch.setattr(trainer, "draw", lambda now: batches.append(draw(now)) or batches[-1])
    monkeypatch.setattr(trainer.agent.network, "represent", lambda obs: shown.append(obs) or represent(obs))
    controls = Controls.of(config)
    while not batches:
        shown.clear()
        trainer.iterate(controls.at(trainer.steps))
    trainer.close()
    roots = trainer.replay.seen_at(batches[0]["places"][0])["observation"]
    roots[1:3] = roots[1:3, ..., ::-1]
    assert any(np.array_equal(obs["observation"].numpy(), roots) for obs in shown)
    learned = Targets(batches[0]["policy"], batches[0]["returns"], batches[0]["reward"])
    turned, targets = trainer.symmetries.turned(batches[0], learned)
    assert torch.equal(turned["action"][:, 1:3], 6 - batches[0]["action"][:, 1:3])
    assert torch.equal(turned["action"][:, [0, 3]], batches[0]["action"][:, [0, 3]])
    assert torch.equal(targets.policy[:, 1:3], batches[0]["policy"][:, 1:3].flip(-1))


@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero"])
def test_later_moves_are_greedy(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(TINY, algo=algo, env_id="rl_training/ConnectFour-v0")
    trainer = trainer_class(algo)(config)
    obs = trainer.environments.obs
    quiet = trainer.agent.plan(obs, temperature=0.0, root_exploration_fraction=0.0).action
    rows = np.array([True, False, True, True])
    seen = [
        trainer.agent.plan(obs, greedy=rows, temperature=1e6, root_exploration_fraction=0.0).action
        for _ in range(40)
    ]
    assert all(np.array_equal(each[rows], quiet[rows]) for each in seen)
    assert len({int(each[1]) for each in seen}) > 1, "the others draw"
    asked = []
    plan = trainer.agent.plan
    monkeypatch.setattr(
        trainer.agent, "plan", lambda obs, **how: asked.append(how["greedy"]) or plan(obs, **how)
    )
    controls = Controls.of(config)
    for _ in range(5):
        trainer.iterate(controls.at(trainer.steps))
    trainer.close()
    assert [each.tolist() for each in asked[:5]] == [[False] * 4] * 3 + [[True] * 4] * 2


def test_turned_boards_are_normalised_as_acting_would() -> None:
    config = load_config(
        TINY, algo="muzero", env_id="rl_training/ConnectFour-v0", normalize_observations=True
    )
    trainer = trainer_class("muzero")(config)
    controls = Controls.of(config)
    for _ in range(20):
        trainer.iterate(controls.at(trainer.steps))
    trainer.close()
    places = np.arange(8)
    raw = trainer.replay.seen_at(places)
    turned = {"observation": raw["observation"][..., ::-1].copy(), MASK: raw[MASK][..., ::-1].copy()}
    seen = trainer.seen(places, torch.ones(8, dtype=torch.int64))
    expected = trainer.agent.inputs(turned)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)


class Masked(TicTacToe):
    """Its mask is part of the observation, and a move that is not allowed raises."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            {"observation": self.observation_space, MASK: spaces.MultiBinary(9)}
        )

    def reset(self, **options: Any) -> Any:
        return self._told(*super().reset(**options))

    def step(self, action: Any) -> Any:
        assert self._info()[MASK][action], "taken"
        obs, reward, terminated, truncated, info = super().step(int(action))
        obs, info = self._told(obs, info)
        return obs, reward, terminated, truncated, info

    def _told(self, obs: Any, info: Any) -> Any:
        return {"observation": obs, MASK: info.pop(MASK)}, info


class Unmasked(TicTacToe):
    """A move that is not allowed changes nothing; there is no mask."""

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return obs, {"to_play": info["to_play"]}

    def step(self, action: Any) -> Any:
        if self.stones[:, action].any():
            self.to_play = 1 - self.to_play
            return self._seen(), -1.0, True, False, {"to_play": self.to_play}
        obs, reward, terminated, truncated, info = super().step(int(action))
        return obs, reward, terminated, truncated, {"to_play": info["to_play"]}


@pytest.mark.parametrize("game", [Masked, Unmasked])
def test_masks_may_be_in_the_observation_or_not_be_at_all(game: type[TicTacToe]) -> None:
    gym.register("boards/Game-v0", game)
    try:
        config = load_config(TINY, algo="muzero", env_id="boards/Game-v0", vectorization="sync")
        trainer = trainer_class("muzero")(config)
        controls = Controls.of(config)
        while not trainer.updates:
            trainer.iterate(controls.at(trainer.steps))
        trainer.close()
        stacked = load_config(config, frame_stack=2)
        with pytest.raises(ConfigError, match="no pairs of permutations of 36 numbers and 9 actions"):
            trainer_class("muzero")(stacked)
    finally:
        gym.registry.pop("boards/Game-v0")


class Twice(gym.Env[np.ndarray, Any]):
    """The second player moves twice in a row."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)
    symmetries = ((np.array([0, 0, 1]), np.arange(3)),)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.moves = 0
        return np.zeros(3, np.float32), {"to_play": 0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.moves += 1
        return np.zeros(3, np.float32), 0.0, self.moves == 5, False, {"to_play": min(self.moves, 1)}


class Broken(Twice):
    def step(self, action: Any) -> Any:
        raise RuntimeError("broken")


def test_games_that_planners_cannot_learn_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = spaces.Box(0, 1, (3,)), spaces.Discrete(3)
    gym.register("boards/Twice-v0", Twice)
    gym.register("boards/Broken-v0", Broken)
    try:
        with pytest.raises(ConfigError, match="player 1 moves twice in a row"):
            refuse_other_turns("boards/Twice-v0", {})
        refuse_other_turns("boards/Broken-v0", {})  # training tells what is wrong with it
        for named in (
            Twice.symmetries,
            lambda self: [],
            [],
            [np.arange(3)] * 2,
            (np.arange(3), np.arange(3)),
            3,
        ):
            monkeypatch.setattr(Twice, "symmetries", named)
            with pytest.raises(ConfigError, match="no pairs of permutations of 3 numbers and 3 actions"):
                symmetries_of("boards/Twice-v0", {}, *sizes)
    finally:
        gym.registry.pop("boards/Twice-v0")
        gym.registry.pop("boards/Broken-v0")
    with pytest.raises(ConfigError, match="CartPole-v1 names none"):
        symmetries_of("CartPole-v1", {}, *sizes)
    for env_id in ("rl_training/ConnectFour-v0", "rl_training/TicTacToe-v0", "CartPole-v1"):
        refuse_other_turns(env_id, {})
