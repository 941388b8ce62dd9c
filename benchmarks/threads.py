"""Convolutions on several cores: seconds of the clock, against one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from benchmarks.actors import all_cores
from benchmarks.comparison import Options, ratios
from benchmarks.report import Report, Spread, Verdict, table
from benchmarks.runs import Run, run


@dataclass(frozen=True)
class Threads:
    """`speed_up` is required of two cores."""

    name: str
    title: str
    speed_up: float
    pictures: int = 256
    calls: int = 20  # of which the fastest counts
    rounds: int = 3

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        runs = []
        with all_cores():
            for number in range(1, rounds + 1):
                settings = {"threads": [1, 2], "pictures": self.pictures, "calls": self.calls}
                runs.append(run("benchmarks.our_convolutions", settings, threads=os.cpu_count() or 1))
                print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, runs)


def judge(row: Threads, runs: list[Run]) -> Report:
    one, two = ([1000 * each["best"][threads] for each in runs] for threads in ("1", "2"))
    gain = Spread(ratios(one, two))
    lines = [["milliseconds forward and backward", Spread(one), Spread(two), gain]]
    text = f"two threads are at least {row.speed_up:g} times as fast as one: {gain.median:.2f}"
    return Report(
        row.name,
        row.title,
        [table(["median of rounds (lowest–highest)", "1 thread", "2 threads", "1 / 2"], lines)],
        [Verdict(text, gain.median >= row.speed_up)],
        {"runs": runs},
        lambda figure: draw(figure, one, two),
        {"ours": runs[0]["versions"]},
        cores="all cores",
    )


def draw(figure: Any, one: list[float], two: list[float]) -> None:
    axes = figure.add_subplot()
    for threads, values in enumerate((one, two), 1):
        axes.barh(threads, Spread(values).median, color=f"C{threads}", alpha=0.6)
        axes.plot(values, [threads] * len(values), "k.", markersize=4)
    axes.set_yticks([1, 2], ["1 thread", "2 threads"])
    axes.set_xlabel("milliseconds forward and backward")
