"""What the digests of log lines cost, in shipped configs as they are shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import Options, shipped_runs
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run


@dataclass(frozen=True)
class Digests:
    name: str
    title: str
    configs: Sequence[str]
    at_most: float = 0.5  # percent of the run's CPU time
    rounds: int = 5

    def run(self, options: Options) -> Report:
        return judge(self, shipped_runs(self, options, "benchmarks.our_digests"))


def judge(row: Digests, runs: dict[str, list[Run]]) -> Report:
    lines, verdicts = [], []
    for name, done in runs.items():
        each = Spread([1e6 * one["digests"]["cpu_seconds"] / one["digests"]["lines"] for one in done])
        whole = Spread([one["cpu_seconds"] for one in done])
        share = Spread([100 * one["digests"]["cpu_seconds"] / one["cpu_seconds"] for one in done])
        lines.append([name, done[0]["digests"]["lines"], each, whole, share])
        text = f"{name}: digests cost less than {row.at_most:g} % of the run's CPU time: {digits(share.median)} %"
        verdicts.append(Verdict(text, share.median < row.at_most))
    header = ["config", "lines", "µs a digest", "CPU-seconds of the run", "% of CPU-seconds"]
    versions = {"ours": next(iter(runs.values()))[0]["versions"]}
    return Report(row.name, row.title, [table(header, lines)], verdicts, {"runs": runs}, versions=versions)
