"""The presets of environment packages (MiniGrid, POPGym, Box2D, …): a short run each, where its extra is there."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from runs import TINY_DREAMER, assert_same_run, stopped_after

from rl_training import evaluate_checkpoint, load_config, resume, train
from rl_training.envs import making
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError
from rl_training.extras import missing_packages

TINY = [
    "learning_starts=300",
    "train_ratio=3.2",
    *(f"{name}={number}" for name, number in TINY_DREAMER.items()),
]
SHORT = ["total_timesteps=600", "eval_episodes=1", "num_envs=6", "max_episode_steps=40"]
PRESETS = {
    "ppo/minigrid_doorkey": ("minigrid", ["num_steps=50", "num_minibatches=2"]),
    "ppo/minatar_breakout": ("minatar", ["num_steps=50", "num_minibatches=2"]),
    "ppo/repeat_previous": ("popgym", ["num_steps=50", "num_minibatches=2"]),
    "recurrent_ppo/repeat_previous": ("popgym", ["num_steps=50", "num_minibatches=2"]),
    "ppo/lunarlander": ("box2d", ["num_steps=50", "num_minibatches=2"]),
    "sac/dm_cartpole_swingup": ("dm-control", ["learning_starts=300", "batch_size=16"]),
    "dreamer/dm_cartpole_swingup": ("dm-control", TINY),
    "dreamer/dm_walker_walk": ("dm-control", [*TINY, "buffer_size=2000", "train_ratio=1.6"]),
    "dreamer/minatar_breakout": ("minatar", TINY),
    "ppo/simple_spread": ("pettingzoo", ["num_steps=50", "num_minibatches=2"]),
}
# Those that look through a camera, which not every machine has.
PICTURES = ("dreamer/dm_cartpole_swingup_pixels", "dreamer/dm_walker_walk_pixels")


def need(extra):
    missing = missing_packages(extra)
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install -c constraints.txt -e '.[{extra}]'")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_and_is_evaluated(preset, tmp_path):
    extra, changes = PRESETS[preset]
    need(extra)
    result = train(load_config(preset, [*SHORT, *changes]), run_dir=tmp_path / "run", quiet=True)
    assert result.metrics["episodes"] > 0
    # Only PettingZoo's environments are named by a module.
    assert evaluate_checkpoint(result.run_dir, trust=extra == "pettingzoo", episodes=2)["episodes"] == 2


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.startswith("dreamer/")])
def test_a_world_model_that_was_stopped_goes_on_as_if_it_was_not(preset, tmp_path, monkeypatch):
    extra, changes = PRESETS[preset]
    need(extra)
    config = load_config(preset, [*SHORT, *changes, "checkpoint_interval=60", "eval_interval=600"])
    whole = train(config, run_dir=tmp_path / "whole", quiet=True).run_dir
    with stopped_after(75, monkeypatch):  # of a hundred iterations
        train(config, run_dir=tmp_path / "run", quiet=True)
    resume(tmp_path / "run", quiet=True)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_which_extra_it_needs(preset):
    first = (Path(__file__).parents[2] / "configs" / f"{preset}.yaml").read_text("utf-8").splitlines()[0]
    assert f"the extra `{PRESETS[preset][0]}`" in first


@pytest.mark.parametrize("preset", PICTURES)
def test_a_preset_of_pictures_says_what_it_needs(preset):
    comment = (
        (Path(__file__).parents[2] / "configs" / f"{preset}.yaml").read_text("utf-8").partition("algo:")[0]
    )
    assert "the extra `dm-control`" in comment and "MUJOCO_GL=egl" in comment and "(not measured)" in comment


RENDERED = """
import json, sys
import numpy as np, pytest
from pathlib import Path
from runs import TINY_DREAMER, assert_same_run, stopped_after
from rl_training import evaluate_checkpoint, load_config, resume, train
from rl_training.envs.layers import Recipe
from rl_training.envs.making import make_whole

preset, folder = sys.argv[1], Path(sys.argv[2])
short = dict(total_timesteps=60, num_envs=2, time_limit=10, learning_starts=30, train_ratio=3.2, eval_episodes=1)
short |= dict(eval_interval=60, checkpoint_interval=20, buffer_size=200, cnn_depth=2)
config = load_config(preset, [f"{key}={json.dumps(value)}" for key, value in (short | TINY_DREAMER).items()])
env = make_whole(Recipe.of(config))
try:
    first, _ = env.reset(seed=1)
