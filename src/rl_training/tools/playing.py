"""Showing a trained policy in a window, in the terminal, or as a video."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.atari import is_atari
from rl_training.envs.lanes import Actions, Lanes, Observation, Replayed, Stepped
from rl_training.envs.layers import Recipe
from rl_training.envs.making import make_whole, maker_of_worlds
from rl_training.errors import UserError, add_extra, one_line
from rl_training.extras import require_extra
from rl_training.runtime.evaluation import play
from rl_training.runtime.workflows import Which, given, load_agent, made_for, of_task
from rl_training.settings.config import Config
from rl_training.state.files import WRITING
from rl_training.state.seeding import fold
from rl_training.terminal import unescaped
from rl_training.trust import refuse_untrusted

# Suffix of a file -> how ffmpeg shall write it.
FORMATS = {
    ".mp4": {"codec": "libx264", "pix_fmt_out": "yuv420p"},
    ".gif": {"codec": "gif", "pix_fmt_out": "rgb8"},
}
ATARI_FRAMES_PER_SECOND = 60  # of the console; a policy sees one in `frame_skip`


class Played(NamedTuple):
    """The episodes as (return, length), and the pictures of the video."""

    episodes: list[tuple[float, int]]
    frames: int
    frames_per_second: int


def play_run(
    path: str | Path,
    *,
    video: str | Path | None = None,
    episodes: int = 1,
    seed: int | None = None,
    sample: bool = False,
    checkpoint: Which = "last",
    trust: bool = False,
    trust_env: bool = False,
    task: str | None = None,
    most_frames: int | None = None,
    env: Any = None,
) -> Played:
    """Play whole episodes one after the other; shown here, or written to the new file `video`.

    One episode is that of `evaluate_checkpoint` with the same seed, and `env` is as there. Greedy unless `sample`. A
    video ends after `most_frames`, if given, and so does the playing; an episode that was cut short is not counted.
    """
    if video is not None:
        refuse_video(Path(video))
        _draw_without_display()
    config, agent, saved = of_task(*load_agent(path, checkpoint, trust=trust or trust_env), task)
    refuse_untrusted(config, trust or trust_env, doing="playing")
    seed = fold(config.seed if seed is None else seed, "evaluate")
    how: dict[str, Any] = {"episodes": episodes, "seed": seed, "sample": sample, "lanes": 1}
    with given(env):
        drawing = _how_to_draw(config, writes=video is not None)
        config = config.model_copy(
            update={"env_kwargs": config.env_kwargs | drawing.arguments, "vectorization": "sync"}
        )
        played: list[tuple[float, int]] = []
        with (
            filming(video, drawing.rate, most_frames) as film,
            _one_line_if_it_cannot_be_drawn(config.env_id),
            suppress(Enough),
        ):
            show = film.add if video is not None else _print_picture if drawing.mode == "ansi" else None
            camera = None if show is None else lambda lanes: Filmed(lanes, config, show)
            played = play(agent, config, **how, through=camera, made_for=made_for(saved))
    return Played(played, film.count, drawing.rate)


def _draw_without_display() -> None:
    """Let MuJoCo draw by EGL where there is no display: left alone it tries a window, and fails."""
    if sys.platform == "linux" and not _has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")


def _print_picture(picture: object) -> None:
    """What an environment draws as text may have colours of its own."""
    print(picture, file=unescaped(sys.stdout))


def refuse_video(path: Path) -> None:
    """Refuse, in one line and before anything is played, a video that cannot be written."""
    if path.suffix not in FORMATS:
        raise UserError(f"--video {path}: a video is a file ending in {' or '.join(FORMATS)}")
    if path.exists():
        raise UserError(f"--video {path}: is there already")
    if not path.parent.is_dir():
        raise UserError(f"--video {path}: no such directory: {path.parent}")
    require_extra("video", "--video")


class Drawing(NamedTuple):
    """An environment's render mode (None for Atari, whose observations are pictures), and its pictures a second."""

    mode: str | None
    rate: int
    made_so: bool = True  # without being asked to, as an instance or a function of the user's own may be

    @property
    def arguments(self) -> dict[str, Any]:
        return {} if self.made_so else {"render_mode": self.mode}


