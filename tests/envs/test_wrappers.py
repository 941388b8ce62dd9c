"""Layers around an environment: wrappers of one's own, frame_stack, action_repeat, time_limit, text."""

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rl_training.envs.wrappers as ours
from rl_training import evaluate_checkpoint, load_config, train
from rl_training.envs.layers import Recipe
from rl_training.envs.making import asks_for_more, make_environments, make_whole
from rl_training.errors import ConfigError, UntrustedError

FILE = Path(__file__).parents[1] / "wrapping.py"
DROP, ENCODE = (f"rl_training.envs.wrappers:{name}" for name in ("DropText", "EncodeText"))


def config_of(**changes):
    return load_config(dict(algo="ppo", env_id="CartPole-v1") | changes)


def made(**changes):
    return make_whole(Recipe.of(config_of(**changes)))


class Shown(gym.Env):
    """Shows what it was told to, times the step."""

    def __init__(self, space, first):
        self.observation_space, self.action_space, self.first = space, spaces.Discrete(2), first

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 1
        return self.first, {}

    def step(self, action):
        self.t += 1
        return self.first * self.t, float(self.t), self.t == 6, False, {}


def stacked(space, first, count, steps):
    env = ours.FrameStack(Shown(space, first), count)
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        obs = env.step(0)[0]
    assert env.observation_space.contains(obs), (env.observation_space, obs)
    return obs


