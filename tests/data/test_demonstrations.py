"""Demonstrations: what is recorded comes back equal, what is wrong with a file is said in one line, nothing is run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from runs import TINY

from rl_training.data import minari_datasets
from rl_training.data.demonstrations import (
    Demonstrations,
    Episode,
    check_fit,
    load_demonstrations,
    save_demonstrations,
)
from rl_training.data.imitation import ExpertPairs, agent_pairs, join
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import ConfigError, RunError
from rl_training.runtime.ppo_trainer import PPOConfig, train_ppo
from rl_training.runtime.workflows import load_policy, record_demonstrations

OBSERVATIONS, ACTIONS = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)


def episode(length: int, terminated: bool = True, action: int = 1) -> Episode:
    last = np.arange(length) == length - 1
    obs = np.arange(2.0 * (length + 1), dtype=np.float32).reshape(-1, 2)
    return Episode(
        obs, np.full(length, action), np.linspace(0, 1, length), last & terminated, last & (not terminated)
    )


def demonstrations(*episodes: Episode) -> Demonstrations:
    return Demonstrations(
        "Probe-v0", episodes or (episode(3), episode(2, terminated=False)), {"algo": "hand"}
    )


def same(one: Demonstrations, other: Demonstrations) -> bool:
    pairs = zip(one.episodes, other.episodes, strict=True)
    return one.env_id == other.env_id and all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for mine, yours in pairs
        for a, b in zip(mine, yours, strict=True)
    )


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    save_demonstrations(demonstrations(), str(path))
    again = load_demonstrations(str(path))
    assert same(demonstrations(), again)
    assert again.about == {"algo": "hand"}
    assert again.lengths == [3, 2]
    assert again.returns == [1.5, 1.0]
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["returns"] == [1.5, 1.0] and about["format"] == 1
    with pytest.raises(RunError, match="is there already"):
        save_demonstrations(demonstrations(), str(path))
    with pytest.raises(RunError, match="no such directory"):
        save_demonstrations(demonstrations(), str(tmp_path / "nowhere" / "demos.npz"))


def rewrite(path: Path, **changes: Any) -> None:
    """Change arrays of a file (None: leave out), and let its JSON forget the digest."""
    with np.load(path) as arrays:
        columns = {name: arrays[name] for name in arrays.files} | changes
    np.savez(path, **{name: column for name, column in columns.items() if column is not None})
    about = json.loads(path.with_suffix(".json").read_text())
    del about["sha256"]
    path.with_suffix(".json").write_text(json.dumps(about))


NAN = np.full((7, 2), np.nan, np.float32)
BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no observations": (dict(observations=None), "has no array observations"),
    "no ends": (dict(terminations=None), "has no array terminations"),
    "something else": (dict(secret=np.zeros(1)), "has an unknown array secret"),
    "too few rows": (dict(actions=np.zeros(4, np.int64)), "actions has shape"),
    "a row for each action only": (dict(observations=np.zeros((5, 2))), "observations has shape"),
    "a scalar": (dict(rewards=np.float64(3)), "rewards has shape"),
    "lengths of zero": (dict(episode_lengths=np.array([5, 0])), "episode_lengths"),
    "lengths that are parts": (dict(episode_lengths=np.array([2.5, 2.5])), "episode_lengths"),
    "no episodes": (
        {name: np.zeros((0, 2)) for name in ("observations",)}
        | {name: np.zeros(0) for name in ("actions", "rewards")}
        | {name: np.zeros(0, np.bool_) for name in ("terminations", "truncations")}
        | dict(episode_lengths=np.zeros(0, np.int64)),
        "no episodes",
    ),
    "not finite": (dict(observations=NAN), "episode 0: observations are not finite at step 0"),
    "infinite rewards": (dict(rewards=np.array([0, 0, 0, 0, np.inf])), "episode 1: rewards are not finite"),
    "text": (dict(actions=np.array(["a"] * 5)), "which is no number"),
    "no end": (
        dict(terminations=np.zeros(5, np.bool_), truncations=np.zeros(5, np.bool_)),
        "episode 0 has no end",
    ),
    "an early end": (dict(terminations=np.array([1, 0, 1, 0, 0], np.bool_)), "episode 0 ends at step 0"),
    "ends as numbers": (dict(terminations=np.array([0, 0, 1.0, 0, 0])), "terminations are float64"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_make_no_episodes_are_refused(name: str, tmp_path: Path) -> None:
    changes, message = BAD_ARRAYS[name]
    path = tmp_path / "demos.npz"
    save_demonstrations(demonstrations(), str(path))
    rewrite(path, **changes)
    with pytest.raises(ConfigError) as caught:
        load_demonstrations(str(path))
    assert str(caught.value).startswith(f"demonstrations: {path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_demonstrations(demonstrations(), "demos.npz")
    rewrite(Path("demos.npz"), actions=np.array([Bomb()] * 5, object))
    with pytest.raises(ConfigError, match="file of plain arrays"):
        load_demonstrations("demos.npz")
    assert not Path("exploded").exists()


def test_files_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_demonstrations(demonstrations(), "demos.npz")
    data, about = Path("demos.npz").read_bytes(), Path("demos.json").read_text()

    def refused(message: str, name: str = "demos.npz") -> None:
        with pytest.raises(ConfigError, match=message):
            load_demonstrations(name)

    refused("no such file", "demo.npz")
    refused("ending in .npz", "demos.json")
    Path("demos.npz").write_bytes(data[:-40])
    refused("not a .npz file")
    Path("demos.npz").write_bytes(b"")
    refused("not a .npz file")
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    Path("demos.npz").write_bytes(single.getvalue())
    refused("not a .npz file")
    Path("demos.npz").write_bytes(data)
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "env_id"),
        ('{"format": 1}', "env_id"),
        (about.replace('"format": 1', '"format": 2'), "format 2"),
        (about.replace('"sha256": "', '"sha256": "0'), "SHA-256 differs"),
    ):
        Path("demos.json").write_text(text)
        refused(message)
    unsigned = json.loads(about)
    del unsigned["sha256"]
    Path("demos.json").write_text(json.dumps(unsigned))
    for place in range(40, len(data) - 30, 37):  # without a SHA-256: also inside compressed arrays
        Path("demos.npz").write_bytes(data[:place] + bytes(8) + data[place + 8 :])
        try:
            load_demonstrations("demos.npz")
        except ConfigError as error:
            assert "\n" not in str(error)
    Path("demos.json").unlink()
    refused("demos.json, which describes it, cannot be read")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_id="CartPole-v1"), "they were made in Probe-v0, not in CartPole-v1"),
        (dict(observations=spaces.Box(-9, 9, (3,))), r"observations have shape \(2,\)"),
        (dict(observations=spaces.Box(0, 9, (2,), np.uint8)), "are float32, the environment's are uint8"),
        (dict(observations=spaces.Dict({"a": OBSERVATIONS})), "not of the same kind"),
        (dict(actions=spaces.Discrete(1)), "outside the environment's space: 1 at step 0"),
        (dict(actions=spaces.Discrete(3, start=2)), "outside"),
        (dict(actions=spaces.Box(-1, 1, (1,))), r"actions have shape \(\)"),
        (dict(actions=spaces.MultiBinary(2)), "actions have shape"),
    ],
)
def test_demonstrations_must_fit_the_environment(changes: dict[str, Any], message: str) -> None:
    made = dict(env_id="Probe-v0", observations=OBSERVATIONS, actions=ACTIONS)
    check_fit(demonstrations(), *made.values(), where="x.npz")
    with pytest.raises(ConfigError, match=message):
        check_fit(demonstrations(), *(made | changes).values(), where="x.npz")


def test_continuous_actions_may_pass_their_bounds_by_rounding_only() -> None:
    def reach(action: float) -> Demonstrations:
        return demonstrations(episode(2)._replace(actions=np.array([[0.0], [action]], np.float32)))

    space = spaces.Box(-2, 2, (1,))
    check_fit(reach(2.0001), "Probe-v0", OBSERVATIONS, space, "x")
    with pytest.raises(ConfigError, match="outside the environment's space: 3"):
        check_fit(reach(3.0), "Probe-v0", OBSERVATIONS, space, "x")
    assert ExpertPairs(reach(2.0001), OBSERVATIONS, ActionCodec(space), 1).pairs["action"].max() == 1.0


def test_another_version_of_the_environment_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="recorded in Probe-v0, but this is Probe-v1"):
        check_fit(demonstrations(), "Probe-v1", OBSERVATIONS, ACTIONS, "x")


def test_pairs_leave_out_the_last_observation_and_count_terminations() -> None:
    expert = ExpertPairs(demonstrations(), OBSERVATIONS, ActionCodec(ACTIONS), 1)
    assert expert.pairs["obs"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert expert.pairs["action"].tolist() == [1] * 5
    assert expert.pairs["ends"] == 1
    thinned = ExpertPairs(demonstrations(), OBSERVATIONS, ActionCodec(ACTIONS), 2)
    assert thinned.pairs["obs"].tolist() == [
        [0, 1],
        [4, 5],
        [2, 3],
    ]  # the second episode from its second step on
    assert thinned.pairs["ends"] == 0.5  # what follows an end is thinned as the steps before it
    with pytest.raises(RunError, match="not the ones"):
        thinned.load_state_dict(expert.state_dict())
    expert.load_state_dict(expert.state_dict())


def test_pools_are_joined() -> None:
    one = {"obs": {"a": np.zeros((2, 1))}, "action": np.array([0, 1]), "ends": 1.0}
    two = {"obs": {"a": np.ones((1, 1))}, "action": np.array([2]), "ends": 2.0}
    joined = join([one, two])
    assert joined["obs"]["a"].tolist() == [[0], [0], [1]]
    assert joined["action"].tolist() == [0, 1, 2] and joined["ends"] == 3


def test_the_agents_actions_are_those_carried_out() -> None:
    import torch

    rollout = {
        "obs": torch.zeros(2, 1, 3),
        "action": torch.tensor([[[0.5]], [[7.0]]]),
        "terminated": torch.tensor([[False], [True]]),
    }
    pairs = agent_pairs(rollout, ActionCodec(spaces.Box(-2, 2, (1,))))
    assert pairs["action"].tolist() == [[0.5], [1.0]] and pairs["obs"].shape == (2, 3)
    assert pairs["ends"] == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = PPOConfig(**TINY | dict(env_id="Pendulum-v1", total_timesteps=128, max_episode_steps=20))
    return train_ppo(config, run_dir=tmp_path_factory.mktemp("runs") / "run").run_dir


def test_recorded_episodes_are_what_the_policy_does(run: Path, tmp_path: Path) -> None:
    """Played again from its first observation on, action by action, an episode must be the one recorded."""
    out = tmp_path / "demos.npz"
    made = record_demonstrations(run, out, episodes=3, seed=5)
    assert same(made, load_demonstrations(str(out)))
    assert made.lengths == [20] * 3
    env, policy = gym.make("Pendulum-v1", max_episode_steps=20).unwrapped, load_policy(run)
    for played in made.episodes:
        assert not played.terminations.any() and played.truncations[-1]
        env.reset()
        cosine, sine, speed = played.observations[0].astype(np.float64)
        env.state = np.array([np.arctan2(sine, cosine), speed])
        for t in range(20):
            assert np.allclose(policy.act(played.observations[t]), played.actions[t], atol=1e-4)
            obs, reward, *_ = env.step(played.actions[t])
            assert np.allclose(obs, played.observations[t + 1], atol=1e-3)
            assert reward == pytest.approx(played.rewards[t], abs=1e-3)
            env.state = np.array(
                [np.arctan2(*played.observations[t + 1][[1, 0]]), played.observations[t + 1][2]]
            )
    check_fit(made, "Pendulum-v1", env.observation_space, env.action_space, "x")
    again = record_demonstrations(run, tmp_path / "again.npz", episodes=3, seed=5)
    assert same(made, again) and out.read_bytes() == (tmp_path / "again.npz").read_bytes()
    assert not same(made, record_demonstrations(run, tmp_path / "other.npz", episodes=3, seed=6))


def test_observations_in_parts_survive(tmp_path: Path) -> None:
    config = PPOConfig(**TINY | dict(env_id="probe/DictAndPicture-v0", total_timesteps=128))
    trained = train_ppo(config, run_dir=tmp_path / "run").run_dir
    made = record_demonstrations(trained, tmp_path / "demos.npz", episodes=2)
    again = load_demonstrations(str(tmp_path / "demos.npz"))
    assert again.episodes[0].observations.keys() == {"camera", "vector", "digit"}
    for key, part in made.episodes[1].observations.items():
        assert np.array_equal(part, again.episodes[1].observations[key])
    space = gym.make("probe/DictAndPicture-v0")
    check_fit(again, "probe/DictAndPicture-v0", space.observation_space, space.action_space, "x")


def test_minari_datasets_are_written_and_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = record_demonstrations(run, "minari:pendulum/probe-v0", episodes=2)
    again = minari_datasets.read("minari:pendulum/probe-v0")
    assert same(made, again)
    with pytest.raises(RunError, match="is there already"):
        record_demonstrations(run, "minari:pendulum/probe-v0", episodes=2)
    with pytest.raises(ConfigError, match="no such local dataset"):
        minari_datasets.read("minari:pendulum/prob-v0")
    with pytest.raises(RunError, match="is not the name of a dataset"):
        record_demonstrations(run, "minari:no name", episodes=2)
    about = next(tmp_path.rglob("metadata.json"))
    metadata = json.loads(about.read_text())
    about.write_text(json.dumps({key: metadata[key] for key in metadata if key != "observation_space"}))
    with pytest.raises(ConfigError, match="run code"):
        minari_datasets.read("minari:pendulum/probe-v0")
    next(tmp_path.rglob("main_data.hdf5")).write_bytes(b"no such format")
    about.write_text(json.dumps(metadata))
    with pytest.raises(ConfigError, match="Minari cannot read it"):
        minari_datasets.read("minari:pendulum/probe-v0")


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"\[minari\]"):
        minari_datasets.read("minari:a/b-v0")
