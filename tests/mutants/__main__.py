"""Mutants: plant small faults one by one, and see whether the tests notice.

    python tests/mutants --count 400 --seed 1      plants 400 of them, and prints a score per file
    python tests/mutants --again                   tries those once more that no test has noticed
    python tests/mutants --report                  prints the scores of what was planted so far

A warmed process with the package and the tests imported forks for each mutant, changes the code of the functions in the
fork, and runs the tests that call the changed function, quick ones first, until one fails. Results are appended to
build/mutants/results.jsonl; a run that was stopped goes on where it was. A mutant that survives is a question, and not
yet a fault of the tests: some changes change nothing. Those are judged in equivalents.yaml, each with its reason; they
are planted like all others, listed apart, and left out of the score when they survive.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from covering import Map, silence  # noqa: E402
from mutations import Mutation, mutations  # noqa: E402
from planting import NotPlanted, live_functions, plant  # noqa: E402

PACKAGE = ROOT / "src" / "rl_training"
FOLDER = ROOT / "build" / "mutants"
RUNTIME = ("*_trainer", "actor_learner", "trainer", "optim", "grouped_adam", "scalezero_*s")
RUNTIME += ("on_policy", "off_policy", "updates", "controls", "schedules", "metrics", "evaluation")
SOURCES = [
    f"{room}/*.py" for room in ("algorithms", "data", "state", "search", "networks", "kernels", "policies")
]
SOURCES += [f"runtime/{name}.py" for name in RUNTIME]
# These drive the command line, pages and other programs: seconds a test, for faults that others notice sooner.
LEFT_OUT = (
    "benchmarks",
    "browser",
    "cli",
    "compare",
    "display",
    "docs",
    "docs_commands",
    "doctor",
    "examples",
    "gates",
)
LEFT_OUT += (
    "export",
    "packaging",
    "play",
    "ray_fleet",
    "report",
    "seeds",
    "trackers",
    "tune",
    "architecture",
)
FIRST = 25  # tests that are tried before the rest is even collected
# A mutant whose tests take so many times the CPU-seconds they take without it counts as one that never ends; the
# seconds on top are for code that numba compiles anew.
PATIENCE, COMPILING = 4, 40
STANDSTILL = 300  # seconds after which a test that waits for something is given up


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant small faults, and see whether the tests notice.")
    parser.add_argument("--count", type=int, default=400, help="how many mutants (400)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--only", default="", help="of files whose path holds this alone")
    parser.add_argument("--kind", default="", help="of this kind alone: knob, target, operator, …")
    parser.add_argument(
        "--tests", nargs="*", default=[""], help="with test files whose names hold one of these alone"
    )
    parser.add_argument(
        "--enough",
        type=float,
        default=40.0,
        help="CPU-seconds of tests for each mutant, as they take without it (40)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that plant at the same time (1)")
    parser.add_argument("--again", action="store_true", help="try survivors of earlier runs once more")
    parser.add_argument("--report", action="store_true", help="plant nothing, and print what is known")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    sample = drawn(arguments)
    known = results()
    if not arguments.report:
        noticed = ("killed", "invalid") if arguments.again else ("killed", "invalid", "survived", "unclear")
        done = {name for name, each in known.items() if each["verdict"] in noticed}
        todo = [each for each in sample if identity(*each) not in done]
        covered = warmed(arguments.tests)
        workers = [
            fork_worker(todo[part :: arguments.jobs], covered, arguments.enough)
            for part in range(arguments.jobs)
        ]
        for worker in workers:
            os.waitpid(worker, 0)
        known = results()
    found = {change(*each): known[identity(*each)] for each in sample if identity(*each) in known}
    report(found)
    return 0


def fork_worker(mutants: list[tuple[str, Mutation]], covered: Map, enough: float) -> int:
    """A process that plants these mutants one after the other."""
    worker = os.fork()
    if worker == 0:
        for number, (path, mutation) in enumerate(mutants, 1):
            found = tried(path, mutation, covered, enough)
            with (FOLDER / "results.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            verdict = f"{found['verdict']:8} {found['seconds']:5.1f} s  {described(found)}"
            print(f"{number}/{len(mutants)} {verdict}", flush=True)
        os._exit(0)
    return worker


def drawn(arguments: Any) -> list[tuple[str, Mutation]]:
    """The mutants of a seed: a larger count has the same ones and more, and so has a source with a few more lines."""
    found = []
    for pattern in SOURCES:
        for file in sorted(PACKAGE.glob(pattern)):
            path = str(file.relative_to(PACKAGE))
            if arguments.only in path and file.name != "__init__.py":
                found += [(path, each) for each in mutations(ast.parse(file.read_text()))]
    found = [each for each in found if arguments.kind in each[1].kind]
    found.sort(key=lambda each: hashlib.sha256(f"{arguments.seed} {identity(*each)}".encode()).digest())
    return found[: arguments.count]


def identity(path: str, mutation: Mutation) -> str:
    """The same for the same change of the same text, wherever in the file and in whichever room it is."""
    nearby = _lines(path)[max(mutation.line - 2, 0) : mutation.line + 1]
    return _hashed(path, mutation, *nearby)


def change(path: str, mutation: Mutation) -> str:
    """The same for the same change of a function, whatever else of the function has changed: what is judged."""
    return _hashed(path, mutation)


def _hashed(path: str, mutation: Mutation, *nearby: str) -> str:
    parts = (Path(path).name, *(getattr(mutation, name) for name in NAMED), *nearby)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


NAMED = ("function", "kind", "before", "after", "number")


@cache
def _lines(path: str) -> list[str]:
    return (PACKAGE / path).read_text().splitlines()


def results() -> dict[str, dict[str, Any]]:
    """The newest verdict of every mutant that was ever tried, by its identity."""
    path = FOLDER / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {each["id"]: each for each in map(json.loads, lines)}


def warmed(wanted: list[str]) -> Map:
    """Import all that a fork shall find, and learn which tests call what."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("rl_training", *file.relative_to(PACKAGE).with_suffix("").parts))
        if file.name not in ("__init__.py", "__main__.py"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                print(f"left out, because an extra is missing: {name} ({error})")
    names = [file for file in sorted(HERE.parent.rglob("test_*.py")) if file.stem[5:] not in LEFT_OUT]
    files = [file for file in names if any(part in file.name for part in wanted)]
    output = os.dup(1), os.dup(2)
    silence()
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *map(str, files)])
    for place, was in zip((1, 2), output, strict=True):
        os.dup2(was, place)
    live_functions()
    gc.collect()
    gc.freeze()
    covered = Map(FOLDER / "map.json", PACKAGE)
    covered.cover(files)
    return covered


