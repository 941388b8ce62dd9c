"""Actors beside a learner: steps per second by the clock, on all cores, against RLlib and against fewer actors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.comparison import Options, rates, ratios
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Spread, Verdict, table
from benchmarks.runs import Run, RunFailed, run


@dataclass(frozen=True)
class Case:
    """One training with some actors; `theirs` are the peer's settings, where there is a peer to compare with."""

    config: Mapping[str, Any]
    num_actors: int
    steps: int
    theirs: Mapping[str, Any] | None = None
    their_steps: int = 0

    @property
    def name(self) -> str:
        return f"{self.config['algo']} on {self.config['env_id'].split('/')[-1]}, {self.num_actors} actors"


@dataclass(frozen=True)
class Actors:
    """Cases with a peer must be `required` times as fast; of the two without, the second `speed_up` times the first."""

    name: str
    title: str
    cases: Sequence[Case]
    required: float
    speed_up: float
    peer: str = "rllib"
    rounds: int = 3
    warm_up: int = 2000

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        ours: dict[str, list[Run]] = {case.name: [] for case in self.cases}
        theirs: dict[str, list[Run]] = {case.name: [] for case in self.cases if case.theirs}
        missing = None
        try:
            python = peers.interpreter(self.peer)
        except PeerMissing as error:
            missing = str(error)
        with all_cores():
            for number in range(1, rounds + 1):
                for case in self.cases:
                    ours[case.name].append(self._ours(case, options, number))
                if missing is None:
                    try:
                        done = self._theirs(options, number, python)
                    except RunFailed as error:
                        missing = str(error)
                    else:
                        for runs, each in zip(theirs.values(), done["cases"], strict=True):
                            runs.append(each | {"versions": done["versions"]})
                print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, ours, theirs, missing)

    def _ours(self, case: Case, options: Options, seed: int) -> Run:
        steps = options.steps or case.steps // (10 if options.quick else 1)
        fixed = dict(total_timesteps=steps, eval_interval=steps, eval_episodes=1, seed=seed, torch_threads=1)
        config = {**case.config, **fixed, "num_actors": case.num_actors}
        return run("benchmarks.ours", {"config": config, "warm_up": self.warm_up, "episodes": 0})

    def _theirs(self, options: Options, seed: int, python: Any) -> Run:
        """All of the peer's cases in one process: to start Ray takes longer than to train."""
        cases = [
            {
                **case.theirs,
                "num_actors": case.num_actors,
                "steps": options.steps or case.their_steps // (10 if options.quick else 1),
                "seed": seed,
                "warm_up": self.warm_up,
            }
            for case in self.cases
            if case.theirs is not None
        ]
        return run("benchmarks.peers.rllib", {"cases": cases}, python)


@contextmanager
def all_cores() -> Iterator[None]:
    """All cores for what is started meanwhile; the benchmark itself is pinned to one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def judge(
    row: Actors, ours: Mapping[str, list[Run]], theirs: Mapping[str, list[Run]], missing: str | None
) -> Report:
    """The report from all runs; `missing` says why the peer was not, or not always, measured."""
    lines: list[list[Any]] = []
    verdicts, alone = [], []
    for case in row.cases:
        mine = rates(ours[case.name], "wall_seconds")
        if case.theirs is None:
            alone.append(mine)
            lines.append([case.name, Spread(mine), "–", "–"])
            continue
        wanted = f"{case.name}: at least {row.required:g} times RLlib's steps per second"
        if missing is not None:
            lines.append([case.name, Spread(mine), "missing", "–"])
            verdicts.append(Verdict(f"{wanted}: {missing}", None))
            continue
        yours = rates(theirs[case.name], "wall_seconds")
        ratio = Spread(ratios(mine, yours))
        lines.append([case.name, Spread(mine), Spread(yours), ratio])
        verdicts.append(Verdict(f"{wanted}: {ratio.median:.2f}", ratio.median >= row.required))
    gain = Spread(ratios(alone[1], alone[0]))
    text = f"two actors are at least {row.speed_up:g} times as fast as one where a step takes a millisecond: {gain}"
    verdicts.append(Verdict(text, gain.median >= row.speed_up))
    versions = {"ours": next(iter(ours.values()))[0]["versions"]}
    measured = [runs for runs in theirs.values() if runs]
    versions |= {row.peer: measured[0][0]["versions"]} if measured else {}
    data = {
        "cases": [
            {"name": case.name, "config": dict(case.config), "theirs": case.theirs} for case in row.cases
        ],
        "ours": dict(ours),
        "theirs": dict(theirs),
        "missing": missing,
    }
    tables = [table(["env steps per second, on all cores", "ours", "RLlib", "ours / theirs"], lines)]
    if missing:
        tables.append(f"Missing: {missing}")
    return Report(
        row.name,
        row.title,
        tables,
        verdicts,
        data,
        lambda figure: draw(figure, ours, theirs),
        versions,
        cores="all cores",
    )


def draw(figure: Any, ours: Mapping[str, list[Run]], theirs: Mapping[str, list[Run]]) -> None:
    axes = figure.add_subplot()
    for i, (name, runs) in enumerate(ours.items()):
        for j, (side, done) in enumerate((("ours", runs), ("RLlib", theirs.get(name)))):
            if done:
                speeds = rates(done, "wall_seconds")
                label = side if i == 0 else None
                axes.barh(i + 0.4 * j, Spread(speeds).median, 0.35, color=f"C{j}", alpha=0.6, label=label)
                axes.plot(speeds, [i + 0.4 * j] * len(speeds), "k.", markersize=4)
    axes.set_yticks([i + 0.2 for i in range(len(ours))], list(ours), fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("env steps per second")
    axes.legend()
