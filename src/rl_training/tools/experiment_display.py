"""Progress display of several seeds: a live table, plain lines, or warnings only."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from rl_training.monitoring.display import number
from rl_training.terminal import printable_line, unescaped

if TYPE_CHECKING:
    from rl_training.tools.experiments import Experiment, SeedRun


def make_experiment_display(quiet: bool) -> Any:
    """Live when stdout is a terminal, plain lines otherwise; `quiet` shows warnings only."""
    if quiet:
        return QuietSeeds()
    wide_enough = shutil.get_terminal_size().columns >= 60
    return LiveSeeds() if sys.stdout.isatty() and wide_enough else PlainSeeds()


class QuietSeeds:
    """Shows warnings, nothing else."""

    experiment: Experiment

    def start(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def update(self, run: SeedRun) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def warning(self, text: str) -> None:
        print(f"warning: {printable_line(text)}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        pass


def headline(experiment: Experiment) -> str:
    config, runs = experiment.config, experiment.runs
    done = sum(run.status == "done" for run in runs)
    begun = sum(run.status != "done" and run.steps > 0 for run in runs)
    text = f"{config.algo_name} on {config.env_id}, {len(runs)} seeds in {experiment.path}"
    if done or begun:
        text += f": {done} done before, {begun} go on"
    return printable_line(text)


class PlainSeeds(QuietSeeds):
    """A line for each quarter of each seed, for log files and pipes."""

    def start(self, experiment: Experiment) -> None:
        super().start(experiment)
        self.said: dict[int, Any] = {}
        self.message(headline(experiment))

    def message(self, text: str) -> None:
        print(printable_line(text), flush=True)

    def update(self, run: SeedRun) -> None:
        total = self.experiment.config.total_timesteps
        now = run.status if run.status != "running" else 4 * run.steps // total
        if self.said.get(run.seed) != now:
            self.said[run.seed] = now
            print(f"seed {run.seed:<4} {line(run, total)}", flush=True)


def line(run: SeedRun, total: int) -> str:
    """`running   50 %  return 120.4  evaluation 200`."""
    columns = [f"{run.status:<8} {min(100, 100 * run.steps // total):3d} %"]
    for name, words in (("episode_return", "return"), ("eval/mean_return", "evaluation")):
        if name in run.metrics:
            columns.append(f"{words} {number(run.metrics[name])}")
    return printable_line("  ".join([*columns, run.problem] if run.problem else columns))


class LiveSeeds(QuietSeeds):
    """A row for each seed, redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(file=unescaped(sys.stdout))

    def start(self, experiment: Experiment) -> None:
        from rich.live import Live

        super().start(experiment)
        self.live = Live(console=self.console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())
        self.title = headline(experiment)
        self.drawn_at = 0.0
        self.live.start()
        self.draw()

    def message(self, text: str) -> None:
        self.console.print(printable_line(text), markup=False, highlight=False)

    def update(self, run: SeedRun) -> None:
        if time.monotonic() - self.drawn_at > 0.2 or run.status != "running":
            self.draw()

    def draw(self) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = self.experiment.config.total_timesteps
        table = Table.grid(padding=(0, 2))
        for run in self.experiment.runs:
            bar = ProgressBar(total=total, completed=min(run.steps, total), width=20)
            table.add_row(f"seed {run.seed}", bar, Text(line(run, total)))
        outer = Table.grid()
        outer.add_row(Text(self.title))
        outer.add_row(table)
        self.drawn_at = time.monotonic()
        self.live.update(outer, refresh=True)

    def finish(self) -> None:
        self.draw()
        self.live.stop()
