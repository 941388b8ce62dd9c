"""`python -m benchmarks [--only NAME[,NAME]] [--rounds N] [--steps N] [--quick] [--keep] [--peers DIR]`.

See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.comparison import Options
from benchmarks.report import RESULTS, SCRATCH, write
from benchmarks.rows import ROWS
from benchmarks.runs import RunFailed, pin_to_one_core


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows asked for; 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Our speed, alone and against peers."
    )
    parser.add_argument("--only", metavar="NAME[,NAME]", help=f"these rows only: {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (and seeds) of each row")
    parser.add_argument("--steps", type=int, metavar="N", help="environment steps of each run")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that everything works")
    parser.add_argument("--keep", action="store_true", help="write to benchmarks/results all the same")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where peers are installed [.bench]")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {', '.join(ROWS)}")
    options = Options(given.rounds, given.steps, given.quick)
    folder = RESULTS if options.full or given.keep else SCRATCH
    peers.ENVIRONMENTS = given.peers or peers.ENVIRONMENTS
    pin_to_one_core()
    failed = 0
    for name in names:
        try:
            report = ROWS[name].run(options)
        except RunFailed as error:  # an extra that is missing here, mostly
            print(f"{name}: not measured: {error}", flush=True)
            failed += 1
            continue
        print(f"\n{write(report, folder)}", flush=True)
        failed += sum(verdict.passed is False for verdict in report.verdicts)
    print(f"written to {folder.relative_to(folder.parents[1])}/")
    return 1 if failed and options.full else 0


if __name__ == "__main__":
    sys.exit(main())