def _how_to_draw(config: Config, writes: bool) -> Drawing:
    if is_atari(config.env_id):
        if not writes:
            raise UserError(f"{config.env_id} has no window of its own here; write a video with --video FILE")
        return Drawing(None, ATARI_FRAMES_PER_SECOND // int(config.env_kwargs.get("frame_skip", 4)))
    recipe = Recipe.of(config)
    if maker_of_worlds(recipe) is not None:
        raise UserError(
            f"{config.env_id} cannot be shown: it has several agents, and play draws environments of one"
        )
    env = make_whole(recipe)
    modes, rate = env.metadata.get("render_modes", []), round(env.metadata.get("render_fps") or 30)
    made_in = env.render_mode
    env.close()
    wanted = ["rgb_array"] if writes else [*(["human"] if _has_display() else []), "ansi"]
    mode = next((mode for mode in wanted if mode in modes), None)
    if mode is not None:
        return Drawing(mode, rate, made_so=mode == made_in)
    if not writes and "human" in modes:
        raise UserError("there is no display to open a window on; write a video with --video FILE")
    draws, needed = ", ".join(modes) or "nothing", " or ".join(wanted)
    if getattr(config, "two_players", False):
        needed += "; to play against it, use rl-training evaluate --against me"
    raise UserError(f"{config.env_id} cannot be shown: it draws {draws}, and this needs {needed}")


def _has_display() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


class Filmed:
    """A lane whose every picture is shown, those of the last step of an episode too.

    The first picture of an episode is held back until its first action: after the last one nothing follows.
    """

    def __init__(self, lanes: Lanes, config: Config, show: Callable[[Any], None]) -> None:
        self.lanes, self.show = lanes, show
        self.atari = is_atari(config.env_id)
        self.coloured = not config.env_kwargs.get("grayscale", True)
        self.count, self.has_time_limit = lanes.count, lanes.has_time_limit
        self.observation_space, self.action_space = lanes.observation_space, lanes.action_space
        self.steps_per_seed = lanes.steps_per_seed
        self.first: Any = None

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        obs = self.lanes.reset(lanes, seeds)
        self.first = self._picture(obs)
        return obs

    def step(self, actions: Actions) -> Stepped:
        if self.first is not None:
            self.show(self.first)
            self.first = None
        stepped = self.lanes.step(actions)
        self.show(self._picture(stepped.obs))
        return stepped

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        return self.lanes.replay(seeds, actions)

    def close(self) -> None:
        self.lanes.close()

    def _picture(self, obs: Observation) -> Any:
        if not self.atari:
            return self.lanes.envs[0].render()  # type: ignore[attr-defined]  # lanes of one process have them
        # What the policy sees last, four times as wide: grey frames go first, coloured ones have their colours last.
        last = obs[0][..., -3:] if self.coloured else np.repeat(obs[0, -1][..., None], 3, -1)
        return last.repeat(4, 0).repeat(4, 1)


class Enough(Exception):
    """A video has all the pictures it may have."""


class Film:
    """Pictures on their way into a file, which bears another name until it is complete."""

    def __init__(self, path: Path | None, rate: int, most: int | None) -> None:
        self.path, self.rate, self.most, self.count = path, rate, most, 0
        self.writer: Any = None

    @property
    def aside(self) -> Path:
        assert self.path is not None
        return self.path.with_name(WRITING + self.path.name)

    def add(self, picture: np.ndarray) -> None:
        import imageio_ffmpeg

        # Videos have even sides.
        sides = [(0, side % 2) for side in picture.shape[:2]]
        picture = np.ascontiguousarray(np.pad(picture, [*sides, (0, 0)], mode="edge"), np.uint8)
        if self.writer is None:
            assert self.path is not None
            self.writer = imageio_ffmpeg.write_frames(
                str(self.aside),
                (picture.shape[1], picture.shape[0]),
                fps=self.rate,
                macro_block_size=1,
                ffmpeg_log_level="error",
                **FORMATS[self.path.suffix],
            )
            self.writer.send(None)
        self.writer.send(picture)
        self.count += 1
        if self.count == self.most:
            raise Enough


@contextmanager
def filming(video: str | Path | None, rate: int, most: int | None = None) -> Iterator[Film]:
    """A film that becomes the file `video` when all has gone well."""
    film = Film(None if video is None else Path(video), rate, most)
    driver = os.environ.get("SDL_VIDEODRIVER")
    try:
        if film.path is not None:
            os.environ["SDL_VIDEODRIVER"] = "dummy"  # pygame shall look for no display
        yield film
        if film.writer is not None:
            film.writer.close()
            os.replace(film.aside, film.path)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"--video {video}: cannot be written: {one_line(error)}") from error
    finally:
        if film.path is not None:
            film.aside.unlink(missing_ok=True)
            os.environ.pop("SDL_VIDEODRIVER")
            os.environ.update({} if driver is None else {"SDL_VIDEODRIVER": driver})


@contextmanager
def _one_line_if_it_cannot_be_drawn(env_id: str) -> Iterator[None]:
    try:
        yield
    except (UserError, OSError):
        raise
    except gym.error.DependencyNotInstalled as error:
        raise UserError(
            f"{env_id} cannot be drawn: {one_line(error)}; for Gymnasium's own environments: {add_extra('video')}"
        ) from error
    except Exception as error:  # whatever the environment's own drawing raises
        raise UserError(f"{env_id} cannot be played or drawn here: {one_line(error)}") from error
