"""A page and a video of open-loop predictions of a world model against what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import UserError
from rl_training.extras import require_extra
from rl_training.reporting.imagination import Errors, Prediction, horizon_errors, imagine_episodes
from rl_training.reporting.page import Chart, Page, Series, write_page
from rl_training.reporting.policy_pictures import add_prediction, enlarged, three_pictures
from rl_training.runtime.workflows import Which, load_agent, made_for
from rl_training.tools.playing import filming, refuse_video
from rl_training.trees import space_leaves

RATE = 10  # pictures a second
LEAST_SIDE = 192  # pixels of a picture in the video


class Imagined(NamedTuple):
    """What was written, and the errors over the horizon by the part of the observation."""

    page: Path
    video: Path | None
    errors: dict[str, Errors]


def write_imagination(
    path: str | Path,
    out: Path | None = None,
    *,
    video: Path | None = None,
    episodes: int = 5,
    steps: int = 45,
    context: int = 5,
    seed: int | None = None,
    checkpoint: Which = "last",
    trust: bool = False,
) -> Imagined:
    """Write a page, by default RUN/imagination.html, and a video if one is named, of what a world model imagines.

    Errors are those of all episodes; the first that lasts longer than `context` is shown.
    """
    run = Path(path)
    target = out or (run if (run / "config.yaml").is_file() else Path()) / "imagination.html"
    if target.is_dir() or not target.parent.is_dir():
        raise UserError(f"--out {target}: " + ("is a directory" if target.is_dir() else "no such directory"))
    if video is not None:
        refuse_video(video)
        seen, _ = made_for(load_agent(path, checkpoint, trust=trust)[2])
        if not any(len(leaf.shape or ()) >= 2 for leaf in space_leaves(seen)):
            require_extra("plot", "--video")  # for curves
    options: dict[str, Any] = dict(steps=steps, context=context, seed=seed, checkpoint=checkpoint)
    predictions = imagine_episodes(path, episodes=episodes, trust=trust, **options)
    errors = horizon_errors(predictions)
    shown = next(each for each in predictions if any(len(part) > context for part in each.truth.values()))
    page = Page(f"What the world model of {run.name} imagines")
    add_errors(page, errors, episodes)
    page.heading("One episode")
    add_prediction(page, shown)
    if video is not None:
        with filming(video, RATE) as film:
            for frame in frames(shown):
                film.add(frame)
    write_page(page, target)
    return Imagined(target, video, errors)


def add_errors(page: Page, errors: dict[str, Errors], episodes: int) -> None:
    page.heading("Errors over the horizon")
    page.text(
        f"Root mean square error over {episodes} episodes, by steps after the last observation that the model was "
        "shown; beside it the error of expecting that observation to stay."
    )
    page.add_charts(
        [
            Chart(
                name,
                "steps ahead",
                [
                    Series(label, np.arange(1.0, len(values) + 1), values)
                    for label, values in (("model", each.model), ("unchanged", each.unchanged))
                ],
            )
            for name, each in errors.items()
        ]
    )


def frames(prediction: Prediction) -> Iterator[np.ndarray]:
    """Pictures [H, W, 3] of a video: the observation's own, in threes, or else curves that grow."""
    pictures = [name for name, part in prediction.truth.items() if part.ndim >= 3]
    return picture_frames(prediction, pictures) if pictures else curve_frames(prediction)


def picture_frames(prediction: Prediction, names: list[str]) -> Iterator[np.ndarray]:
    """What happened, what was expected and the difference side by side, one part below the other."""
    for t in range(len(prediction.truth[names[0]])):
        rows = []
        for name in names:
            row = np.concatenate(
                three_pictures(prediction.truth[name][t], prediction.predicted[name][t]), axis=1
            )
            rows.append(enlarged(row, LEAST_SIDE))
        width = max(row.shape[1] for row in rows)
        yield np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows])


def curve_frames(prediction: Prediction) -> Iterator[np.ndarray]:
    """Truth, and the prediction up to each step, entry by entry in one panel for each part."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 2.5 * len(prediction.truth)), dpi=80, layout="constrained")
    canvas, lines = FigureCanvasAgg(figure), []
    panels = np.atleast_1d(figure.subplots(len(prediction.truth), 1))
    for axes, (name, truth) in zip(panels, prediction.truth.items(), strict=True):
        columns = truth.reshape(len(truth), -1).T, prediction.predicted[name].reshape(len(truth), -1).T
        axes.set_title(f"{name}; solid: truth, dashed: model, grey: what it was shown", fontsize=9)
        axes.axvspan(0, prediction.context - 1, color="0.9")
        for i, (true, guess) in enumerate(zip(*columns, strict=True)):
            axes.plot(true, f"C{i % 10}-", linewidth=1)
            lines.append((axes.plot(guess, f"C{i % 10}--", linewidth=1)[0], guess))
    for t in range(len(truth)):
        for line, guess in lines:
            line.set_data(np.arange(t + 1), guess[: t + 1])
        canvas.draw()
        yield np.asarray(canvas.buffer_rgba())[..., :3]
