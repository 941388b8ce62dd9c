"""Looking at what a world model imagines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from runs import TINY, TINY_DREAMER
from test_cli import cli, refused

from rl_training import extras, train
from rl_training.errors import ConfigError
from rl_training.reporting import imagination_page
from rl_training.reporting.imagination import (
    Prediction,
    horizon_errors,
    imagine_episodes,
    imagine_open_loop,
    save_picture,
)
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


def test_errors_over_the_horizon_by_hand() -> None:
    """Two episodes, of which one ends early; two observations are shown."""
    long = Prediction(
        {"obs": np.array([[0.0, 0], [1, 1], [2, 2], [4, 0]])},
        {"obs": np.array([[9.0, 9], [9, 9], [2, 5], [0, 0]])},
        2,
    )
    short = Prediction(
        {"obs": np.array([[0.0, 0], [0, 0], [1, 1]])}, {"obs": np.array([[0.0, 0], [0, 0], [1, 2]])}, 2
    )
    found = horizon_errors([long, short])["obs"]
    # One step ahead (0² + 3²) / 2 = 4.5 and (0² + 1²) / 2 = 0.5; two steps ahead (4² + 0²) / 2 in one episode.
    assert found.model == pytest.approx([2.5**0.5, 8**0.5])
    assert found.unchanged == pytest.approx([1.0, 5**0.5])
    pixels = np.zeros((2, 1, 1, 3), np.uint8)
    picture = Prediction({"obs": pixels}, {"obs": pixels + 51}, 1)
    assert horizon_errors([picture])["obs"].model == pytest.approx([0.2])
    choice = Prediction({"obs": np.array([[3], [7]])}, {"obs": np.array([[3], [1]])}, 1)
    assert horizon_errors([choice])["obs"].model == pytest.approx([1.0])


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "rl_training/CartPolePixels-v1"])
def test_the_command_writes_a_page_and_a_video_and_prints_the_errors(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(DreamerConfig(env_id=env_id, **SHORT), run_dir="run")
    options = ("--steps", 6, "--context", 2, "--episodes", 2)
    done = cli("imagine", "run", "--video", "film.mp4", *options)
    assert done.exit_code == 0 and done.stderr == "", done.output
    assert "steps ahead" in done.stdout and "unchanged" in done.stdout
    page = Path("run/imagination.html").read_text("utf-8")
    assert "Errors over the horizon" in page and ("data:image/png" in page) == ("Pixels" in env_id)
    assert len(list(imageio_ffmpeg.read_frames("film.mp4"))) - 1 == 8  # the first is about the file
    told = json.loads(cli("imagine", "run", "--json", "--out", "other.html", *options).stdout)
    predictions = imagine_episodes("run", episodes=2, steps=6, context=2)
    expected = horizon_errors(predictions)["obs"]
    assert (
        told["errors"]["obs"]["model"] == pytest.approx(expected.model.tolist()) and len(expected.model) == 6
    )
    assert Path(told["page"]) == Path("other.html") and told["video"] is None
    assert not np.array_equal(predictions[0].truth["obs"], predictions[1].truth["obs"]), (
        "episodes of their own"
    )
    refused(cli("imagine", "run", "--video", "film.mp4"), "is there already")


def test_an_episode_that_ends_while_the_model_is_shown_it_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = np.arange(6.0).reshape(3, 2)
    long = Prediction({"obs": truth}, {"obs": truth + 1}, 2)
    short = Prediction({"obs": truth[:1]}, {"obs": truth[:1]}, 2)
    assert horizon_errors([short, long])["obs"].model == pytest.approx([1.0])
    monkeypatch.chdir(tmp_path)
    train(DreamerConfig(env_id="Pendulum-v1", **SHORT), run_dir="run")
    refused(cli("imagine", "run", "--context", 12), "every episode ends within the 12 observations")


def test_what_cannot_be_written_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(DreamerConfig(env_id="Pendulum-v1", **SHORT), run_dir="run")
    monkeypatch.setattr(imagination_page, "imagine_episodes", None)
    refused(cli("imagine", "run", "--out", "nowhere/page.html"), "--out nowhere/page.html: no such directory")
    refused(cli("imagine", "run", "--out", "run"), "--out run: is a directory")
    missing = {"plot": ["matplotlib"]}
    monkeypatch.setattr(extras, "missing_packages", lambda extra: missing.get(extra, []))
    refused(cli("imagine", "run", "--video", "film.mp4"), "--video needs matplotlib")


def test_other_algorithms_have_nothing_to_look_into(tmp_path: Path) -> None:
    train(PPOConfig(**TINY | dict(total_timesteps=128)), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="ppo has no world model"):
        imagine_open_loop(tmp_path / "run")