class Painted(gym.Env):
    """Renders how often it was stepped."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, render_mode=None, side=8, fails=False):
        self.render_mode, self.fails, self.rendered = render_mode, fails, 0
        self.picture = np.zeros((side, side, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        self.picture[:] = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.picture += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self):
        if self.fails:
            raise OSError("no context")
        self.rendered += 1
        return self.picture


def test_pixels_are_rendered_once_for_each_action_and_are_copies():
    bare = Painted("rgb_array")
    env = ours.Pixels(ours.ActionRepeat(bare, 3), size=8)
    assert env.observation_space == spaces.Box(0, 255, (8, 8, 3), np.uint8)
    seen = [env.reset(seed=0)[0], *(env.step(1)[0] for _ in range(2))]
    assert [np.unique(picture).tolist() for picture in seen] == [[0], [3], [6]]
    assert bare.rendered == 3
    assert env.step(1)[1] == 3.0


def test_pixels_that_cannot_be_shown_are_refused():
    with pytest.raises(ValueError, match=r"env_kwargs: \{render_mode: rgb_array\}"):
        ours.Pixels(Painted())
    with pytest.raises(
        ValueError, match=r"renders \(8, 8, 3\), not \(64, 64, 3\); set the size in env_kwargs"
    ):
        ours.Pixels(Painted("rgb_array")).reset()
    with pytest.raises(RuntimeError, match=r"cannot render \(no context\).*MUJOCO_GL=egl"):
        ours.Pixels(Painted("rgb_array", fails=True)).reset()


def test_vectors_are_stacked_one_after_the_other_and_an_episode_begins_with_copies():
    space, first = spaces.Box(0.0, 9.0, (2,), np.float32), np.array([1.0, 0.5], np.float32)
    assert stacked(space, first, 3, 0).tolist() == [1.0, 0.5] * 3
    assert stacked(space, first, 3, 1).tolist() == [1.0, 0.5, 1.0, 0.5, 2.0, 1.0]
    assert stacked(space, first, 3, 4).tolist() == [3.0, 1.5, 4.0, 2.0, 5.0, 2.5]


def test_pictures_are_stacked_along_their_channels():
    last = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    assert stacked(last, np.ones((12, 12, 3), np.uint8), 4, 2)[0, 0].tolist() == [1] * 6 + [2] * 3 + [3] * 3
    first = spaces.Box(0, 255, (3, 12, 12), np.uint8)
    assert stacked(first, np.ones((3, 12, 12), np.uint8), 2, 1)[:, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]
    grey = spaces.Box(0, 255, (12, 12), np.uint8)
    assert stacked(grey, np.ones((12, 12), np.uint8), 2, 1).shape == (2, 12, 12)


def test_choices_and_bits_are_stacked_and_of_a_mask_the_newest_is_shown():
    assert stacked(spaces.Discrete(9, start=1), np.int64(1), 2, 1).tolist() == [1, 2]
    assert stacked(spaces.MultiDiscrete([9, 9]), np.array([1, 2]), 2, 1).tolist() == [1, 2, 2, 4]

    space = spaces.Dict({"seen": spaces.Box(0, 9, (1,)), "action_mask": spaces.MultiBinary(2)})
    env = ours.FrameStack(Shown(space, None), 2)
    env.shown({"seen": np.float32([1]), "action_mask": np.int8([1, 0])})
    obs = env.shown({"seen": np.float32([2]), "action_mask": np.int8([0, 1])})
    assert obs["seen"].tolist() == [1, 2] and obs["action_mask"].tolist() == [0, 1]


def test_an_action_is_repeated_until_the_episode_ends_and_rewards_are_added_up():
    env = ours.ActionRepeat(Shown(spaces.Box(0, 9, (1,)), np.float32([1])), 3)
    env.reset(seed=0)
    obs, reward, terminated, *_ = env.step(1)
    assert (obs[0], reward, terminated) == (4.0, 2.0 + 3.0 + 4.0, False)
    obs, reward, terminated, *_ = env.step(1)
    assert (obs[0], reward, terminated) == (6.0, 5.0 + 6.0, True)


def test_the_previous_action_is_what_was_taken_though_the_environment_writes_into_it():
    class Clearing(gym.ActionWrapper):
        def action(self, action):
            action[:] = 0.0
            return 0

    inner = Clearing(Shown(spaces.Box(0.0, 9.0, (1,), np.float32), np.ones(1, np.float32)))
    inner.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    env = ours.PreviousActionAndReward(inner)
    env.reset(seed=0)
    obs = env.step(np.array([0.5, -0.25], np.float32))[0]
    assert obs["previous_action"].tolist() == [0.5, -0.25] and obs["previous_reward"].tolist() == [2.0]
    with pytest.raises(ValueError, match="already has previous_action, previous_reward"):
        ours.PreviousActionAndReward(env)


def test_the_layers_stand_in_their_order():
    env = made(wrappers=["wrapping:Scaled"], action_repeat=2, frame_stack=3, time_limit=7)
    names = []
    while isinstance(env, gym.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names == ["TimeLimit", "FrameStack", "ActionRepeat", "Scaled", "TimeLimit", "OrderEnforcing"]


def test_a_time_limit_counts_the_policys_steps():
    environments = make_environments(
        config_of(env_id="Pendulum-v1", action_repeat=4, time_limit=5), 2, 1, "train"
    )
    for _ in range(10):
        step = environments.step(np.zeros((2, 1), np.float32))
    assert step.truncated.all() and [length for *_, length in environments.take_finished()] == [5] * 4


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_layers_come_back_exactly_from_a_replay(vectorization):
    layers = dict(
        wrappers=[{f"{FILE}:Scaled": {"by": 3.0}}, "wrapping:Tired"], frame_stack=3, action_repeat=2
    )
    config = config_of(**layers, time_limit=9, vectorization=vectorization)
    one, two = (make_environments(config, 2, 1, "train") for _ in range(2))
    try:
        for t in range(13):
            one.step(np.array([t % 2, t % 3 == 0]).astype(np.int64))
        two.load_state_dict(one.state_dict())
        assert one.obs.shape == (2, 12) and one.returns.tolist() == two.returns.tolist()
        for _ in range(20):
            steps = [each.step(np.array([1, 0])) for each in (one, two)]
            assert np.array_equal(steps[0].next_obs, steps[1].next_obs)
            assert np.array_equal(steps[0].reward, steps[1].reward)
    finally:
        one.close()
        two.close()


def test_a_run_with_layers_is_recorded_with_them_and_its_wrappers_need_trust(tmp_path):
    small = dict(total_timesteps=128, num_envs=2, num_steps=32, eval_episodes=2)
    config = config_of(wrappers=["wrapping:Scaled", {"by": 3.0}], frame_stack=2, time_limit=30, **small)
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    assert "wrappers: [{'wrapping:Scaled': {by: 3.0}}]".replace("'", '"') in (run / "config.yaml").read_text()
    with pytest.raises(UntrustedError, match="wrappers 'wrapping:Scaled' imports the module 'wrapping'"):
        evaluate_checkpoint(run)
    assert evaluate_checkpoint(run, trust=True)["mean_length"] <= 30


def test_text_is_refused_with_what_to_write():
    with pytest.raises(
        ConfigError, match=r"observation\['said'\] is text; write `wrappers: \[rl_training.envs.wrap"
    ):
        make_environments(config_of(wrappers=["wrapping:Talking"]), 1, 1, "train")


def test_text_is_dropped():
    env = made(wrappers=["wrapping:Talking", DROP])
    assert env.observation_space == gym.make("CartPole-v1").observation_space
    assert env.observation_space.contains(env.reset(seed=0)[0])


def test_text_is_encoded_as_a_bag_of_words():
    env = made(wrappers=["wrapping:Talking", {ENCODE: {"size": 16}}])
    before, after = env.reset(seed=0)[0]["said"], env.step(0)[0]["said"]
    assert before.sum() == 3 and after.sum() == 5  # balance the pole, and two words more of the same
    assert set(np.flatnonzero(after)) == set(np.flatnonzero(before)) and after.max() >= 2
    assert env.observation_space["said"].shape == (16,)


def test_shipped_wrappers_need_no_trust(tmp_path):
    small = dict(total_timesteps=64, num_envs=1, num_steps=32, eval_episodes=1)
    run = train(
        config_of(env_id="probe/DictAndPicture-v0", wrappers=[ENCODE], **small),
        run_dir=tmp_path / "run",
        quiet=True,
    )
    assert evaluate_checkpoint(run.run_dir)["episodes"] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(wrappers=["wrapping:Missing"]), "wrappers 'wrapping:Missing' cannot be loaded"),
        (
            dict(wrappers=["wrapping:nothing"]),
            "wrappers: 'wrapping:nothing' returned None, which is not an environment",
        ),
        (dict(wrappers=[{"wrapping:Scaled": {"bye": 1}}]), "cannot be created with {'bye': 1}"),
        (dict(wrappers=[DROP]), "DropText needs a Dict observation"),
        (
            dict(env_id="ALE/Pong-v5", frame_stack=4),
            "frame_stack: Atari's vector environment is compiled and stacks frames itself: env_kwargs: {frame_stack",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(changes, words):
    with pytest.raises(ConfigError) as refused:
        make_environments(config_of(**changes), 1, 1, "train")
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["frame_stack", "action_repeat", "time_limit"])
def test_none_of_them_is_zero(name):
    with pytest.raises(ConfigError, match=name):
        config_of(**{name: 0})


def test_which_configs_ask_for_more_than_the_plain_environment():
    assert not asks_for_more(config_of())
    for more in (dict(wrappers=[DROP]), dict(frame_stack=2), dict(action_repeat=2), dict(time_limit=5)):
        assert asks_for_more(config_of(**more)), more


def test_the_example_of_the_page_trains(tmp_path):
    page = (FILE.parents[1] / "docs" / "wrappers.md").read_text("utf-8")
    for name, text in re.findall(r"```(?:python|yaml)\n# (shaped\.\w+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    config = load_config(tmp_path / "shaped.yaml", ["total_timesteps=600", "eval_episodes=2"])
    result = train(config, run_dir=tmp_path / "run", quiet=True)
    assert (
        evaluate_checkpoint(result.run_dir, trust=True)["mean_return"]
        < evaluate_checkpoint(result.run_dir, trust=True)["mean_length"]
    )