def tried(path: str, mutation: Mutation, covered: Map, enough: float) -> dict[str, Any]:
    """Plant a mutant in a fork and run tests on it there; what became of it."""
    # What numba calls only when it compiles is called by nobody where machine code was kept from before.
    tests = covered.covering(path, mutation.function, enough) or covered.covering(path, "", enough)
    tests = tests or covered.naming(path, enough)
    found = {"id": identity(path, mutation), "path": path, "line": mutation.line, "kind": mutation.kind}
    found |= {"before": mutation.before, "after": mutation.after, "tests": len(tests), "by": ""}
    if not tests:
        return found | {"verdict": "uncalled", "seconds": 0.0}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        attacked(path, mutation, tests, writing, COMPILING + PATIENCE * int(covered.seconds(tests)))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status, used = os.wait4(child, 0)
    for number in (signal.SIGTERM, signal.SIGKILL):  # what tests of the fork may have left behind
        try:
            os.killpg(child, number)
        except ProcessLookupError:
            break
    seconds = round(used.ru_utime + used.ru_stime, 1)
    verdict, _, by = said.partition(" ")
    if os.WIFSIGNALED(status):
        verdict, by = "killed", f"signal {os.WTERMSIG(status)}"
    return found | {"verdict": verdict or "killed", "by": by.strip(), "seconds": seconds}


class First:
    """A plugin of pytest: the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def attacked(path: str, mutation: Mutation, tests: list[str], pipe: int, limit: int) -> None:
    """In the fork: plant, test, say what happened, end."""
    os.setsid()
    silence()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    verdict, wanted = "survived", mutation[:-2] + mutation[-1:]
    try:
        tree = ast.parse((PACKAGE / path).read_text())
        next(each for each in mutations(tree) if each[:-2] + each[-1:] == wanted).make()
        plant(PACKAGE / path, ast.fix_missing_locations(tree))
        for part in (tests[:FIRST], tests[FIRST:]):
            first = First()
            options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", f"--timeout={STANDSTILL}", *part]
            code = pytest.main(options, plugins=[first]) if part else 0
            if code:
                verdict = f"killed {first.name}" if first.name else f"unclear code {int(code)}"
                break
    except NotPlanted:
        verdict = "invalid"
    os.write(pipe, verdict.encode())
    os._exit(0)


def described(found: dict[str, Any]) -> str:
    change = f"{found['before']} → {found['after']}".replace("\n", " ")
    return f"{found['path']}:{found['line']} {found['kind']}: {change}"


def report(tried: dict[str, dict[str, Any]]) -> None:
    """A score per file and per room, and all that survived."""
    judged = {each["id"]: each["why"] for each in yaml.safe_load((HERE / "equivalents.yaml").read_text())}
    found = [each | {"change": name} for name, each in tried.items()]
    alive = [each for each in found if each["verdict"] not in ("killed", "invalid")]
    equivalent = [each for each in alive if each["change"] in judged]
    valid = [each for each in found if each["verdict"] != "invalid" and each not in equivalent]
    rows: dict[str, list[int]] = {}
    for each in valid:
        for name in (each["path"], each["path"].split("/")[0] + "/", "all"):
            row = rows.setdefault(name, [0, 0])
            row[0] += 1
            row[1] += each["verdict"] == "killed"
    print("\n| file | mutants | killed | score |\n|---|---:|---:|---:|")
    for name in sorted(rows, key=lambda name: (name == "all", name.endswith("/"), name)):
        total, killed = rows[name]
        print(f"| {name} | {total} | {killed} | {100 * killed / total:.1f} % |")
    spent = sum(each["seconds"] for each in found)
    mean = spent / max(len(found), 1)
    left = sum(each["verdict"] == "invalid" for each in found)
    print(
        f"\n{len(found)} planted, {spent:.0f} CPU-seconds, {mean:.1f} each; not counted: {left} that could not be"
    )
    print(f"planted and {len(equivalent)} judged to change nothing\n")
    for each in (each for each in alive if each not in equivalent):
        print(f"{each['verdict']}, {each['tests']} tests: {each['change']} {described(each)}")
    for each in equivalent:
        print(f"equivalent: {each['change']} {described(each)}\n    {judged[each['change']]}")


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} seconds")
    sys.exit(code)
