"""What the replay costs: memory of a million Atari transitions, and a sample beside the update that it feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run, run


@dataclass(frozen=True)
class ReplayCosts:
    name: str
    title: str
    transitions: int = 1_000_000
    repeats: int = 100
    most_memory: float = 7500  # MB of a million Atari transitions
    most_sampling: float = 5  # percent of an update
    rounds: int = 3

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        settings = {
            "transitions": options.steps or self.transitions // (100 if options.quick else 1),
            "repeats": self.repeats // (10 if options.quick else 1),
        }
        runs = []
        for number in range(1, rounds + 1):
            runs.append(run("benchmarks.our_replay", settings))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, runs)


def judge(row: ReplayCosts, runs: Sequence[Run]) -> Report:
    part = {
        name: Spread([1000 * each["seconds"][name] for each in runs]) for name in runs[0]["seconds"]
    }  # ms
    sampling = Spread([100 * each["seconds"]["sample"] / each["seconds"]["update"] for each in runs])
    above = Spread([each["seconds"]["update"] / each["seconds"]["products"] for each in runs])
    memory = Spread([each["atari_mb"] for each in runs])
    count = f"{runs[0]['transitions']:,}"
    lines: list[list[Any]] = [
        [f"ms to draw 256 of {count} transitions", part["sample"]],
        ["ms of a SAC update, with its sample (Pendulum, 256-256 units, batch 256)", part["update"]],
        ["ms of the matrix products alone in such an update", part["products"]],
        ["% of the update that is sampling", sampling],
        ["update / its matrix products", above],
        [f"MB of {count} Atari transitions in memory, priorities included", memory],
    ]
    verdicts = [
        Verdict(
            f"sampling takes less than {row.most_sampling:g} % of a SAC update: {digits(sampling.median)} %",
            sampling.median < row.most_sampling,
        ),
        Verdict(
            f"{count} Atari transitions take less than {row.most_memory / 1000:g} GB: "
            f"{digits(memory.median / 1000)} GB",
            memory.median < row.most_memory,
        ),
    ]
    versions = {"ours": runs[0]["versions"]}
    return Report(
        row.name,
        row.title,
        [table(["CPU time and memory, median of rounds", "ours"], lines)],
        verdicts,
        {"runs": list(runs)},
        lambda figure: draw(figure, part),
        versions,
    )


def draw(figure: Any, part: dict[str, Spread]) -> None:
    axes = figure.add_subplot()
    for i, spread in enumerate(part.values()):
        axes.barh(i, spread.median, color=f"C{i}", alpha=0.6)
        axes.plot(spread.values, [i] * len(spread.values), "k.", markersize=4)
    axes.set_yticks(range(len(part)), list(part))
    axes.set_xlabel("CPU-milliseconds")
