"""Which tests call which functions, measured once per test file and kept beside the results."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutations import function_names, name_at
from numba.core.dispatcher import Dispatcher
from planting import code_objects, live_functions

TESTS = Path(__file__).resolve().parents[1]
Key = tuple[str, str]  # a file below the package, and the qualified name of a function in it


class Tracer:
    """A plugin of pytest: what each test calls, and how many CPU-seconds it takes."""

    def __init__(self, package: Path) -> None:
        self.package = str(package)
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        called: set[CodeType] = set()

        def trace(frame: Any, event: str, argument: Any) -> None:
            called.add(frame.f_code)

        began = time.process_time()
        threading.settrace(trace)
        sys.settrace(trace)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        keys = {key_of(code, self.package) for code in called if code.co_filename.startswith(self.package)}
        self.tests[item.nodeid] = {
            "seconds": round(time.process_time() - began, 3),
            "calls": sorted(map(list, keys)),
            "passed": True,
        }

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tests.setdefault(report.nodeid, {}).setdefault("bad", False)
        if not report.passed:
            self.tests[report.nodeid]["bad"] = True


def key_of(code: CodeType, package: str) -> Key:
    """Where code stands: what a lambda or a comprehension does counts for the function around it."""
    return os.path.relpath(code.co_filename, package), name_at(_names(code.co_filename), code.co_firstlineno)


@cache
def _names(file: str) -> list[tuple[range, str]]:
    return function_names(ast.parse(Path(file).read_text()))


def measure(test_file: Path, package: Path) -> dict[str, dict[str, Any]]:
    """Run a test file in a fork, and give its tests that passed: `seconds` and `calls` by id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        silence()
        tracer, before = Tracer(package), {}
        try:
            pytest.main(["-q", "-p", "no:cacheprovider", str(test_file)], plugins=[tracer])
            good = {name: test for name, test in tracer.tests.items() if "calls" in test}
            before = {
                name: {"seconds": test["seconds"], "calls": test["calls"]}
                for name, test in good.items()
                if not test.get("bad")
            }
        finally:
            with os.fdopen(writing, "w") as pipe:
                json.dump(before, pipe)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {}


def _quickest(tests: list[tuple[float, float, str]], seconds: float) -> list[str]:
    """As many as fit into these seconds, and at least one; each is its place in the order, its seconds and its id."""
    chosen: list[str] = []
    for _, took, name in sorted(tests):
        seconds -= took
        if seconds < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def _file(test: str) -> str:
    """The file of a test below the folder of tests, by the test's id."""
    return test.split("::")[0].removeprefix(f"{TESTS.name}/")


def silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class Map:
    """The tests of some files and what they call, kept in a file of JSON."""

    def __init__(self, path: Path, package: Path) -> None:
        self.path, self.package = path, package
        self.files: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.tests: dict[str, tuple[float, set[Key]]] = {}

    def cover(self, test_files: list[Path]) -> None:
        """Measure the files that are new or have changed, and know all of them."""
        for number, file in enumerate(test_files, 1):
            digest, place = hashlib.sha256(file.read_bytes()).hexdigest(), str(file.relative_to(TESTS))
            if self.files.get(place, {}).get("sha256") != digest:
                began = time.monotonic()
                self.files[place] = {"sha256": digest, "tests": measure(file, self.package)}
                self.path.write_text(json.dumps(self.files))
                count, took = len(self.files[place]["tests"]), time.monotonic() - began
                print(f"map {number}/{len(test_files)}: {place}, {count} tests, {took:.0f} s", flush=True)
            for name, test in self.files[place]["tests"].items():
                self.tests[name] = (test["seconds"], {(path, name) for path, name in test["calls"]})

    def covering(self, path: str, function: str, seconds: float) -> list[str]:
        """The tests that call a function, quick ones first, as many as fit into these CPU-seconds.

        Without a name those that call any function of the file. Tests whose file imports from it are the likeliest to
        notice a change: they may take four times as long and come first.
        """
        own = self._importing(path)
        callers = self._callers((path, function)) if function else set()
        found = []
        for name, (took, calls) in self.tests.items():
            hit = bool(calls & callers) if function else any(file == path for file, _ in calls)
            if hit:
                found.append((took / 4 if _file(name) in own else took, took, name))
        return _quickest(found, seconds)

    def seconds(self, tests: list[str]) -> float:
        """How many CPU-seconds these tests take."""
        return sum(self.tests[name][0] for name in tests)

    def naming(self, path: str, seconds: float) -> list[str]:
        """The tests of files that import from this one: of what numba alone calls no trace sees anything."""
        own = self._importing(path)
        mine = [(took, took, test) for test, (took, _) in self.tests.items() if _file(test) in own]
        return _quickest(mine, seconds)

    def _importing(self, path: str) -> set[str]:
        """The test files that import from a file of the package."""
        module = "rl_training." + path.removesuffix(".py").replace("/", ".")
        room, _, name = module.rpartition(".")
        wanted = (f"from {module} import", f"from {room} import {name}")
        return {file for file in self.files if any(text in (TESTS / file).read_text() for text in wanted)}

    def _callers(self, key: Key) -> set[Key]:
        """The function itself, and where it is compiled by numba all that leads to it: no trace sees it called."""
        callers, new = {key}, {key}
        while new:
            new = {user for user, used in self._compiled_uses().items() if used & new and user not in callers}
            callers |= new
        return callers

    def _compiled_uses(self) -> dict[Key, set[Key]]:
        """For each function of the package, the compiled functions that it names."""
        if not hasattr(self, "_uses"):
            self._uses: dict[Key, set[Key]] = {}
            for file, functions in live_functions().items():
                if file.startswith(str(self.package)):
                    for function in functions:
                        self._uses[key_of(function.__code__, str(self.package))] = self._kernels(function)
        return self._uses

    def _kernels(self, function: FunctionType) -> set[Key]:
        names = {
            name for code in (function.__code__, *code_objects(function.__code__)) for name in code.co_names
        }
        used = (function.__globals__.get(name) for name in names)
        return {
            key_of(part.py_func.__code__, str(self.package)) for part in used if isinstance(part, Dispatcher)
        }
