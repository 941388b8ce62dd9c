"""Compiled environments do what Gymnasium's do: from the same state, the same action, the same chance."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rl_training.envs  # noqa: F401  # registers this package's own
from rl_training.dynamics.chance import below, bits, episode_key, uniform
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.compiled import row_size
from rl_training.envs.lanes import without_wrappers


class SameChance:
    """Stands in for an environment's generator, and draws what compiled code is about to draw."""

    def __init__(self, chance: np.ndarray) -> None:
        self.chance = chance

    def random(self) -> float:
        return float(uniform(self.chance.copy()))


def classic(env: Any) -> list[float]:
    return [float(number) for number in env.state]


def fresh_car(env: Any) -> list[float]:
    return [*classic(env), float(env.state.dtype == np.float64)]


def index(env: Any) -> list[float]:
    return [float(env.s)]


def board(env: Any) -> list[float]:
    mine, other = env.stones
    return [*(mine + 2 * other).reshape(-1).tolist(), 1.0 + env.to_play]


HOW_IT_STANDS = {
    "MountainCarContinuous-v0": fresh_car,
    "rl_training/TicTacToe-v0": board,
    "rl_training/ConnectFour-v0": board,
}
GYMNASIUMS = [name for name in KNOWN if not name.startswith("MinAtar/")]


def state_of(env_id: str, env: Any) -> np.ndarray:
    look = HOW_IT_STANDS.get(env_id) or (index if hasattr(env, "s") else classic)
    return np.array(look(env))


def an_action(env: Any, info: dict[str, Any], rng: np.random.Generator) -> Any:
    space = env.action_space
    if isinstance(space, spaces.Box):
        return rng.uniform(space.low, space.high).astype(np.float32)
    allowed = np.flatnonzero(info["action_mask"]) if "action_mask" in info else np.arange(space.n)
    return np.int64(rng.choice(allowed))


def the_way_it_rolls(env: Any, info: dict[str, Any], rng: np.random.Generator) -> Any:
    """Push the car the way it rolls, which swings it up to the goal."""
    way = 1 if env.state[1] >= 0 else -1
    if isinstance(env.action_space, spaces.Box):
        return (way * rng.uniform(0.5, 1, 1)).astype(np.float32)
    return np.int64(1 + way)


def the_way_it_bends(env: Any, info: dict[str, Any], rng: np.random.Generator) -> Any:
    """Turn Acrobot's joint the way it turns, which adds energy: the work of a torque is τ θ̇₂."""
    return np.int64(2 if env.state[3] >= 0 else 0)


def a_ride(env: Any, info: dict[str, Any], rng: np.random.Generator) -> Any:
    """Drive about, pick the passenger up, and drop it off at its destination only."""
    row, column, passenger, destination = env.decode(env.s)
    allowed = set(np.flatnonzero(info["action_mask"]).tolist())
    if passenger == 4 and (row, column) == env.locs[destination]:
        return np.int64(5)
    return np.int64(4 if 4 in allowed else rng.choice(sorted(allowed - {5})))


# Of the environments that chance does not lead to their end.
TO_THE_GOAL = {
    "MountainCar-v0": the_way_it_rolls,
    "MountainCarContinuous-v0": the_way_it_rolls,
    "Acrobot-v1": the_way_it_bends,
    "Taxi-v4": a_ride,
}


def seen(env: Any, dynamics: Dynamics, state: np.ndarray) -> np.ndarray:
    row = np.full(row_size(dynamics, env.observation_space, env.action_space), np.nan, np.float32)
    dynamics.observe(state, row)
    return row


