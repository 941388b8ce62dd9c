"""The presets of environment packages (MiniGrid, POPGym, Box2D, …): a short run each, where its extra is there."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training import evaluate_checkpoint, load_config, train
from rl_training.envs import making
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError
from rl_training.extras import missing_packages

SHORT = ["total_timesteps=600", "eval_episodes=1", "num_envs=6", "max_episode_steps=40"]
PRESETS = {
    "ppo/minigrid_doorkey": ("minigrid", ["num_steps=50", "num_minibatches=2"]),
    "ppo/minatar_breakout": ("minatar", ["num_steps=50", "num_minibatches=2"]),
    "ppo/repeat_previous": ("popgym", ["num_steps=50", "num_minibatches=2"]),
    "recurrent_ppo/repeat_previous": ("popgym", ["num_steps=50", "num_minibatches=2"]),
    "ppo/lunarlander": ("box2d", ["num_steps=50", "num_minibatches=2"]),
    "sac/dm_cartpole_swingup": ("dm-control", ["learning_starts=300", "batch_size=16"]),
    "ppo/simple_spread": ("pettingzoo", ["num_steps=50", "num_minibatches=2"]),
}


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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_which_extra_it_needs(preset):
    first = (Path(__file__).parents[2] / "configs" / f"{preset}.yaml").read_text("utf-8").splitlines()[0]
    assert f"the extra `{PRESETS[preset][0]}`" in first


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
