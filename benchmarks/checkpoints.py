"""What checkpoints at the default interval cost, in shipped configs as they are shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options, shipped_runs
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run


@dataclass(frozen=True)
class Checkpoints:
    name: str
    title: str
    configs: Sequence[str]
    at_most: float = 1.0  # percent of the run's time
    rounds: int = 3

    def run(self, options: Options) -> Report:
        settings = {"warm_up": 4096, "episodes": 0, "profile": True}
        return judge(self, shipped_runs(self, options, "benchmarks.ours", **settings))


def share(done: Run, clock: str) -> float:
    """Percent of a run's time that went into saving."""
    whole = sum(section[clock] for section in done["sections"].values())
    return 100 * done["sections"]["checkpoint"][clock] / whole


def judge(row: Checkpoints, runs: dict[str, list[Run]]) -> Report:
    lines, verdicts = [], []
    for name, done in runs.items():
        saving = [each["sections"]["checkpoint"] for each in done]
        seconds, cpu = (
            Spread([share(each, clock) for each in done]) for clock in ("wall_seconds", "cpu_seconds")
        )
        each = Spread([1000 * part["wall_seconds"] / part["calls"] for part in saving])
        lines.append([name, done[0]["steps"], saving[0]["calls"], each, seconds, cpu])
        text = f"{name}: checkpoints cost less than {row.at_most:g} % of the run's time: {digits(seconds.median)} %"
        verdicts.append(Verdict(text, seconds.median < row.at_most))
    header = ["config", "steps", "saves", "ms a save", "% of seconds", "% of CPU-seconds"]
    versions = {"ours": next(iter(runs.values()))[0]["versions"]}
    return Report(
        row.name,
        row.title,
        [table(header, lines)],
        verdicts,
        {"runs": runs},
        lambda figure: draw(figure, row, runs),
        versions,
    )


def draw(figure: Any, row: Checkpoints, runs: dict[str, list[Run]]) -> None:
    axes = figure.add_subplot()
    for i, done in enumerate(runs.values()):
        shares = [share(each, "wall_seconds") for each in done]
        axes.barh(i, Spread(shares).median, color=f"C{i}", alpha=0.6)
        axes.plot(shares, [i] * len(shares), "k.", markersize=4)
    axes.axvline(row.at_most, color="k", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_xlabel("checkpoints, % of the run's seconds; the line is the most they may take")
