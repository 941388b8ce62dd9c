"""Plots of the knobs of a config over the run, before training, or of a run as they were.

In the terminal every knob that moves gets a small chart in braille dots (two columns and four rows of dots in
a character), every other one a line. The PNG shows the same and needs matplotlib, the extra `plot`.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_training.errors import UserError, add_extra
from rl_training.runtime.controls import BEGINS, LEARNING, Controls
from rl_training.settings.config import Config
from rl_training.settings.picture_defaults import unwritten
from rl_training.terminal import printable_line

COLUMNS, ROWS = 64, 5
# Bit of each dot of a braille character, by [row from the top][column].
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Curve(NamedTuple):
    """One knob at equally spaced steps from the first to the last of the run; None where it is off."""

    name: str
    steps: list[int]
    values: list[float | None]
    decided_by: str = ""  # the metric, for a knob that is decided in the run

    @property
    def numbers(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def moves(self) -> bool:
        return len(set(self.values)) > 1 and not self.decided_by


def knob_curves(config: Config, points: int = 2 * COLUMNS) -> list[Curve]:
    """Every knob of the config. An update uses the value at the step count after its rollout."""
    controls = Controls.of(config)
    total = config.total_timesteps
    steps = sorted({round(total * index / (points - 1)) for index in range(points)})
    table = [controls.values(step) for step in steps]
    decided = controls.decided
    return [Curve(name, steps, [row[name] for row in table], decided.get(name, "")) for name in table[0]]


def logged_curves(knobs: Collection[str], lines: Iterable[Mapping[str, float]]) -> list[Curve]:
    """The knobs of a run as its log lines have them: what really happened, whoever decided it."""
    logged = [line for line in lines if any(name in line for name in knobs)]
    steps = [int(line["step"]) for line in logged]
    found = [name for name in knobs if any(name in line for line in logged)]
    return [Curve(name, steps, [line.get(name) for line in logged]) for name in found]


def draw_text(config: Config, curves: list[Curve] | None = None) -> str:
    """The whole picture as lines of text: of the config, or of the curves of a run."""
    planned, curves = curves is None, knob_curves(config) if curves is None else thinned(curves)
    steps = config.total_timesteps if planned else max((max(curve.steps) for curve in curves), default=0)
    were = "its knobs over" if planned else "its knobs as they were over"
    lines = [f"{config.algo_name} on {config.env_id}: {were} {steps:,} steps"]
    for curve in curves:
        if curve.moves:
            lines += ["", *_chart(config, curve)]
    still = [curve for curve in curves if not curve.moves]
    for title, found in (
        ("decided in the run", [curve for curve in still if curve.decided_by]),
        ("constant", [curve for curve in still if not curve.decided_by]),
    ):
        width = max((len(curve.name) for curve in found), default=0)
        lines += ["", title] if found else []
        lines += [f"  {curve.name:<{width}}  {_constant(config, curve)}" for curve in found]
    return "\n".join(map(printable_line, lines))


def thinned(curves: list[Curve], points: int = 2 * COLUMNS) -> list[Curve]:
    """Curves with as many points as a chart has columns: at equally spaced steps, the value logged last."""
    shown = []
    for curve in curves:
        first, last = curve.steps[0], curve.steps[-1]
        steps = sorted({first + round((last - first) * index / (points - 1)) for index in range(points)})
        places = [bisect_right(curve.steps, step) - 1 for step in steps]
        shown.append(curve._replace(steps=steps, values=[curve.values[place] for place in places]))
    return shown


def _constant(config: Config, curve: Curve) -> str:
    """The value of a knob that does not move, and its other default where that depends on the observation."""
    value, others = curve.values[0], unwritten(config)
    shown = _shown(value)
    if curve.decided_by:
        return f"{shown} at first, then by {curve.decided_by}"
    return f"{shown}  ({others[curve.name]:.4g} on pictures)" if curve.name in others else shown


def _shown(value: float | None) -> str:
    return "off" if value is None else f"{value:.4g}"


def _title(config: Config, curve: Curve) -> str:
    numbers = curve.numbers
    first, last = curve.values[0], curve.values[-1]
    title = f"{curve.name}  {_shown(first)} → {_shown(last)}"
    low, high = min(numbers), max(numbers)
    if not {low, high} <= {first, last}:
        title += f", between {low:.4g} and {high:.4g}"
    warmup = getattr(config, f"{curve.name}_warmup_steps", None)
    from_learning = " from the first update on" if getattr(config, BEGINS, None) == LEARNING else ""
    return title + (f", warm-up over {warmup:,} steps{from_learning}" if warmup else "")


def _chart(config: Config, curve: Curve) -> list[str]:
    low, high = min(curve.numbers), max(curve.numbers)
    margin = max(len(f"{low:.4g}"), len(f"{high:.4g}"))
    lines = [_title(config, curve)]
    span = (high - low) or 1
    rows = braille([None if value is None else (value - low) / span for value in curve.values])
    for index, row in enumerate(rows):
        label = f"{high:.4g}" if index == 0 else f"{low:.4g}" if index == len(rows) - 1 else ""
        lines.append(f"  {label:>{margin}} {'┤' if label else '│'}{row}")
    first, last = f"{curve.steps[0]:,}", f"{curve.steps[-1]:,}"
    lines.append(f"  {'':>{margin}} └{'─' * len(rows[0])}")
    lines.append(f"  {'':>{margin}}  {first}{last:>{max(len(rows[0]), len(last) + 2) - len(first)}}")
    return lines


def braille(heights: Sequence[float | None], rows: int = ROWS) -> list[str]:
    """A line through heights between 0 and 1, one dot column each, as `rows` rows of braille characters.

    A column stays empty where the height is None.
    """
    dots = 4 * rows - 1
    columns = (len(heights) + 1) // 2
    cells = [[0] * columns for _ in range(rows)]
    previous: int | None = None
    for x, height in enumerate(heights):
        if height is None:
            previous = None
            continue
        y = round((1 - height) * dots)
        # A jump is drawn as a vertical stroke, so that a staircase looks like one.
        before = y if previous is None else previous
        for filled in range(min(y, before), max(y, before) + 1):
            cells[filled // 4][x // 2] |= DOTS[filled % 4][x % 2]
        previous = y
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]


def draw_png(config: Config, path: Path, curves: list[Curve] | None = None) -> None:
    """The same picture as a PNG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"--png needs matplotlib: {add_extra('plot')}") from None

    curves = knob_curves(config, points=1001) if curves is None else thinned(curves, points=1001)
    moving = [curve for curve in curves if curve.moves]
    still = [curve for curve in curves if not curve.moves]
    rows = max(1, len(moving))
    figure = Figure(figsize=(8, 0.9 + 1.7 * rows), layout="constrained")
    figure.suptitle(f"{config.algo_name} on {config.env_id}: knobs over {config.total_timesteps:,} steps")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for axis, curve in zip(axes, moving, strict=False):
        axis.plot(curve.steps, [math.nan if value is None else value for value in curve.values], linewidth=2)
        axis.set_title(_title(config, curve), fontsize=9, loc="left")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    if not moving:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "no knob moves", ha="center", va="center", transform=axes[0].transAxes)
    axes[-1].xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    constants = ",  ".join(f"{curve.name} {_constant(config, curve)}" for curve in still if curve.numbers)
    figure.supxlabel(
        f"environment steps\nconstant: {constants}" if constants else "environment steps",
        fontsize=8,
        wrap=True,
    )
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
