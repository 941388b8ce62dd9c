"""Playing before somebody's eyes: videos with every picture, windows, and what cannot be shown."""

import itertools
import json
import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from runs import KINDS
from test_cli import cli, refused

from rl_training import evaluate_checkpoint, load_config, train
from rl_training.tools import playing
from rl_training.tools.playing import play_run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def pictures(path: Path) -> list[np.ndarray]:
    """Every picture of a video file, read back by ffmpeg."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]


@pytest.mark.parametrize("name", KINDS)
def test_a_video_holds_every_picture_of_the_episode_that_evaluate_plays(name, trained_run):
    run = trained_run(name)
    done = cli("play", run, "--video", "film.mp4", "--seed", 5)
    assert done.exit_code == 0, done.output
    scores = evaluate_checkpoint(run, episodes=1, seed=5)
    length = int(scores["mean_length"])
    assert f"episode 1  return {scores['mean_return']:.2f}  length {length}" in done.stdout
    shown = pictures(Path("film.mp4"))
    assert len(shown) == length + 1
    config = load_config(run / "config.yaml")
    env = gym.make(config.env_id, render_mode="rgb_array")
    env.reset()
    assert shown[0].shape == env.render().shape
    assert any((a != b).any() for a, b in itertools.pairwise(shown))


@pytest.mark.parametrize("name", ["dqn/acrobot", "sac/pendulum", "recurrent_ppo/pendulum_no_velocity"])
def test_a_policy_of_the_zoo_is_played_by_its_name(name):
    done = cli("play", f"zoo:{name}", "--video", "film.mp4", "--seed", 5)
    assert done.exit_code == 0, done.output
    scores = evaluate_checkpoint(f"zoo:{name}", episodes=1, seed=5)
    length = int(scores["mean_length"])
    assert f"episode 1  return {scores['mean_return']:.2f}  length {length}" in done.stdout
    assert len(pictures(Path("film.mp4"))) == length + 1
    assert {path.name for path in Path().iterdir()} == {"film.mp4"}, "nothing else is written"


def test_several_episodes_as_a_gif_and_as_json(trained_run):
    done = cli("play", trained_run("ppo-cartpole"), "--video", "film.gif", "--episodes", 2, "--json")
    played = json.loads(done.stdout)
    lengths = [length for _, length in played["episodes"]]
    assert len(lengths) == 2 and played["frames"] == sum(lengths) + 2
    assert Path("film.gif").read_bytes().startswith(b"GIF89a")
    assert {path.name for path in Path().iterdir()} == {"film.gif"}


def test_a_window_is_opened_where_there_is_a_display(trained_run, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(CartPoleEnv.metadata, "render_fps", 10_000)  # no need to wait for anybody's eyes
    done = cli("play", trained_run("ppo-cartpole"), "--seed", 5)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("episode 1  return ")


def test_a_text_environment_is_printed(tmp_path, capsys):
    config = dict(
        algo="ppo", env_id="FrozenLake-v1", total_timesteps=64, num_envs=2, num_steps=32, eval_episodes=1
    )
    train(config | {"num_minibatches": 2, "hidden_sizes": [4]}, run_dir=tmp_path / "run")
    capsys.readouterr()
    played = play_run(tmp_path / "run")
    assert capsys.readouterr().out.count("FFF") >= played.episodes[0][1]


def test_what_cannot_be_shown_is_one_line(trained_run, tmp_path):
    run = trained_run("ppo-cartpole")
    refused(cli("play", run), "no display", "--video FILE")
    refused(cli("play", run, "--video", "film.avi"), "film.avi", ".mp4 or .gif")
    refused(cli("play", run, "--video", "absent/film.mp4"), "no such directory: absent")
    refused(cli("play", "nowhere"), "nowhere")
    refused(cli("play", run, "--episodes", 0), "--episodes")
    Path("mine.mp4").write_text("mine")
    refused(cli("play", run, "--video", "mine.mp4"), "is there already")
    assert Path("mine.mp4").read_text() == "mine"
    config = dict(algo="ppo", env_id="probe/RewardByAction-v0", total_timesteps=64, num_envs=2, num_steps=32)
    train(config | {"num_minibatches": 2, "eval_episodes": 1, "hidden_sizes": [4]}, run_dir=tmp_path / "run")
    refused(cli("play", "run", "--video", "film.mp4"), "cannot be shown", "draws nothing")
    assert not Path("film.mp4").exists()
    refused(cli("play", "zoo:gumbel_muzero/connect_four"), "cannot be shown", "evaluate --against me")
    refused(cli("evaluate", run, "--games", 3), "No such option: --games; did you mean --episodes?")
    refused(cli("list", "--games", 3), "No such option: --games (see")
    refused(cli("train", "ppo/cartpole", "--set", "seed=1"), "--set; did you mean KEY=VALUE alone?")


@pytest.mark.parametrize("module", ["imageio_ffmpeg", "pygame"])
def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(module, trained_run, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    refused(cli("play", trained_run("ppo-cartpole"), "--video", "film.mp4"), "--video needs", "'.[video]'")


def test_pygame_missing_behind_a_window_is_one_line(trained_run, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(sys.modules, "pygame", None)
    refused(cli("play", trained_run("ppo-cartpole")), "pygame", "'.[video]'")


def test_a_failing_write_leaves_nothing(trained_run, monkeypatch):
    import imageio_ffmpeg

    def full(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(imageio_ffmpeg, "write_frames", full)
    refused(cli("play", trained_run("ppo-cartpole"), "--video", "film.mp4"), "No space left on device")
    assert list(Path().iterdir()) == []


def test_atari_shows_what_the_policy_sees(tmp_path):
    config = dict(
        algo="ppo", env_id="ALE/Pong-v5", total_timesteps=32, num_envs=2, num_steps=16, eval_episodes=1
    )
    train(
        config | {"num_minibatches": 2, "update_epochs": 1, "max_episode_steps": 20}, run_dir=tmp_path / "run"
    )
    played = play_run("run", video="film.mp4")
    shown = pictures(Path("film.mp4"))
    assert len(shown) == played.frames == 21 and shown[0].shape == (336, 336, 3)
    refused(cli("play", "run"), "--video FILE")


def test_drawing_prints_nothing(trained_run, capfd):
    """SDL complains on its own, below Python, where it finds no display."""
    play_run(trained_run("ppo-cartpole"), video="film.mp4")
    assert capfd.readouterr() == ("", "")


def test_mujoco_draws_without_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    for asked, used in (("", "egl"), ("osmesa", "osmesa")):
        monkeypatch.setenv("MUJOCO_GL", asked)
        if not asked:
            monkeypatch.delenv("MUJOCO_GL")
        playing._draw_without_display()
        assert os.environ["MUJOCO_GL"] == used