@pytest.mark.parametrize("env_id", GYMNASIUMS)
def test_every_step_is_gymnasiums_bit_for_bit(env_id: str) -> None:
    env: Any = without_wrappers(gym.make(env_id))[0]
    dynamics, rng = KNOWN[env_id].load(), np.random.default_rng(5)
    chance = np.array([77, 0], np.uint64)
    episodes = steps = ends = 0
    while steps < 3000:
        _, info = env.reset(seed=episodes)
        act = TO_THE_GOAL.get(env_id, an_action) if episodes % 2 else an_action
        episodes += 1
        state = state_of(env_id, env)
        env.np_random = SameChance(chance)
        for _ in range(200):
            action = act(env, info, rng)
            steps += 1
            drawn = env.np_random.random() if hasattr(env, "s") else None
            assert drawn is None or 0 <= drawn < 1
            obs, reward, terminated, _, info = env.step(action)
            ours = dynamics.step(state, np.array(action, np.float64).reshape(-1), chance)
            assert ours == (reward, terminated)
            assert state.tobytes() == state_of(env_id, env).tobytes()
            expected = np.array(obs, np.float32).reshape(-1)
            if "action_mask" in info:
                expected = np.concatenate([expected, info["action_mask"].astype(np.float32)])
            row = seen(env, dynamics, state)
            assert row[: len(expected)].tobytes() == expected.tobytes() and not np.isnan(row).any()
            if terminated:
                ends += 1
                break
    assert ends or env_id == "Pendulum-v1"  # which never ends by itself


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"])
def test_from_any_state_an_episode_ends_where_gymnasiums_does(env_id: str) -> None:
    env: Any = without_wrappers(gym.make(env_id))[0]
    dynamics, rng, ends = KNOWN[env_id].load(), np.random.default_rng(5), 0
    _, info = env.reset(seed=0)
    # After an episode's first step Gymnasium holds the continuous car in single precision, all others in double.
    kind, fresh = (np.float32, [0.0]) if env_id == "MountainCarContinuous-v0" else (np.float64, [])
    size = len(env.state)
    for _ in range(3000):
        env.state = rng.uniform(dynamics.lowest[:size], dynamics.highest[:size]).astype(kind)
        state, action = np.array([*env.state, *fresh]), an_action(env, info, rng)
        _, reward, terminated, _, _ = env.step(action)
        ours = dynamics.step(state, np.array(action, np.float64).reshape(-1), np.zeros(2, np.uint64))
        assert ours == (reward, terminated)
        ends += terminated
    assert 100 < ends < 2900


def test_taxis_whole_table_is_gymnasiums() -> None:
    env: Any = without_wrappers(gym.make("Taxi-v4"))[0]
    dynamics, chance = KNOWN["Taxi-v4"].load(), np.array([77, 0], np.uint64)
    ends = 0
    for number, action in np.ndindex(500, 6):
        ((_, following, reward, terminated),) = env.P[number][action]
        state = np.array([float(number)])
        assert seen(env, dynamics, state).tolist() == [number, *env.action_mask(number).tolist()]
        assert dynamics.step(state, np.array([float(action)]), chance) == (reward, terminated)
        assert state.tolist() == [following]
        ends += terminated
    assert ends == 4  # the passenger in the taxi, at each destination


@pytest.mark.parametrize("env_id", GYMNASIUMS)
def test_first_states_have_gymnasiums_distribution(env_id: str) -> None:
    env: Any = without_wrappers(gym.make(env_id))[0]
    dynamics = KNOWN[env_id].load()
    ours, theirs = [], []
    for episode in range(2000):
        state = np.full(len(dynamics.lowest), np.nan)
        dynamics.reset(state, np.array([episode_key(np.uint64(3), 0, episode), 0], np.uint64))
        ours.append(state)
        env.reset(seed=episode)
        theirs.append(state_of(env_id, env))
    columns = list(zip(np.array(ours).T, np.array(theirs).T, strict=True))
    for mine, other in columns:
        # 2000 draws each: the mean of either is within 4 standard errors, and no draw lies outside.
        error = 4 * np.sqrt((mine.var() + other.var()) / 2000) + 1e-12
        assert abs(mine.mean() - other.mean()) < error
        assert abs(mine.std() - other.std()) < 0.1 * other.std() + 1e-12
        width = 0.02 * (other.max() - other.min()) + 1e-12
        assert other.min() - width <= mine.min() and mine.max() <= other.max() + width
    within = [
        (low <= mine.min(), mine.max() <= high)
        for (mine, _), low, high in zip(columns, dynamics.lowest, dynamics.highest, strict=True)
    ]
    assert np.all(within)


