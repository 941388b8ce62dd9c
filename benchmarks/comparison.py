"""Comparisons: our training against a peer's, with the same environment, networks and hyper-parameters.

Both are run in turn, round by round, so that whatever else the machine does hits both. Round r uses seed r on
both sides, and ratios are taken within rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import peers
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run, RunFailed, run


@dataclass(frozen=True)
class Options:
    """What the command line may change."""

    rounds: int | None = None
    steps: int | None = None
    quick: bool = False

    @property
    def full(self) -> bool:
        """Whether the numbers are worth keeping."""
        return self.rounds is None and self.steps is None and not self.quick


@dataclass(frozen=True)
class Peer:
    """A peer's training: whose environment it runs in, its script, and the script's settings."""

    name: str
    settings: Mapping[str, Any]
    script: str = "benchmarks.peers.sb3"


@dataclass(frozen=True)
class Comparison:
    """One row: what we train, what the peer trains, and how many times its speed is required of us.

    `config` is ours without `seed` and `total_timesteps`. Logging and checkpoints are those of any run; the time
    of evaluations is taken off, since peers evaluate nothing. `variants` are runs of ours with some fields
    changed, shown beside the first: once, in a short run.
    """

    name: str
    title: str
    config: Mapping[str, Any]
    peer: Peer
    steps: int
    required: float | None = None  # ratio of environment steps per CPU-second
    goal: float | None = None
    rounds: int = 5
    warm_up: int = 1024  # steps of a training before the one measured, enough for an update
    episodes: int = 50  # greedy ones after training, whose mean return is the score
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        steps = options.steps or (self.steps // 10 if options.quick else self.steps)
        ours: dict[str, list[Run]] = {name: [] for name in ("ours", *self.variants)}
        theirs: list[Run] | PeerMissing = []
        try:
            python = peers.interpreter(self.peer.name)
            self._theirs(python, self.warm_up, 1, episodes=0)
        except (PeerMissing, RunFailed) as error:
            theirs = PeerMissing(str(error))
        self._ours({}, self.warm_up, 1, episodes=0)  # what it compiles is kept on disk for the next ones
        for number in range(1, rounds + 1):
            for name, done in ours.items():
                if name in self.variants and number > 1:
                    continue
                length = min(steps, 2 * self.warm_up) if name in self.variants else steps
                done.append(self._ours(self.variants.get(name, {}), length, number, self.episodes))
            if not isinstance(theirs, PeerMissing):
                theirs.append(self._theirs(python, steps, number, self.episodes))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        profile = self._ours({}, steps, 1, episodes=0, profile=True)
        return compare(self, ours, theirs, profile)

    def _ours(
        self, changes: Mapping[str, Any], steps: int, seed: int, episodes: int, profile: bool = False
    ) -> Run:
        fixed = dict(total_timesteps=steps, eval_interval=steps, eval_episodes=1, seed=seed, torch_threads=1)
        config = {**self.config, **fixed, **changes}
        settings = {"config": config, "warm_up": self.warm_up, "episodes": episodes, "profile": profile}
        return run("benchmarks.ours", settings)

    def _theirs(self, python: Any, steps: int, seed: int, episodes: int) -> Run:
        fixed = {"steps": steps, "seed": seed, "warm_up": self.warm_up, "episodes": episodes}
        return run(self.peer.script, {**self.peer.settings, **fixed}, python)


def shipped_runs(row: Any, options: Options, module: str, **settings: object) -> dict[str, list[Run]]:
    """The configs of a row as they are shipped, with another seed in each round, run by a module of ours."""
    rounds = options.rounds or (1 if options.quick else row.rounds)
    runs: dict[str, list[Run]] = {name: [] for name in row.configs}
    for number in range(1, rounds + 1):
        for name, done in runs.items():
            config: dict[str, Any] = {"extends": name, "seed": number}
            if options.steps or options.quick:
                config["total_timesteps"] = options.steps or 20_000
            done.append(run(module, {"config": config, **settings}))
        print(f"{row.name}: round {number} of {rounds}", flush=True)
    return runs


def rates(runs: Sequence[Run], per: str) -> list[float]:
    return [each["steps"] / each[per] for each in runs]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours to theirs, round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def standard_error(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the difference of the mean scores, over seeds; 0 where there is one seed only."""
    if min(len(ours), len(theirs)) < 2:
        return 0.0
    return math.sqrt(sum(statistics.variance(scores) / len(scores) for scores in (ours, theirs)))


