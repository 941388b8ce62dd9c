"""Progress display of a run: a live panel, plain lines, or nothing.

The engine talks to a `Display` and never to the terminal. Progress goes to stdout, warnings to stderr.
Nothing here is read back by the run: a display may be slow, wrong or absent, and the metrics stay the same.
"""

import importlib.util
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from rl_training.settings.config import Config
from rl_training.terminal import Escaped, printable_line, unescaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SPARKS = "▁▂▃▄▅▆▇█"


class Display(Protocol):
    """What the engine calls. `steps` and `total` count environment steps.

    `timing` is a line of timing.jsonl and, once it is known, the `pace` of the run in steps per second. `finish` comes
    however the run ends.
    """

    def start(self, config: Config, run_dir: Path, steps: int, total: int) -> None: ...

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None: ...

    def message(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...

    def finish(self, metrics: Mapping[str, float]) -> None: ...


def make_display(quiet: bool) -> Display:
    """Live when stdout is a terminal, plain lines otherwise; `quiet` shows warnings only."""
    if quiet:
        return QuietDisplay()
    wide_enough = shutil.get_terminal_size().columns >= 40
    return LiveDisplay() if sys.stdout.isatty() and wide_enough else PlainDisplay()


def script_display(quiet: bool) -> Display:
    """For calls from Python: lines in a script, the panel in a notebook, where it is drawn in place."""
    if quiet:
        return QuietDisplay()
    # Without ipywidgets rich draws nothing at all in a notebook.
    in_place = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    return LiveDisplay() if in_place else PlainDisplay()


class QuietDisplay:
    """Shows warnings, nothing else."""

    def start(self, config: Config, run_dir: Path, steps: int, total: int) -> None:
        pass

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def warning(self, text: str) -> None:
        print(f"warning: {printable_line(text)}", file=sys.stderr, flush=True)

    def finish(self, metrics: Mapping[str, float]) -> None:
        pass


class SilentDisplay(QuietDisplay):
    """Shows nothing: what a run would warn of is said elsewhere."""

    def warning(self, text: str) -> None:
        pass


class PlainDisplay(QuietDisplay):
    """One line per update, at most `lines` of them a run, for log files and pipes."""

    def __init__(self, out: IO[str] | None = None, lines: int = 20) -> None:
        self.out = out
        self.lines = lines
        self.total = 0
        self.next_line_at = 0.0
        self.gathered: dict[str, tuple[int, float]] = {}  # metric -> (step, value)

    def start(self, config: Config, run_dir: Path, steps: int, total: int) -> None:
        self.total = total
        self.next_line_at = steps + (total - steps) / self.lines
        self._print(headline(config))
        self._print(f"run directory: {run_dir}")
        if steps >= total:
            self._print(finished(steps))

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        # What comes between two lines is kept for the next: evaluations are rare, and none is lost.
        for name in PLAIN_METRICS:
            if name in metrics:
                self.gathered[name] = (steps, metrics[name])
        if steps < min(self.next_line_at, self.total):
            return
        self.next_line_at += self.total / self.lines
        share = min(100, 100 * steps / max(self.total, 1))  # the last iteration may go past the end
        columns = [f"step {steps:>{len(f'{self.total:,}')},} ({share:3.0f} %)"]
        for name, words in PLAIN_METRICS.items():
            if name in self.gathered:
                step, value = self.gathered[name]
                columns.append(f"{words} {number(value)}" + ("" if step == steps else f" at {step:,}"))
        if "pace" in timing:
            columns.append(f"{timing['pace']:,.0f} steps/s")
            columns.append(f"{duration(time_left(steps, self.total, timing['pace']))} left")
        self._print("  ".join(columns))
        self.gathered.clear()

    def message(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        try:
            print(printable_line(text), file=self.out or sys.stdout, flush=True)
        except BrokenPipeError:
            # Whoever was reading has gone (`| head`): the run goes on, and what it says goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What a plain line shows, in this order, and under which words.
PLAIN_METRICS = {"episode_return": "return", "episode_length": "length", "eval/mean_return": "evaluation"}


class LiveDisplay(QuietDisplay):
    """A panel that stays in place: progress, time left, speed, returns with a sparkline, knobs that move.

    The recent returns and the first values of the knobs are kept here only to be drawn.
    """

    # Losses and their relatives, shown in one line when they are there.
    LEARNING = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance")

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = console or Console(file=unescaped(sys.stdout))
        # On a terminal a warning is printed above the panel; a redirected stderr gets it as it is.
        self.live = Live(console=self.console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())
        self.headline = ""
        self.run_dir = Path()
        self.steps = 0
        self.total = 1
        self.knob_names: tuple[str, ...] = ()
        self.first_knobs: dict[str, float] = {}
        self.moving: list[str] = []
        self.metrics: dict[str, float] = {}
        self.timing: dict[str, float] = {}
        self.returns: list[float] = []
        self.evaluations: list[tuple[int, float]] = []
        self.drawn_at = 0.0

    def start(self, config: Config, run_dir: Path, steps: int, total: int) -> None:
        self.headline = printable_line(headline(config))
        self.run_dir, self.steps, self.total = run_dir, steps, max(total, 1)
        self.knob_names = knob_names(config)
        if steps >= total:
            self.message(finished(steps))
        self.live.start()
        self._escape_what_others_print()
        self._draw()

    def _escape_what_others_print(self) -> None:
        """On a terminal it goes through the panel, which puts the streams back when it is taken down."""
        from rich.file_proxy import FileProxy

        for name in ("stdout", "stderr"):
            if isinstance(getattr(sys, name), FileProxy):
                setattr(sys, name, Escaped(getattr(sys, name)))

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        self.steps = steps
        self.metrics |= metrics
        self.timing |= timing
        if "episode_return" in metrics:
            self.returns.append(metrics["episode_return"])
        if "eval/mean_return" in metrics:
            self.evaluations.append((steps, metrics["eval/mean_return"]))
        for name in self.knob_names:
            if name in metrics and metrics[name] != self.first_knobs.setdefault(name, metrics[name]):
                # Once it has moved it stays in view, also when it comes back to where it began.
                self.moving = [known for known in self.knob_names if known in self.moving or known == name]
        # Drawing costs milliseconds, and a fast run logs many times a second.
        if time.monotonic() - self.drawn_at > 0.1 or steps >= self.total:
            self._draw()

    def message(self, text: str) -> None:
        self.console.print(printable_line(text), markup=False, highlight=False)

    def finish(self, metrics: Mapping[str, float]) -> None:
        if self.live.is_started:
            self.metrics |= metrics
            self._draw()
            self.live.stop()

    def _draw(self) -> None:
        self.drawn_at = time.monotonic()
        self.live.update(self.render(), refresh=True)

    def render(self) -> "RenderableType":
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        top = Table.grid(padding=(0, 1))
        top.add_row(
            ProgressBar(total=self.total, completed=min(self.steps, self.total), width=30),
            Text(f"{100 * min(1.0, self.steps / self.total):3.0f} %", style="bold"),
            Text(f"{self.steps:,} of {self.total:,} steps"),
        )
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim", no_wrap=True)
        body.add_column(overflow="fold")
        body.add_row("progress", top)
        if "wall_seconds" in self.timing:
            spent = f"{duration(self.timing['wall_seconds'])} elapsed"
            if "pace" in self.timing:
                left = duration(time_left(self.steps, self.total, self.timing["pace"]))
                spent += f", {left} left, {self.timing['pace']:,.0f} steps/s"
            body.add_row("time", spent)
        if self.returns:
            line = Text(number(self.returns[-1]), style="bold")
            line.append(f"  {sparkline(self.returns)}", style="green")
            if "episode_length" in self.metrics:
                line.append(f"  length {number(self.metrics['episode_length'])}", style="dim")
            body.add_row("return", line)
        if self.evaluations:
            step, value = self.evaluations[-1]
            line = Text(number(value), style="bold")
            line.append(f"  {sparkline([value for _, value in self.evaluations])}", style="cyan")
            line.append(f"  at step {step:,}", style="dim")
            body.add_row("evaluation", line)
        learning = [name for name in self.LEARNING if name in self.metrics]
        if learning:
            body.add_row(
                "learning", "  ".join(f"{name}\u00a0{number(self.metrics[name])}" for name in learning)
            )
        if self.moving:
            knobs = "  ".join(f"{name}\u00a0{number(self.metrics[name])}" for name in self.moving)
            body.add_row("knobs", Text(knobs, style="yellow"))
        body.add_row("run", Text(printable_line(self.run_dir)))
        # A fixed width: a panel that fits its content would breathe with every number.
        width = min(self.console.width, 100)
        return Panel(body, title=Text(self.headline), title_align="left", border_style="blue", width=width)


def headline(config: Config) -> str:
    """`ppo on CartPole-v1, seed 1`."""
    algo = getattr(config, "algo_name", config.algo)
    return f"{algo} on {getattr(config, 'env_name', config.env_id)}, seed {config.seed}"


def finished(steps: int) -> str:
    """What a run that is resumed after its end says."""
    return f"this run is finished: all {steps:,} steps are done"


def knob_names(config: Config) -> tuple[str, ...]:
    """The fields that have a schedule beside them: the knobs, under the config's own spelling."""
    fields = type(config).model_fields if hasattr(type(config), "model_fields") else vars(config)
    return tuple(name for name in fields if f"{name}_schedule" in fields)


class Pace:
    """Steps per second over the last fifth of a run, without the first iteration: there functions are compiled."""

    def __init__(self, total: int) -> None:
        self.span = total / 5
        # (steps, seconds) after iterations, some fifty at most.
        self.marks: deque[tuple[int, float]] = deque()

    def mark(self, steps: int, seconds: float) -> None:
        """Note the end of an iteration."""
        self.now = (steps, seconds)
        if not self.marks or steps - self.marks[-1][0] >= self.span / 50:
            self.marks.append(self.now)
        while len(self.marks) > 1 and steps - self.marks[1][0] >= self.span:
            self.marks.popleft()

    def timing(self) -> dict[str, float]:
        """`pace`, once it is known: it takes two iterations."""
        if not self.marks:  # an evaluation that was asked for, before the first
            return {}
        steps, seconds = (now - before for now, before in zip(self.now, self.marks[0], strict=True))
        return {"pace": steps / seconds} if seconds > 0 else {}


def time_left(steps: int, total: int, pace: float) -> float:
    """Seconds to the end of the run at this speed."""
    return max(0, total - steps) / max(pace, 1e-9)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def number(value: float) -> str:
    """Four significant digits, whole numbers without a point: `475`, `0.01234`, `2.5e-05`."""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    if 100 <= abs(value) < 1e6:
        return f"{value:.1f}"
    return f"{value:.4g}"


def sparkline(values: list[float], width: int = 24) -> str:
    """One character per value, lowest to highest; longer series are averaged in groups of equal size."""
    finite = [value for value in values if abs(value) != float("inf") and value == value]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * index // count for index in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return SPARKS[3] * count
    return "".join(SPARKS[round((mean - low) / (high - low) * (len(SPARKS) - 1))] for mean in means)
