"""Environments: episodes never mix, all autoreset modes are one, and a saved environment comes back."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_training.data.collector import Collector
from rl_training.envs.environments import Environments
from rl_training.envs.lanes import Choices, LocalLanes, VectorLanes, quickly_checked
from rl_training.envs.making import make_env
from rl_training.envs.spaces import ActionCodec, space_from_json, space_to_json
from rl_training.errors import ConfigError, EnvironmentFault, RunError
from rl_training.state.stateful import Stateful

COUNT = 3


def make(env_id="probe/Counting-v0"):
    return make_env(env_id, {}, None)


def lanes_of(kind, env_id="probe/Counting-v0", count=COUNT):
    if kind == "local":
        return LocalLanes([make(env_id) for _ in range(count)])
    makers = [lambda: make(env_id)] * count
    if kind == "async":
        return VectorLanes(AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED))
    return VectorLanes(SyncVectorEnv(makers, autoreset_mode=AutoresetMode[kind]))


class RandomPolicy(Stateful):
    """Acts at random and remembers how many steps its episode has, to show what a carry is worth."""

    def whole_rollouts(self, environments, greedy=False):
        return None

    def initial(self, count):
        return (torch.zeros(count),)

    def act(self, obs, carry, explore):
        count = len(carry[0])
        age = carry[0].numpy().copy()
        return {"action": np.random.randint(2, size=count), "age": age, "value": obs[:, 1].copy()}, (
            carry[0] + 1,
        )

    def value(self, obs, carry):
        return obs[:, 1] + 1000 * carry[0].numpy()


def rollouts(kind, steps=50):
    np.random.seed(0)
    policy = RandomPolicy()
    collector = Collector(Environments(lanes_of(kind), 7, "train"), policy)
    out = [{k: v.clone() for k, v in collector.collect(policy, steps).items()} for _ in range(2)]
    collector.environments.close()
    return out, collector.environments.take_finished()


@pytest.mark.parametrize("kind", ["NEXT_STEP", "SAME_STEP", "DISABLED", "async"])
def test_every_autoreset_mode_fills_the_same_buffers_byte_for_byte(kind):
    expected, finished = rollouts("local")
    got, also_finished = rollouts(kind)
    for mine, theirs in zip(expected, got, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert mine[key].dtype == theirs[key].dtype, key
            assert mine[key].numpy().tobytes() == theirs[key].numpy().tobytes(), key
    assert finished == also_finished and len(finished) > 20


def test_no_transition_crosses_an_episode_and_truncation_looks_at_the_final_observation():
    (rollout, _), _ = rollouts("local")
    name, t = rollout["obs"][..., 0], rollout["obs"][..., 1]
    done = rollout["terminated"] | rollout["truncated"]
    assert done.any() and rollout["truncated"].any() and rollout["terminated"].any()
    assert rollout["reward"].dtype is torch.float32, "whatever environments give"
    assert torch.equal(rollout["age"], t)  # the carry is fresh at the first step of each episode
    same = name[1:] == name[:-1]
    assert torch.equal(same, ~done[:-1])
    # The value of an observation is its t here: where an episode goes on, the next one's; where it was cut,
    # that of the final observation t + 1, seen with the carry as it was then (t + 1 steps old).
    cut = rollout["truncated"][:-1]
    going = ~done[:-1]
    assert torch.equal(rollout["next_value"][:-1][going], t[1:][going])
    assert torch.equal(rollout["next_value"][:-1][cut], (t[:-1] + 1 + 1000 * (t[:-1] + 1))[cut])


@pytest.mark.parametrize("kind", ["local", "NEXT_STEP", "SAME_STEP", "DISABLED", "async"])
@pytest.mark.parametrize("steps", [0, 1, 37])
def test_saved_environments_come_back_exactly(kind, steps):
    rng = np.random.default_rng(3)
    envs = Environments(lanes_of(kind), 11, "train")
    for _ in range(steps):
        envs.step(rng.integers(2, size=COUNT))
    state = envs.state_dict()
    restored = Environments(lanes_of(kind), 11, "train")
    for _ in range(5):
        restored.step(rng.integers(2, size=COUNT))  # whatever it did before is forgotten
    restored.load_state_dict(state)
    for _ in range(60):
        actions = rng.integers(2, size=COUNT)
        for mine, theirs in zip(envs.step(actions), restored.step(actions), strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
    assert envs.take_finished() == restored.take_finished()
    again = restored.state_dict()
    assert all(
        np.array_equal(a, b) for a, b in zip(envs.state_dict()["actions"], again["actions"], strict=True)
    )
    envs.close(), restored.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_public_environments_replay(env_id):
    envs = Environments(lanes_of("local", env_id), 5, "train")
    rng = np.random.default_rng(0)
    discrete = isinstance(envs.lanes.action_space, gym.spaces.Discrete)

    def draw():
        return rng.integers(2, size=COUNT) if discrete else rng.normal(size=(COUNT, 1)).astype(np.float32)

    for _ in range(330):
        envs.step(draw())
    other = Environments(lanes_of("local", env_id), 5, "train")
    other.load_state_dict(envs.state_dict())
    for _ in range(100):
        actions = draw()
        assert envs.step(actions).next_obs.tobytes() == other.step(actions).next_obs.tobytes()


def test_the_action_history_forgets_finished_episodes():
    envs = Environments(lanes_of("local"), 1, "train")
    for _ in range(500):
        envs.step(np.zeros(COUNT, np.int64))
    assert len(envs.history) < 40


def test_an_environment_that_is_not_deterministic_is_found_out():
    envs = Environments(lanes_of("local", "probe/Undetermined-v0"), 1, "train")
    envs.step(np.zeros(COUNT, np.int64))
    with pytest.raises(RunError, match="not deterministic"):
        Environments(lanes_of("local", "probe/Undetermined-v0"), 1, "train").load_state_dict(
            envs.state_dict()
        )


def test_lanes_streams_and_seeds_give_different_episodes():
    first = {
        key: Environments(lanes_of("local"), seed, key).obs for seed, key in [(1, "train"), (1, "evaluate")]
    }
    assert len({float(x) for obs in first.values() for x in obs[:, 0]}) == 2 * COUNT


def test_actions_are_scaled_to_asymmetric_bounds_and_clipped_there():
    space = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))
    actions = ActionCodec(space).to_env(
        np.array([[-1.0, 0.0], [1.0, 1.0], [0.5, -7.0], [9.0, 0.2]], np.float32)
    )
    np.testing.assert_allclose(actions, [[-1, 5], [3, 10], [2, 0], [3, 6]], rtol=1e-6)
    assert actions.dtype == np.float32 and all(space.contains(row) for row in actions)


def test_dimensions_without_bounds_keep_their_units():
    space = gym.spaces.Box(np.array([-np.inf, -2.0], np.float32), np.array([np.inf, 2.0], np.float32))
    assert ActionCodec(space).to_env(np.array([[7.0, 1.0]], np.float32)).tolist() == [[7.0, 2.0]]


def test_discrete_actions_start_where_their_space_does():
    assert ActionCodec(gym.spaces.Discrete(3, start=5)).to_env(np.array([0, 2])).tolist() == [5, 7]
    both = ActionCodec(gym.spaces.MultiDiscrete([2, 3], start=[1, -1])).to_env(np.array([[1, 2]]))
    assert both.tolist() == [[2, 1]]


def test_spaces_survive_as_plain_values():
    space = gym.spaces.Dict(
        {
            "a": gym.spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)),
            "b": gym.spaces.Dict({"c": gym.spaces.Discrete(4, start=1), "d": gym.spaces.MultiBinary(3)}),
            "e": gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
            "f": gym.spaces.Box(0, 255, (4, 8, 8), np.uint8),
        }
    )
    assert space_from_json(space_to_json(space)) == space


def test_an_unknown_environment_is_one_line_with_the_nearest_name():
    with pytest.raises(ConfigError, match="CartPole-v1") as error:
        make_env("CartPol-v1", {}, None)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="env_kwargs"):
        make_env("CartPole-v1", {"gravitation": 3}, None)
    with pytest.raises(ConfigError, match="no_such_module"):
        make_env("no_such_module:Env-v0", {}, None)


@pytest.mark.parametrize("start", [0, 3, -2])
def test_choices_answer_as_a_discrete_does(start):
    theirs, env = gym.spaces.Discrete(3, start=start), gym.make("CartPole-v1")
    env.unwrapped.action_space = theirs
    ours = quickly_checked(env).unwrapped.action_space
    assert type(ours) is Choices and ours == theirs
    kinds = (
        int,
        float,
        bool,
        np.int64,
        np.int32,
        np.uint8,
        np.float32,
        np.array,
        lambda x: np.array([x]),
        str,
    )
    for number in range(-6, 9):
        for kind in kinds:
            if number >= 0 or kind is not np.uint8:
                assert ours.contains(kind(number)) is theirs.contains(kind(number)), (kind, number)


def test_only_gymnasiums_own_environments_get_choices_and_nobody_else_sees_them():
    class Own(type(gym.make("CartPole-v1").unwrapped)):
        pass

    assert type(quickly_checked(Own()).action_space) is gym.spaces.Discrete
    lanes = LocalLanes([make("CartPole-v1")])
    assert type(lanes.envs[0].action_space) is Choices and type(lanes.action_space) is gym.spaces.Discrete
    with pytest.raises(EnvironmentFault, match="AssertionError"):
        lanes.reset([0], [1])
        lanes.step(np.array([2]))


def test_returns_and_lengths_are_those_of_the_open_episodes_whenever_they_are_read():
    environments, often = (Environments(lanes_of("local"), 7, "train") for _ in range(2))
    actions = np.random.default_rng(0).integers(2, size=(60, COUNT))
    for row in actions:
        environments.step(row)
        often.step(row)
        assert (often.lengths >= 0).all() and often.returns.shape == (COUNT,)
    for name in ("returns", "lengths"):
        assert getattr(environments, name).tobytes() == getattr(often, name).tobytes()
        assert environments.state_dict()[name].tobytes() == often.state_dict()[name].tobytes()
    assert environments.take_finished() == often.take_finished()


def test_a_smaller_picture_of_cartpole_has_the_means_of_squares():
    large, small = (make_env("rl_training/CartPolePixels-v1", {"size": size}, None) for size in (64, 16))
    assert large.observation_space.shape == (64, 64, 3) and small.observation_space.shape == (16, 16, 3)
    for number in range(3):
        seen = [env.reset(seed=4)[0] if number == 0 else env.step(1)[0] for env in (large, small)]
        corner = seen[0][44:48, 28:32].astype(float).mean((0, 1))  # where the cart is
        assert (
            seen[1].dtype == np.uint8 and seen[1][11, 7].tolist() == np.rint(corner).astype(np.uint8).tolist()
        )
        assert corner.std() > 1
    with pytest.raises(ConfigError, match="size: must divide 64, got 30"):
        make_env("rl_training/CartPolePixels-v1", {"size": 30}, None)
