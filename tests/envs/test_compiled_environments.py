"""Compiled environments side by side: what they lead to, what is saved of them, and where they may stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training import load_config, train
from rl_training.algorithms.masking import MASK
from rl_training.compiling import njit
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.registry import KNOWN
from rl_training.envs import packages
from rl_training.envs.compiled import CompiledEnvironments
from rl_training.envs.compiled_env import CompiledEnv
from rl_training.envs.lanes import LocalLanes, without_wrappers
from rl_training.envs.making import compiled_dynamics, make_env, make_environments, with_lanes
from rl_training.errors import ConfigError, EnvironmentFault
from rl_training.trees import tree_leaves


def config_of(env_id: str, algo: str = "ppo", **changes: Any) -> Any:
    return load_config(dict(algo=algo, env_id=env_id, vectorization="compiled") | changes)


def compiled(
    env_id: str = "CartPole-v1", count: int = 3, seed: int = 1, **changes: Any
) -> CompiledEnvironments:
    found = make_environments(config_of(env_id, **changes), count, seed, "train")
    assert isinstance(found, CompiledEnvironments)
    return found


def test_steps_are_those_of_gymnasiums_lanes_ends_time_limits_and_all() -> None:
    ours = compiled(max_episode_steps=30)
    envs = [make_env("CartPole-v1", {}, 30) for _ in range(3)]
    theirs = LocalLanes(envs)
    theirs.reset(range(3), [0, 0, 0])
    rng, finished, returns, lengths = np.random.default_rng(0), [], np.zeros(3), np.zeros(3)
    for lane, env in enumerate(theirs.envs):
        env.state = ours.states[lane].copy()  # type: ignore[attr-defined]
    for _ in range(400):
        action = rng.integers(2, size=3)
        step, expected = ours.step(action), theirs.step(action)
        assert step.next_obs.tobytes() == expected.obs.tobytes()
        assert step.reward.tobytes() == expected.reward.tobytes()
        assert step.terminated.tolist() == expected.terminated.tolist()
        assert step.truncated.tolist() == expected.truncated.tolist()
        assert step.ended == np.flatnonzero(expected.over).tolist()
        returns, lengths = returns + expected.reward, lengths + 1
        for lane in step.ended:
            finished.append((lane, returns[lane], lengths[lane]))
            returns[lane] = lengths[lane] = 0
            theirs.reset([lane], [0])
            theirs.envs[lane].state = ours.states[lane].copy()  # type: ignore[attr-defined]
            assert ours.obs[lane].tobytes() == ours.states[lane].astype(np.float32).tobytes()
        going = [lane for lane in range(3) if lane not in step.ended]
        assert ours.obs[going].tobytes() == step.next_obs[going].tobytes()
    assert ours.take_finished() == finished
    assert {length for _, _, length in finished} > {30}
    assert ours.take_finished() == []


def test_chance_is_a_function_of_seed_stream_lane_and_episode() -> None:
    one, again, other = compiled(), compiled(), compiled(seed=2)
    assert one.obs.tobytes() == again.obs.tobytes() != other.obs.tobytes()
    assert len({row.tobytes() for row in one.obs}) == 3
    more = compiled(count=5)
    assert more.obs[:3].tobytes() == one.obs.tobytes()


def test_a_saved_state_goes_on_as_it_would_have() -> None:
    ours, rng = compiled("FrozenLake-v1"), np.random.default_rng(0)
    for action in rng.integers(4, size=(50, 3)):
        ours.step(action)
    state, actions = ours.state_dict(), rng.integers(4, size=(50, 3))
    after = [ours.step(action) for action in actions]
    again = compiled("FrozenLake-v1")
    again.load_state_dict(state)
    for action, expected in zip(actions, after, strict=True):
        for mine, theirs in zip(again.step(action), expected, strict=True):
            assert np.array_equal(mine, theirs)
    assert again.take_finished() == ours.take_finished() != []


@pytest.mark.parametrize("number", [16.0, -1.0, np.nan])
def test_a_forged_state_is_refused_before_compiled_code_sees_it(number: float) -> None:
    ours = compiled("FrozenLake-v1")
    state = ours.state_dict()
    state["states"][1, 0] = number
    with pytest.raises(ValueError, match="no states of this environment"):
        ours.load_state_dict(state)


def test_observations_have_the_types_and_shapes_of_their_space_masks_too() -> None:
    lake, taxi = compiled("FrozenLake-v1"), compiled("Taxi-v4")
    assert (lake.obs.dtype, lake.obs.shape) == (np.int64, (3,))
    assert lake.step(np.array([2, 2, 2])).next_obs.dtype == np.int64
    for name, part in tree_leaves(taxi.obs, ""):
        assert part.dtype == taxi.lanes.observation_space[name.strip("[]'/.")].dtype  # type: ignore[index]
    assert taxi.obs[MASK].shape == (3, 6) and set(np.unique(taxi.obs[MASK])) == {0, 1}
    assert all(space in taxi.lanes.observation_space for space in [{k: v[0] for k, v in taxi.obs.items()}])
    unmasked = compiled("Taxi-v4", algo="dreamer")
    assert unmasked.obs.shape == (3,)


@njit()
def observe_walls(state: Any, obs: Any) -> None:
    obs[0] = state[0] / 3
    obs[1], obs[2] = state[0] > 0, state[0] < 3


@njit()
def reset_walls(state: Any, chance: Any) -> None:
    state[0] = 1.0


@njit()
def step_walls(state: Any, action: Any, chance: Any) -> Any:
    state[0] += 1 if action[0] == 1 else -1
    return 1.0, False


class Walls(CompiledEnv):
    """A walk between two walls, which a mask keeps it from."""

    dynamics = Dynamics(reset_walls, step_walls, observe_walls, lowest=(0,), highest=(3,), masked=True)
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("algo", ["ppo", "dreamer"])
def test_masked_dynamics_of_ones_own_always_have_room_for_the_mask(algo: str, tmp_path: Path) -> None:
    """Compiled code looks at no bounds: what reads no mask must not let them write beyond a row."""
    env_id = f"{__file__}:Walls"
    lanes = compiled(env_id, algo=algo, max_episode_steps=20)
    assert lanes.rows.shape == (3, 3)
    seen = lanes.obs["observation"] if algo == "ppo" else lanes.obs
    assert seen.tolist() == [[pytest.approx(1 / 3)]] * 3
    lanes.step(np.array([0, 1, 1]))
    assert lanes.rows.tolist() == [[0, 0, 1], *[[pytest.approx(2 / 3), 1, 1]] * 2]
    if algo == "ppo":
        config = config_of(env_id, max_episode_steps=20, total_timesteps=200, num_envs=2, num_steps=20)
        assert train(config, run_dir=tmp_path / "run", quiet=True).metrics["eval/mean_return"] == 20


def test_actions_of_a_box_reach_it_as_they_reach_gymnasium() -> None:
    ours = compiled("Pendulum-v1", algo="sac", num_envs=3)
    env: Any = without_wrappers(gym.make("Pendulum-v1"))[0]
    env.reset(seed=0)
    env.state = ours.states[1].copy()
    action = np.array([[0.1], [-0.7], [1.5]], np.float32)
    step = ours.step(action)
    obs, reward, *_ = env.step(ours.codec.to_env(action)[1])
    assert step.next_obs[1].tobytes() == obs.tobytes() and step.reward[1] == reward


def test_what_compiled_code_raises_is_an_environments_fault() -> None:
    game = compiled("rl_training/TicTacToe-v0", algo="muzero", two_players=True)
    game.step(np.array([0, 1, 2]))
    with pytest.raises(EnvironmentFault, match=r"TicTacToe-v0\) raised ValueError: the square is taken"):
        game.step(np.array([0, 3, 4]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(env_kwargs={"sutton_barto_reward": True}), "env_kwargs"),
        (dict(env_kwargs={"render_mode": "rgb_array"}), "env_kwargs"),
        (dict(env_id="rl_training/CartPoleNoVelocity-v1"), "wrapper"),
        (dict(env_id="Blackjack-v1"), "wrapper"),
    ],
)
def test_what_asks_for_more_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"vectorization: compiled cannot be used: .*{words}") as refused:
        make_environments(config_of(**dict(env_id="CartPole-v1") | changes), 2, 1, "train")
    assert "\n" not in str(refused.value)


class Wrapped(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)


@pytest.fixture
def registered_otherwise() -> Any:
    """CartPole-v1 as somebody else's environment, or with something around it."""
    before = gym.registry["CartPole-v1"]
    yield lambda **how: gym.register(
        "CartPole-v1", **dict(entry_point=before.entry_point, max_episode_steps=500) | how
    )
    gym.registry["CartPole-v1"] = before