except RuntimeError as error:
    print(error)
    sys.exit(3)
assert first.shape == (64, 64, 3) and first.dtype == np.uint8 and first.std() > 10
for _ in range(5):
    seen, reward, *_ = env.step(np.ones(env.action_space.shape))
assert (seen != first).any()
again, _ = env.reset(seed=1)
assert np.array_equal(again, first)
env.close()
whole = train(config, run_dir=folder / "whole", quiet=True).run_dir
with stopped_after(20, pytest.MonkeyPatch()):
    train(config, run_dir=folder / "run", quiet=True)
resume(folder / "run", quiet=True)
assert_same_run(whole, folder / "run")
assert evaluate_checkpoint(whole, episodes=1)["mean_length"] == 10
"""


@pytest.mark.parametrize("preset", PICTURES)
def test_dm_control_is_learned_from_pixels_and_resumed(preset, tmp_path):
    """In a process of its own: how MuJoCo renders is decided when dm_control is imported."""
    need("dm-control")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    for renderer in ("egl", "osmesa"):
        environment = os.environ | {"MUJOCO_GL": renderer, "PYTHONPATH": paths}
        command = [sys.executable, "-c", RENDERED, preset, str(tmp_path / renderer)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        # Rendering fails, or a library for it does when dm_control is imported.
        assert done.returncode == 3 or f"MUJOCO_GL={renderer}" in done.stderr, done.stderr
    pytest.skip("pixels of dm_control cannot be rendered: install EGL (libegl1) or OSMesa (libosmesa6)")


def test_a_game_of_minatar_follows_from_its_seed_and_actions():
    """The package keeps the last action of a game for the next one, where it may be repeated."""
    need("minatar")
    config = load_config(dict(algo="ppo", env_id="MinAtar/Breakout-v1", vectorization="sync"))
    played, chance = make_environments(config, 4, 1, "train"), np.random.default_rng(1)
    for _ in range(40):
        for _ in range(5):
            played.step(chance.integers(1, 3, 4))
        again = make_environments(config, 4, 1, "train")
        again.load_state_dict(played.state_dict())
        assert (again.obs == played.obs).all()


def test_plain_minigrid_is_refused_with_what_to_write():
    need("minigrid")
    config = load_config(dict(algo="ppo", env_id="MiniGrid-Empty-5x5-v0"))
    with pytest.raises(
        ConfigError, match=r"'mission'\] is text; write `wrappers: \[rl_training.envs.wrappers:DropText"
    ):
        make_environments(config, 1, 1, "train")


def test_a_missing_mujoco_is_told_by_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise gym.error.DependencyNotInstalled(
            'MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`'
        )

    monkeypatch.setattr(making, "_make", fails)
    with pytest.raises(
        ConfigError, match=r"'HalfCheetah-v5' needs `pip install -c constraints.txt -e '.\[mujoco\]'`"
    ):
        making.make_env("HalfCheetah-v5", {}, None)


@pytest.mark.parametrize(
    ("renderer", "error", "package"),
    [
        ("egl", "Cannot initialize a headless EGL display.", "libegl1"),
        ("egl", "'NoneType' object has no attribute 'eglQueryString'", "libegl1"),
        ("osmesa", "cannot load library 'libOSMesa'", "libosmesa6"),
        ("osmesa", "undefined symbol: glGetError", "libosmesa6"),
        ("glfw", "Cannot initialize a headless EGL display.", ""),
        ("egl", "an angle was neglected, a single one", ""),
    ],
)
def test_a_renderer_that_is_not_installed_is_told(
    renderer: str, error: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ImportError(error)

    monkeypatch.setattr(making, "_make", fails)
    monkeypatch.setenv("MUJOCO_GL", renderer)
    with pytest.raises(ConfigError, match=error) as caught:
        making.make_env("HalfCheetah-v5", {}, None)
    said = f"MUJOCO_GL={renderer} renders with the system's {package}"
    assert said in str(caught.value) if package else "MUJOCO_GL" not in str(caught.value)
