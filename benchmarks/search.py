"""Tree search alone: ours against LightZero's C++ trees and against mctx, in simulations per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.comparison import Options, rates, ratios
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run, RunFailed, run

PER = {"simulations per CPU-second": "cpu_seconds", "simulations per second": "wall_seconds"}


@dataclass(frozen=True)
class Case:
    """A search with a model, the peer to compare with, and how many times its speed is required for each batch."""

    peer: str
    search: str  # muzero or gumbel
    model: str  # of our side. supports: LightZero's layers; plain: those of mctx's side; package: our own network
    required: Mapping[int, float]
    atoms: int = 1  # of the categorical reward and value; 1 for plain numbers

    @property
    def name(self) -> str:
        heads = f", {self.atoms} atoms" if self.atoms > 1 else ""
        return f"{self.search} against {self.peer}{heads}" + (
            ", our network" if self.model == "package" else ""
        )


@dataclass(frozen=True)
class SearchSpeed:
    name: str
    title: str
    cases: Sequence[Case]
    simulations: int = 50
    actions: int = 6
    latent: int = 64
    seconds: float = 0.4  # CPU-seconds for each batch size in each round
    rounds: int = 3

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        ours: dict[str, list[Run]] = {case.name: [] for case in self.cases}
        theirs: dict[str, list[Run] | PeerMissing] = {case.name: [] for case in self.cases}
        python: dict[str, Path | PeerMissing] = {}
        for peer in {case.peer for case in self.cases}:
            try:
                python[peer] = peers.interpreter(peer)
            except PeerMissing as error:
                python[peer] = error
        for number in range(1, rounds + 1):
            for case in self.cases:
                settings = asdict(case) | dict(
                    batches=list(case.required),
                    simulations=self.simulations,
                    actions=self.actions,
                    latent=self.latent,
                    seconds=self.seconds / (4 if options.quick else 1),
                    seed=number,
                )
                ours[case.name].append(run("benchmarks.our_search", settings))
                done, where = theirs[case.name], python[case.peer]
                if isinstance(where, PeerMissing):
                    theirs[case.name] = where
                elif not isinstance(done, PeerMissing):
                    try:
                        done.append(run(f"benchmarks.peers.{case.peer}_search", settings, where))
                    except RunFailed as error:
                        theirs[case.name] = PeerMissing(str(error))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, ours, theirs)


def judge(
    row: SearchSpeed, ours: Mapping[str, list[Run]], theirs: Mapping[str, list[Run] | PeerMissing]
) -> Report:
    """The report from all runs; a peer that is missing is named and nothing is put in its place."""
    tables, verdicts = [], []
    versions = {"ours": next(iter(ours.values()))[0]["versions"]}
    for case in row.cases:
        others = theirs[case.name]
        lines: list[list[Any]] = []
        for batch, required in case.required.items():
            wanted = f"{case.name}, {batch} roots: at least {required:g} times its simulations per CPU-second"
            for text, per in PER.items():
                mine = rates(at(ours[case.name], batch), per)
                label = f"{batch} roots, {text}"
                if isinstance(others, PeerMissing):
                    lines.append([label, Spread(mine), "missing", "–"])
                    continue
                yours = rates(at(others, batch), per)
                ratio = Spread(ratios(mine, yours))
                lines.append([label, Spread(mine), Spread(yours), ratio])
                if per == "cpu_seconds":
                    verdicts.append(Verdict(f"{wanted}: {digits(ratio.median)}", ratio.median >= required))
            if isinstance(others, PeerMissing):
                verdicts.append(Verdict(f"{wanted}: {others}", None))
        if not isinstance(others, PeerMissing):
            versions[case.peer] = others[0]["versions"]
        tables.append(table([case.name, "ours", case.peer, "ours / theirs"], lines))
    data = {
        "ours": dict(ours),
        "theirs": {name: each for name, each in theirs.items() if isinstance(each, list)},
    }
    data["missing"] = {name: str(each) for name, each in theirs.items() if isinstance(each, PeerMissing)}  # type: ignore[misc]
    return Report(
        row.name, row.title, tables, verdicts, data, lambda figure: draw(figure, row, ours, theirs), versions
    )


def at(runs: Sequence[Run], batch: int) -> list[Run]:
    """What the runs say of one batch size."""
    return [each["batches"][str(batch)] for each in runs]


def draw(
    figure: Any,
    row: SearchSpeed,
    ours: Mapping[str, list[Run]],
    theirs: Mapping[str, list[Run] | PeerMissing],
) -> None:
    for i, case in enumerate(row.cases):
        axes = figure.add_subplot(2, -(-len(row.cases) // 2), i + 1)
        axes.set_title(case.name, fontsize=8)
        for name, runs in (("ours", ours[case.name]), (case.peer, theirs[case.name])):
            if isinstance(runs, list):
                medians = [Spread(rates(at(runs, batch), "cpu_seconds")).median for batch in case.required]
                axes.plot(list(case.required), medians, "o-", label=name, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7)
    figure.suptitle("simulations per CPU-second over the number of roots", fontsize=10)