def by_auto(env_id: str) -> str:
    """What `vectorization: auto` chooses."""
    return with_lanes(config_of(env_id, vectorization="auto")).vectorization


@pytest.mark.parametrize("env_id", [name for name in KNOWN if name.startswith("MinAtar/")])
def test_games_of_minatar_are_compiled_by_default(env_id: str) -> None:
    pytest.importorskip("minatar")
    assert by_auto(env_id) == "compiled"


def test_games_with_all_six_actions_are_not(monkeypatch: Any) -> None:
    pytest.importorskip("minatar")
    assert by_auto("MinAtar/Breakout-v0") == "sync"  # which registers them all
    spec = gym.registry["MinAtar/Breakout-v1"]
    others = gym.envs.registration.EnvSpec(spec.id, spec.entry_point, kwargs={"game": "breakout"})
    monkeypatch.setitem(gym.registry, spec.id, others)
    assert by_auto(spec.id) == "sync"


def test_an_id_that_nobody_compiled_is_refused(monkeypatch: Any) -> None:
    spec = gym.envs.registration.EnvSpec("Mine-v0", entry_point=gym.spec("CartPole-v1").entry_point)
    monkeypatch.setitem(gym.registry, "Mine-v0", spec)
    with pytest.raises(ConfigError, match="Mine-v0 is not compiled"):
        make_environments(config_of("Mine-v0"), 2, 1, "train")


