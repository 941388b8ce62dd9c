"""Cold starts: what numba's first compilation of a shipped config costs, and what a whole command takes after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.comparison import Options
from benchmarks.report import Report, Spread, Verdict, table
from benchmarks.runs import Run, run

Started = tuple[Run, Run]  # with an empty cache, and again with what the first run left in it


@dataclass(frozen=True)
class ColdStarts:
    """Short runs of shipped configs: the first one with an empty cache may take `most` CPU-seconds more than others.

    With everything cached, a whole `command` of `steps` steps may take `most_warm` CPU-seconds, imports included.
    """

    name: str
    title: str
    configs: Sequence[str]
    most: float
    command: Sequence[str]  # as on the command line
    steps: int
    most_warm: float
    rounds: int = 1

    def run(self, options: Options) -> Report:
        rounds = options.rounds or self.rounds
        configs = self.configs[:1] if options.quick else self.configs
        runs: dict[str, list[Started]] = {config: [] for config in configs}
        commands: list[Run] = []
        whole = {"commands": [[*self.command, f"total_timesteps={self.steps}"]], "steps": self.steps}
        for number in range(1, rounds + 1):
            for config, done in runs.items():
                done.append(start_twice("benchmarks.our_compiling", {"config": config}))
            commands.append(start_twice("benchmarks.our_commands", whole)[1])
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, runs, commands)


def start_twice(module: str, settings: dict[str, Any]) -> Started:
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, NUMBA_CACHE_DIR=cache):
        cold, warm = (run(module, settings) for _ in range(2))
    return cold, warm


def more(started: Started) -> float:
    """CPU-seconds of the first run that the second one does not take."""
    cold, warm = started
    return cold["cpu_seconds"] - warm["cpu_seconds"]


def longest(cold: Run) -> str:
    """The name of the function whose compilation took longest; empty where there was none to compile."""
    name, *_ = max(cold["compiled"], key=lambda each: each[2], default=("",))
    return name.removeprefix("rl_training.")


def judge(row: ColdStarts, runs: dict[str, list[Started]], commands: list[Run]) -> Report:
    """`commands`: whole ones, with everything cached."""
    costs = {config: Spread([more(each) for each in done]) for config, done in runs.items()}
    lines = [
        [
            config,
            costs[config],
            Spread([warm["cpu_seconds"] for _, warm in done]),
            len(done[0][0]["compiled"]),
            longest(done[0][0]),
        ]
        for config, done in runs.items()
    ]
    header = ["config", "compilation, CPU-seconds", "the run without it", "functions", "the longest of them"]
    highest = max(costs, key=lambda config: costs[config].median)
    text = f"no first compilation takes more than {row.most:g} CPU-seconds: {highest} {costs[highest].median:.1f}"
    whole = Spread([each["cpu_seconds"] for each in commands])
    command = f"{' '.join(row.command)}, {row.steps} steps, everything cached"
    at_most = f"{command}: at most {row.most_warm:g} CPU-seconds in all: {whole.median:.1f}"
    return Report(
        row.name,
        row.title,
        [table(header, lines), table(["command", "CPU-seconds in all"], [[command, whole]])],
        [Verdict(text, costs[highest].median <= row.most), Verdict(at_most, whole.median <= row.most_warm)],
        {"runs": runs, "commands": commands},
        lambda figure: draw(figure, costs),
        {"ours": next(iter(runs.values()))[0][0]["versions"]},
    )


def draw(figure: Any, costs: dict[str, Spread]) -> None:
    axes = figure.add_subplot()
    for i, spread in enumerate(costs.values()):
        axes.barh(i, spread.median, color="C0", alpha=0.6)
        axes.plot(spread.values, [i] * len(spread.values), "k.", markersize=4)
    axes.set_yticks(range(len(costs)), list(costs))
    axes.set_xlabel("CPU-seconds of numba's first compilation")