def no_worse(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether our mean score reaches theirs, give or take one standard error of the difference."""
    return statistics.mean(ours) >= statistics.mean(theirs) - standard_error(ours, theirs)


FIGURES = {  # what each line of the table shows, and how it is read from runs
    "env steps per CPU-second": lambda runs: rates(runs, "cpu_seconds"),
    "env steps per second": lambda runs: rates(runs, "wall_seconds"),
    "CPU-seconds before training": lambda runs: [each["start_cpu_seconds"] for each in runs],
    "peak memory, MB": lambda runs: [each["peak_mb"] for each in runs],
}


def compare(
    row: Comparison, ours: Mapping[str, list[Run]], theirs: list[Run] | PeerMissing, profile: Run
) -> Report:
    """The report of a comparison from its runs; a peer that is missing is named and nothing is put in its place."""
    missing = theirs if isinstance(theirs, PeerMissing) else None
    others = [] if isinstance(theirs, PeerMissing) else theirs
    first = ours["ours"]
    peer = row.peer.name + (f" {others[0]['versions'][row.peer.name]}" if others else "")
    lines = []
    for name, runs in ours.items():
        prefix = "" if name == "ours" else f"{name}: "
        for text, read in FIGURES.items():
            times = Spread(ratios(read(runs), read(others)[: len(runs)])) if others else "–"
            lines.append(
                [prefix + text, Spread(read(runs)), Spread(read(others)) if others else "missing", times]
            )
        mine, yours = scores(runs), scores(others)
        if mine:
            gap = digits(statistics.mean(mine) - statistics.mean(yours)) if yours else "–"
            lines.append(
                [prefix + "score", _mean(mine), _mean(yours) if yours else "missing", f"{gap} apart"]
            )
    if others and "compile_seconds" in others[0]:
        compiling = Spread([each["compile_seconds"] for each in others])
        lines.append(["CPU-seconds of compilation, not counted", "cached", compiling, "–"])
    speed = "env steps per CPU-second"
    ratio = Spread(ratios(FIGURES[speed](first), FIGURES[speed](others))) if others else None
    verdicts = []
    if row.required is not None:
        wanted = f"at least {row.required:g} times the steps per CPU-second of {row.peer.name}"
        wanted += f" (the goal is {row.goal:g})" if row.goal else ""
        wanted += f": {ratio.median:.2f}" if ratio else f": {missing}"
        verdicts.append(Verdict(wanted, ratio.median >= row.required if ratio else None))
    mine, yours = scores(first), scores(others)
    if mine and yours:
        verdicts.append(judge_scores(mine, yours, row.peer.name))
    tables = [table(["median of rounds (lowest–highest)", "ours", peer, "ours / theirs"], lines)]
    if missing:
        tables.append(f"Missing: {missing}")
    if mine:
        seeds = [["ours", *map(digits, mine)], *([[row.peer.name, *map(digits, yours)]] if yours else [])]
        header = [
            f"score: mean return of {row.episodes} greedy episodes",
            *[f"seed {i + 1}" for i in range(len(mine))],
        ]
        tables.append(table(header, seeds))
    tables.append("Where our time goes, in a run of its own:\n\n" + where_time_goes(profile["sections"]))
    versions = {"ours": first[0]["versions"]} | ({row.peer.name: others[0]["versions"]} if others else {})
    data = {
        "config": dict(row.config),
        "peer": {"name": row.peer.name, "settings": dict(row.peer.settings)},
        "ours": dict(ours),
        "theirs": others,
        "missing": str(missing) if missing else None,
        "ratio_per_cpu_second": ratio.values if ratio else None,
        "profile": profile,
    }
    sides = {**ours, **({row.peer.name: others} if others else {})}
    return Report(
        row.name,
        row.title,
        tables,
        verdicts,
        data,
        lambda figure: draw(figure, sides, profile["sections"]),
        versions,
    )


def scores(runs: Sequence[Run]) -> list[float]:
    return [each["score"] for each in runs if each["score"] is not None]


def judge_scores(ours: Sequence[float], theirs: Sequence[float], other: str) -> Verdict:
    means = f"{digits(statistics.mean(ours))} against {digits(statistics.mean(theirs))}"
    error = f"standard error of the difference {digits(standard_error(ours, theirs))}"
    text = f"score no worse than {other}'s over {len(ours)} seeds: {means}, {error}"
    return Verdict(text, no_worse(ours, theirs))


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {digits(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{digits(statistics.mean(values))}{spread}"


def where_time_goes(sections: Mapping[str, Mapping[str, float]]) -> str:
    total = sum(section["cpu_seconds"] for section in sections.values())
    return table(
        ["section", "CPU-seconds", "share", "calls"],
        [
            [
                name,
                f"{part['cpu_seconds']:.2f}",
                f"{100 * part['cpu_seconds'] / total:.1f} %",
                f"{part['calls']:,}",
            ]
            for name, part in sections.items()
        ],
    )


def draw(figure: Any, sides: Mapping[str, list[Run]], sections: Mapping[str, Mapping[str, float]]) -> None:
    """Every round as a dot on the bar of the median, and our time as a pie laid flat."""
    grid = figure.add_gridspec(2, 3, height_ratios=[3, 1])
    panels = {
        "env steps per CPU-second": FIGURES["env steps per CPU-second"],
        "peak memory, MB": FIGURES["peak memory, MB"],
        "score": scores,
    }
    for column, (text, read) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[0, column])
        axes.set_title(text, fontsize=10)
        for i, (name, runs) in enumerate(sides.items()):
            values = read(runs)
            if values:
                axes.bar(i, statistics.median(values), color=f"C{i}", alpha=0.6, label=name)
                axes.plot([i] * len(values), values, "k.", markersize=4)
        axes.set_xticks(range(len(sides)), list(sides), fontsize=8)
    axes = figure.add_subplot(grid[1, :])
    total, left = sum(part["cpu_seconds"] for part in sections.values()), 0.0
    for i, (name, part) in enumerate(sections.items()):
        share = 100 * part["cpu_seconds"] / total
        axes.barh(0, share, left=left, color=f"C{i}")
        if share > 3:
            axes.text(left + share / 2, 0, f"{name}\n{share:.0f} %", ha="center", va="center", fontsize=8)
        left += share
    axes.set_xlim(0, 100)
    axes.set_yticks([])
    axes.set_xlabel("where our CPU time goes, %", fontsize=8)
