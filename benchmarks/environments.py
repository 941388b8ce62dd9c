"""Environments alone: ours against those of a peer, mostly Gymnasium's SyncVectorEnv, per real transition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.comparison import Options, rates, ratios
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Spread, Verdict, table
from benchmarks.runs import Run, RunFailed, run


@dataclass(frozen=True)
class Case:
    """Environments side by side, and how many times the peer's speed is required of ours."""

    env_id: str
    num_envs: int
    steps: int
    required: float = 0.9

    @property
    def name(self) -> str:
        return f"{self.env_id} × {self.num_envs}"


@dataclass(frozen=True)
class Throughput:
    name: str
    title: str
    cases: Sequence[Case]
    peer: str = "gymnasium"
    script: str = "benchmarks.peers.gymnasium_sync"
    theirs: str = "SyncVectorEnv"  # the name of what the peer steps
    vectorization: str = "sync"  # of ours
    rounds: int = 5

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        ours: dict[str, list[Run]] = {case.name: [] for case in self.cases}
        theirs: dict[str, list[Run]] = {case.name: [] for case in self.cases}
        missing = None
        try:
            python = peers.interpreter(self.peer)
        except PeerMissing as error:
            missing = str(error)
        for number in range(1, rounds + 1):
            for case in self.cases:
                steps = options.steps or case.steps // (10 if options.quick else 1)
                settings = dict(env_id=case.env_id, num_envs=case.num_envs, steps=steps, seed=number)
                mine = settings | {"vectorization": self.vectorization}
                ours[case.name].append(run("benchmarks.our_environments", mine))
                if missing is None:
                    try:
                        done = run(self.script, settings, python)
                        theirs[case.name].append(done)
                    except RunFailed as error:
                        missing = str(error)
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, ours, theirs, missing)


def judge(
    row: Throughput, ours: dict[str, list[Run]], theirs: dict[str, list[Run]], missing: str | None
) -> Report:
    """The report from all runs; `missing` says why the peer was not, or not always, measured."""
    lines: list[list[Any]] = []
    verdicts = []
    for case in row.cases:
        mine = rates(ours[case.name], "cpu_seconds")
        wanted = (
            f"{case.name}: at least {case.required:g} times the transitions per CPU-second of {row.theirs}"
        )
        if missing is not None:
            lines.append([case.name, Spread(mine), "missing", "–"])
            verdicts.append(Verdict(f"{wanted}: {missing}", None))
            continue
        yours = rates(theirs[case.name], "cpu_seconds")
        ratio = Spread(ratios(mine, yours))
        lines.append([case.name, Spread(mine), Spread(yours), ratio])
        verdicts.append(Verdict(f"{wanted}: {ratio.median:.2f}", ratio.median >= case.required))
    header = ["transitions per CPU-second", "ours", row.theirs, "ours / theirs"]
    versions = {"ours": next(iter(ours.values()))[0]["versions"]}
    if missing is None:
        versions[row.peer] = next(iter(theirs.values()))[0]["versions"]
    data = {"ours": ours, "theirs": theirs, "missing": missing}
    return Report(
        row.name,
        row.title,
        [table(header, lines)],
        verdicts,
        data,
        lambda figure: draw(figure, row.theirs, ours, theirs),
        versions,
    )


def draw(figure: Any, name_of_theirs: str, ours: dict[str, list[Run]], theirs: dict[str, list[Run]]) -> None:
    for i, name in enumerate(ours):
        axes = figure.add_subplot(1, len(ours), i + 1)
        axes.set_title(name, fontsize=9)
        for j, runs in enumerate((ours[name], theirs[name])):
            if runs:
                values = rates(runs, "cpu_seconds")
                axes.bar(j, Spread(values).median, color=f"C{j}", alpha=0.6)
                axes.plot([j] * len(values), values, "k.", markersize=4)
        axes.set_xticks([0, 1], ["ours", name_of_theirs], fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
    figure.suptitle("transitions per CPU-second", fontsize=10)
