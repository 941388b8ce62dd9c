"""`vectorization: auto`: which environments it chooses, where that is written, and what runs from before mean."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from runs import TINY

from rl_training import load_config, resume, train
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.compiled import CompiledEnvironments
from rl_training.envs.environments import Environments
from rl_training.envs.making import make_environments, with_lanes
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime.workflows import lanes_line
from rl_training.settings.loading import load_run_config

GOLDEN = Path(__file__).parents[1] / "golden"
EXAMPLE = Path(__file__).parents[2] / "examples" / "compiled_walk.py"


def chosen(**settings: Any) -> str:
    return with_lanes(load_config(dict(algo="ppo", env_id="CartPole-v1") | settings)).vectorization


@pytest.mark.parametrize("env_id", [name for name in KNOWN if not name.startswith("MinAtar/")])
def test_it_is_the_default_and_takes_compiled_environments_where_they_are_equal(env_id: str) -> None:
    assert load_config(dict(algo="ppo", env_id=env_id)).vectorization == "auto"
    assert chosen(env_id=env_id) == "compiled"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (dict(env_kwargs={"sutton_barto_reward": True}), "the config has env_kwargs"),
        (dict(env_kwargs={"render_mode": "rgb_array"}), "the config has env_kwargs"),
        (dict(wrappers=[{"gymnasium.wrappers:ClipReward": {"min_reward": 0, "max_reward": 1}}]), "wrappers"),
        (dict(frame_stack=2), "the config has frame_stack"),
        (dict(action_repeat=2), "the config has action_repeat"),
        (dict(time_limit=20), "the config has time_limit"),
        (dict(info_metrics=["is_success"], frame_stack=2), "the config has frame_stack, info_metrics"),
        (dict(env_id="rl_training/CartPoleNoVelocity-v1"), "a wrapper stands around the environment"),
        (dict(env_id="Blackjack-v1"), "a wrapper stands around the environment"),
        (dict(env_id="ALE/Pong-v5"), "ALE/Pong-v5 is not compiled"),
        (dict(env_id="nobody/MadeThis-v0"), "nobody/MadeThis-v0 is not compiled"),
    ],
)
def test_whatever_asks_for_more_gets_gymnasiums_own_and_is_named(more: dict[str, Any], why: str) -> None:
    assert chosen(**more) == "sync"
    written = load_config(dict(algo="ppo", env_id="CartPole-v1") | more)
    line = lanes_line(written, with_lanes(written))
    assert line.startswith("environments: sync (") and why in line


def test_arguments_that_move_get_gymnasiums_own() -> None:
    moving = {"g": {"type": "linear", "start": 2.0, "end": 10.0}}
    settings = dict(algo="ppo", env_id="Pendulum-v1", env_kwargs={"g": 10.0}, env_kwargs_schedule=moving)
    config = load_config(settings)
    assert with_lanes(config).vectorization == "sync"
    # Not only for the arguments they begin with, which a config must name.
    assert with_lanes(config.model_copy(update={"env_kwargs": {}})).vectorization == "sync"


def test_what_asks_for_more_is_named_where_the_user_wants_compiled_ones() -> None:
    config = load_config(TINY | dict(algo="ppo", vectorization="compiled", info_metrics=["is_success"]))
    with pytest.raises(ValueError, match=r"vectorization: compiled cannot be used: .*info_metrics"):
        make_environments(config, 2, 1, "train")


def test_an_id_that_somebody_has_registered_anew_is_not_compiled(monkeypatch: Any) -> None:
    spec = gym.envs.registration.EnvSpec(
        "CartPole-v1", entry_point="gymnasium.envs.classic_control.mountain_car:MountainCarEnv"
    )
    monkeypatch.setitem(gym.registry, "CartPole-v1", spec)
    assert chosen() == "sync"


OWN_STEP = """
class Own(WindyWalk):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + 100, *rest
"""
OWN_INSTANCE = """
def Own():
    env = WindyWalk()
    env.step = lambda action: (*WindyWalk.step(env, action)[:1], 100.0, False, False, {})
    return env
"""
MIXED_IN = """
class Rewarded:
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + 100, *rest


class Own(Rewarded, WindyWalk):
    pass
"""
RENAMED = """
class Own(WindyWalk):
    pass
"""
NAMED_ANEW = """
class Walk(WindyWalk):
    def step(self, action):
        return super().step(action)


