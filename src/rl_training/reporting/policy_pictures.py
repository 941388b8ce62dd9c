"""Video of a policy, and predictions of its world model, for the report."""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np

from rl_training.errors import UserError
from rl_training.policies.dreamer import DreamerPolicy
from rl_training.reporting.imagination import Prediction, imagine_open_loop
from rl_training.reporting.page import Chart, Page, Series
from rl_training.runtime.workflows import load_agent
from rl_training.tools.playing import play_run

MOST_FRAMES = 500
MOST_BYTES = 1_000_000  # of a video inside a page
CONTEXT = 5  # steps a world model sees before it goes on alone
AHEAD = 45  # and how far it then goes
MOST_CURVES = 8
STRIP_HEIGHT = 288  # pixels of three rows of pictures; smaller ones are enlarged


def add_policy(page: Page, run: Path, *, must: bool, trust: bool) -> None:
    """The policy at work. What cannot be shown is said on the page, or raised where it must be shown."""
    page.heading("The policy")
    said: set[str] = set()
    for add, what in ((add_video, "video"), (add_predictions, "look into its world model")):
        try:
            add(page, run, trust)
        except UserError as error:
            if must:
                raise
            if str(error) not in said:  # a run without a checkpoint has neither, for the same reason
                page.text(f"No {what}: {error}")
            said.add(str(error))


def add_video(page: Page, run: Path, trust: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, most = Path(folder) / "policy.mp4", MOST_FRAMES
        while True:
            played = play_run(run, video=path, trust=trust, most_frames=most)
            data = path.read_bytes()
            if len(data) <= MOST_BYTES or most < 20:
                break
            path.unlink()  # pictures full of detail: a shorter video of them
            most = min(most, played.frames) // 2
    if played.episodes:
        caption = "One greedy episode of the last checkpoint: return {:.6g}, {} steps.".format(
            *played.episodes[0]
        )
    else:
        caption = f"The first {played.frames} steps of a greedy episode of the last checkpoint."
    page.picture("one episode", "video/mp4", data, caption)


def add_predictions(page: Page, run: Path, trust: bool) -> None:
    """What happens, beside what the policy's world model, if it has one, expects from the actions alone."""
    _, agent, _ = load_agent(run, "last", trust=trust)
    if not isinstance(agent, DreamerPolicy):
        return
    imagined = imagine_open_loop(run, steps=AHEAD, context=CONTEXT, trust=trust)
    page.heading("What the world model expects")
    add_prediction(page, imagined)


def add_prediction(page: Page, imagined: Prediction) -> None:
    page.text(
        f"The model sees the first {imagined.context} observations of an episode, and after that only the actions "
        "taken."
    )
    for name, truth in imagined.truth.items():
        guess = imagined.predicted[name]
        if truth.ndim >= 3:
            caption = "From top to bottom: what happened, what was expected, the difference."
            strip = enlarged(filmstrip(truth, guess), STRIP_HEIGHT)
            page.picture(name, "image/png", png(strip), caption, wide=True)
        else:
            page.add_charts(
                prediction_curves(name, truth.reshape(len(truth), -1), guess.reshape(len(guess), -1))
            )


def prediction_curves(name: str, truth: np.ndarray, guess: np.ndarray) -> list[Chart]:
    steps = np.arange(len(truth), dtype=np.float64)
    return [
        Chart(
            f"{name}[{index}]" if truth.shape[1] > 1 else name,
            "step of the episode",
            [
                Series("what happened", steps, truth[:, index].astype(np.float64)),
                Series("what was expected", steps, guess[:, index].astype(np.float64)),
            ],
        )
        for index in range(min(truth.shape[1], MOST_CURVES))
    ]


def filmstrip(truth: np.ndarray, guess: np.ndarray, pictures: int = 10) -> np.ndarray:
    """Pictures [T, H, W, C], [T, C, H, W] or [T, H, W] side by side, in three rows: one picture of bytes."""
    chosen = np.linspace(0, len(truth) - 1, min(pictures, len(truth))).astype(int)
    columns = [np.concatenate(three_pictures(truth[index], guess[index]), axis=0) for index in chosen]
    return np.concatenate(columns, axis=1)


def enlarged(picture: np.ndarray, height: int) -> np.ndarray:
    """A picture [H, W, 3], each pixel repeated until it is at least that high."""
    times = -(-height // len(picture))
    return picture.repeat(times, 0).repeat(times, 1)


def three_pictures(truth: np.ndarray, guess: np.ndarray) -> list[np.ndarray]:
    """What happened, what was expected and the difference, each [H, W, 3] bytes."""
    one, other = _picture(truth), _picture(guess)
    return [one, other, np.abs(one.astype(np.int16) - other).astype(np.uint8)]


def _picture(frame: np.ndarray) -> np.ndarray:
    """One frame as [H, W, 3] bytes; of stacked frames the newest."""
    if frame.dtype != np.uint8:
        frame = np.clip(np.asarray(frame, np.float64), 0, 255).round().astype(np.uint8)
    if frame.ndim == 3 and frame.shape[-1] not in (1, 3):
        frame = frame.transpose(1, 2, 0) if frame.shape[0] == 3 else frame[-1]
    if frame.ndim == 2:
        frame = frame[..., None]
    return np.repeat(frame, 3, axis=-1) if frame.shape[-1] == 1 else frame


def png(picture: np.ndarray) -> bytes:
    """[H, W, 3] bytes as a PNG file, which is little more than zlib."""
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with a 0: no filter
    lines[:, 1:] = picture.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")