class SameDraws:
    """Stands in for the generator of a MinAtar game, and draws what compiled code draws."""

    def __init__(self, chance: np.ndarray) -> None:
        self.chance = chance

    def rand(self, count: int | None = None) -> Any:
        return (
            uniform(self.chance) if count is None else np.array([uniform(self.chance) for _ in range(count)])
        )

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        low, high = (0, low) if high is None else (low, high)
        drawn = [low + below(self.chance, high - low) for _ in range(size or 1)]
        return np.array(drawn) if size else drawn[0]


def a_player(game: str, rng: np.random.Generator) -> Any:
    """Actions of the minimal set, each for a while: who changes its mind at every frame never crosses a street."""
    count = {"Asterix": 5, "Breakout": 3, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}[game]
    habit = 0
    while True:
        if rng.random() < 0.1:
            habit = int(rng.integers(count))
        yield habit if rng.random() < 0.8 else int(rng.integers(count))


@pytest.mark.parametrize("env_id", [name for name in KNOWN if name.startswith("MinAtar/")])
def test_every_step_is_minatars(env_id: str) -> None:
    env: Any = pytest.importorskip("minatar.gym").BaseEnv(**KNOWN[env_id].kwargs)
    dynamics, rng = KNOWN[env_id].load(), np.random.default_rng(2)
    ours, theirs = np.array([11, 0], np.uint64), np.array([11, 0], np.uint64)
    env.game.random = env.game.env.random = SameDraws(theirs)
    state, rewards, steps = np.zeros(len(dynamics.lowest)), 0.0, 0
    player = a_player(env_id.split("/")[1].removesuffix("-v1"), rng)
    while steps < 6000:
        dynamics.reset(state, ours)
        obs, terminated = env.reset()[0], False
        assert seen(env, dynamics, state).reshape(obs.shape).astype(bool).tobytes() == obs.tobytes()
        while not terminated:
            action = next(player)
            obs, reward, terminated, _, _ = env.step(action)
            assert dynamics.step(state, np.array([action], np.float64), ours) == (reward, terminated)
            assert seen(env, dynamics, state).reshape(obs.shape).astype(bool).tobytes() == obs.tobytes()
            assert ours.tolist() == theirs.tolist()
            assert (state >= dynamics.lowest).all() and (state <= dynamics.highest).all()
            rewards, steps = rewards + reward, steps + 1
    assert rewards > 3


def test_acrobots_first_observation_is_gymnasiums_to_one_unit_in_the_last_place() -> None:
    # Gymnasium takes the sine of an episode's first angles in single precision.
    env: Any = without_wrappers(gym.make("Acrobot-v1"))[0]
    dynamics = KNOWN["Acrobot-v1"].load()
    for episode in range(500):
        obs, _ = env.reset(seed=episode)
        row = seen(env, dynamics, state_of("Acrobot-v1", env))
        assert (np.abs(row - obs) <= np.spacing(np.abs(obs))).all()


def test_chance_is_splitmix64() -> None:
    # The first draws of seed 1234567, as published with the reference implementation.
    drawn = [int(bits(np.uint64(1234567), np.uint64(n))) for n in range(3)]
    assert drawn == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_episodes_of_lanes_have_keys_of_their_own() -> None:
    keys = {int(episode_key(np.uint64(9), lane, episode)) for lane in range(100) for episode in range(100)}
    assert len(keys) == 10_000


def test_uniform_draws_are_uniform_and_move_the_counter() -> None:
    chance = np.array([5, 0], np.uint64)
    drawn = np.array([uniform(chance) for _ in range(20_000)])
    assert chance.tolist() == [5, 20_000]
    counts = np.histogram(drawn, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # χ² with 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03