class Own(Walk):
    dynamics = WindyWalk.dynamics
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (OWN_STEP, "sync"),
        (OWN_INSTANCE, "sync"),
        (MIXED_IN, "sync"),
        (RENAMED, "compiled"),
        (NAMED_ANEW, "compiled"),
    ],
)
def test_a_method_of_ones_own_outranks_the_dynamics_of_the_class_below_it(
    written: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "own_walk.py"
    file.write_text(EXAMPLE.read_text() + written)
    env_id = f"{file}:Own"
    assert chosen(env_id=env_id, max_episode_steps=20) == expected
    config = load_config(
        TINY | dict(algo="ppo", env_id=env_id, max_episode_steps=20, vectorization="compiled")
    )
    if expected == "sync":
        with pytest.raises(ValueError, match=r"compiled cannot be used: .* its step is its own"):
            make_environments(config, 2, 1, "train")
    else:
        assert make_environments(config, 2, 1, "train").step(np.array([0, 0])).reward.tolist() == [-1, -1]


def test_several_tasks_are_compiled_together_or_not_at_all() -> None:
    def of_tasks(*env_ids: str) -> str:
        return with_lanes(load_config(dict(algo="scalezero", env_ids=env_ids))).vectorization

    assert of_tasks("CartPole-v1", "Acrobot-v1") == "compiled"
    assert of_tasks("CartPole-v1", "rl_training/CartPoleNoVelocity-v1") == "sync"


def test_what_the_user_names_stays() -> None:
    assert chosen(vectorization="sync") == "sync"
    assert chosen(vectorization="async") == "async"


class Told(QuietDisplay):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("more", "expected", "why"),
    [({}, "compiled", ""), (dict(frame_stack=2), "sync", " (the config has frame_stack)")],
)
def test_the_choice_is_in_the_runs_config_and_in_its_first_lines(
    more: Any, expected: str, why: str, tmp_path: Path
) -> None:
    told = Told()
    config = load_config(TINY | dict(algo="ppo", vectorization="auto") | more)
    result = train(config, run_dir=tmp_path / "run", display=told)
    assert load_run_config(result.run_dir / "config.yaml").vectorization == expected
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    assert manifest["config"]["vectorization"] == expected
    assert manifest["paths"]["rollouts"] == ("compiled" if expected == "compiled" else "python")
    assert f"environments: {expected}{why}" in told.lines[:3]


def test_a_run_keeps_to_it_when_the_id_is_registered_anew(monkeypatch: Any, tmp_path: Path) -> None:
    config = load_config(TINY | dict(algo="ppo", vectorization="auto", checkpoint_interval=256))
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    for newest in sorted((run / "checkpoints").iterdir())[-1:]:
        newest.rename(tmp_path / "gone")
    spec = gym.envs.registration.EnvSpec(
        "CartPole-v1", entry_point="gymnasium.envs.classic_control.mountain_car:MountainCarEnv"
    )
    monkeypatch.setitem(gym.registry, "CartPole-v1", spec)
    with pytest.raises(
        ValueError, match="vectorization: compiled cannot be used: CartPole-v1 is registered as"
    ):
        resume(run, quiet=True)


def test_a_run_from_before_it_was_there_means_sync(tmp_path: Path) -> None:
    text = (GOLDEN / "runs" / "2" / "ppo" / "config.yaml").read_text()
    older = "".join(line for line in text.splitlines(True) if not line.startswith("vectorization:"))
    (tmp_path / "config.yaml").write_text(older)
    assert load_run_config(tmp_path / "config.yaml").vectorization == "sync"


def test_trainers_that_are_made_without_a_run_choose_alike() -> None:
    assert isinstance(
        make_environments(load_config(TINY | dict(algo="ppo")), 2, 1, "train"), CompiledEnvironments
    )
    plain = load_config(TINY | dict(algo="ppo", env_kwargs={"sutton_barto_reward": False}))
    assert isinstance(make_environments(plain, 2, 1, "train"), Environments)


def test_sync_gives_the_bytes_that_it_always_gave() -> None:
    # As of the version before there were compiled environments.
    environments = make_environments(
        load_config(dict(algo="ppo", env_id="FrozenLake-v1", vectorization="sync")), 3, 1, "train"
    )
    told = hashlib.sha256()
    for action in np.random.default_rng(0).integers(4, size=(300, 3)):
        step = environments.step(action)
        for part in (step.next_obs, environments.obs, step.reward, step.terminated, step.truncated):
            told.update(np.ascontiguousarray(part).tobytes())
    told.update(repr(environments.take_finished()).encode())
    assert told.hexdigest() == "535d3800104d766ae5fec975e3b887ef1af6bb2a6f31333df35ac36833fee7b2"