def test_an_id_that_is_registered_otherwise_is_not_taken_for_gymnasiums(registered_otherwise: Any) -> None:
    registered_otherwise(entry_point="gymnasium.envs.classic_control.mountain_car:MountainCarEnv")
    assert by_auto("CartPole-v1") == "sync"
    found = compiled_dynamics(make_env("CartPole-v1", {}, None), {})
    assert isinstance(found, str) and "registered as" in found


def test_nor_one_with_other_arguments(registered_otherwise: Any) -> None:
    registered_otherwise(kwargs={"sutton_barto_reward": True})
    assert by_auto("CartPole-v1") == "sync"
    found = compiled_dynamics(make_env("CartPole-v1", {}, None), {})
    assert isinstance(found, str) and "registered as" in found


def test_nor_one_with_a_wrapper(registered_otherwise: Any) -> None:
    registered_otherwise(additional_wrappers=(Wrapped.wrapper_spec(),))
    assert by_auto("CartPole-v1") == "sync"
    found = compiled_dynamics(make_env("CartPole-v1", {}, None), {})
    assert isinstance(found, str) and "wrapper" in found


def test_a_game_whose_package_is_missing_is_refused_with_its_extra(monkeypatch: Any) -> None:
    monkeypatch.setattr(packages, "missing_packages", lambda extra: ["minatar"])
    monkeypatch.delitem(gym.registry, "MinAtar/Breakout-v1", raising=False)
    with pytest.raises(ConfigError, match=r"needs minatar: .*\[minatar\]"):
        make_environments(config_of("MinAtar/Breakout-v1"), 2, 1, "train")


def test_evaluation_plays_in_gymnasiums_own_environments() -> None:
    environments = make_environments(config_of("CartPole-v1"), 2, 1, "evaluate")
    assert isinstance(environments.lanes, LocalLanes)


@njit()
def from_zero(state, chance):  # type: ignore[no-untyped-def]
    state[0] = 0.0


@njit()
def count_up(state, action, chance):  # type: ignore[no-untyped-def]
    state[0] += 1
    return 3, state[0] > 2


@njit()
def show(state, obs):  # type: ignore[no-untyped-def]
    obs[0] = np.float32(state[0])


class Counting(gym.Env[Any, Any]):
    """An environment of one's own that says which dynamics are its equal."""

    dynamics = Dynamics(from_zero, count_up, show, (0,), (9,))
    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **options: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        raise NotImplementedError


def test_an_environment_of_ones_own_names_its_dynamics_and_whole_numbers_are_rewards_too(
    monkeypatch: Any,
) -> None:
    spec = gym.envs.registration.EnvSpec("Counting-v0", entry_point=Counting)
    monkeypatch.setitem(gym.registry, "Counting-v0", spec)
    ours = compiled("Counting-v0", count=2)
    rewards = [ours.step(np.zeros(2, np.int64)).reward.tolist() for _ in range(4)]
    assert rewards == [[3.0, 3.0]] * 4
    assert ours.take_finished() == [(0, 9.0, 3), (1, 9.0, 3)]
    assert ours.obs.tolist() == [[1.0], [1.0]]


EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'compiled_walk.py'}:WindyWalk"


def test_the_example_of_the_page_learns_and_is_a_gymnasium_environment_too(tmp_path: Path) -> None:
    settings = dict(
        num_envs=8, num_steps=64, total_timesteps=16_384, max_episode_steps=100, learning_rate=1e-3
    )
    result = train(config_of(EXAMPLE, **settings, eval_episodes=20), run_dir=tmp_path / "run", quiet=True)
    # The straight way takes 10 - 4.5 steps and the wind some more; who walks at random is cut after 100.
    assert result.metrics["eval/mean_return"] > -9
    env = make_env(EXAMPLE, {}, 100)
    check_env(env.unwrapped, skip_render_check=True)


def test_chance_and_steps_of_one_are_those_of_many() -> None:
    env: Any = make_env(EXAMPLE, {}, None).unwrapped
    ours = compiled(EXAMPLE, count=1)
    env.reset(seed=3)
    env.state, env.chance = ours.states[0].copy(), ours.chance[0].copy()
    for _ in range(20):
        obs, reward, terminated, _, _ = env.step(0)
        step = ours.step(np.array([0]))
        assert (obs.tobytes(), reward, terminated) == (
            step.next_obs[0].tobytes(),
            step.reward[0],
            step.terminated[0],
        )
