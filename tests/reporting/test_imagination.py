"""Looking at what a world model imagines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import TINY, TINY_DREAMER

from rl_training import train
from rl_training.errors import ConfigError
from rl_training.reporting.imagination import imagine_open_loop, save_picture
from rl_training.runtime.dreamer_trainer import DreamerConfig
from rl_training.runtime.ppo_trainer import PPOConfig

SHORT: dict[str, Any] = TINY_DREAMER | dict(
    total_timesteps=8, num_envs=2, eval_episodes=1, buffer_size=200, cnn_depth=2, max_episode_steps=12
)


@pytest.mark.parametrize(
    ("env_id", "shape"), [("Pendulum-v1", (3,)), ("rl_training/CartPolePixels-v1", (64, 64, 3))]
)
def test_truth_and_prediction_side_by_side(env_id: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    run = train(DreamerConfig(env_id=env_id, **SHORT), run_dir=tmp_path / "run").run_dir
    found = imagine_open_loop(run, steps=5, context=3)
    again = imagine_open_loop(run, steps=5, context=3)
    assert found.truth["obs"].shape == found.predicted["obs"].shape == (8, *shape)
    assert np.array_equal(found.predicted["obs"], again.predicted["obs"])
    assert not np.array_equal(found.truth["obs"], found.predicted["obs"])
    save_picture(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert len(imagine_open_loop(run, steps=50).truth["obs"]) <= 12, "the episode ended"


def test_what_was_shown_changes_the_prediction_and_what_was_not_does_not(tmp_path: Path) -> None:
    run = train(DreamerConfig(env_id="Pendulum-v1", **SHORT), run_dir=tmp_path / "run").run_dir
    little, much = (imagine_open_loop(run, steps=9 - n, context=n).predicted["obs"] for n in (2, 6))
    assert np.array_equal(little[:2], much[:2]) and not np.array_equal(little[2:], much[2:])


def test_other_algorithms_have_nothing_to_look_into(tmp_path: Path) -> None:
    train(PPOConfig(**TINY | dict(total_timesteps=128)), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="ppo has no world model"):
        imagine_open_loop(tmp_path / "run")
