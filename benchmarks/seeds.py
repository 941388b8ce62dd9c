"""Several seeds as one command, against a command for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options, ratios
from benchmarks.report import Report, Spread, Verdict, table
from benchmarks.runs import Run, run

TOGETHER, APART = "one command with --seeds", "a command for each seed"


@dataclass(frozen=True)
class Seeds:
    """A config with `count` seeds; one command must take at most the `share` of the CPU-seconds of many."""

    name: str
    title: str
    config: Sequence[str]  # as on the command line
    count: int
    steps: int
    share: float
    rounds: int = 3

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        steps = options.steps or self.steps // (10 if options.quick else 1)
        settings = [*self.config, f"total_timesteps={steps}"]
        together = [["train", *settings, "--seeds", f"1-{self.count}"]]
        apart = [["train", *settings, f"seed={seed}"] for seed in range(1, self.count + 1)]
        runs: dict[str, list[Run]] = {TOGETHER: [], APART: []}
        for number in range(1, rounds + 1):
            for commands, done in zip((together, apart), runs.values(), strict=True):
                given = {"commands": commands, "steps": self.count * steps}
                done.append(run("benchmarks.our_commands", given))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, runs)


def judge(row: Seeds, runs: dict[str, list[Run]]) -> Report:
    lines, shares = [], Spread([0.0])
    for text, clock in (("CPU-seconds in all", "cpu_seconds"), ("seconds", "wall_seconds")):
        together, apart = ([each[clock] for each in done] for done in runs.values())
        share = Spread(ratios(together, apart))
        shares = share if clock == "cpu_seconds" else shares
        lines.append([text, Spread(together), Spread(apart), share])
    text = f"{row.count} seeds at once take at most {row.share:g} of the CPU-seconds of {row.count} commands"
    return Report(
        row.name,
        row.title,
        [table(["median of rounds (lowest–highest)", *runs, "share"], lines)],
        [Verdict(f"{text}: {shares.median:.2f}", shares.median <= row.share)],
        {"config": list(row.config), "runs": runs},
        lambda figure: draw(figure, runs),
        {"ours": runs[TOGETHER][0]["versions"]},
    )


def draw(figure: Any, runs: dict[str, list[Run]]) -> None:
    axes = figure.add_subplot()
    for i, done in enumerate(runs.values()):
        values = [each["cpu_seconds"] for each in done]
        axes.barh(i, Spread(values).median, color=f"C{i}", alpha=0.6)
        axes.plot(values, [i] * len(values), "k.", markersize=4)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_xlabel("CPU-seconds")
