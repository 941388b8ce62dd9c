"""CPU time of a run's processes, while they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rl_training import processes
from rl_training.processes import cpu_seconds

SPENT = 0.5
WORK = f"import time\nwhile time.process_time() < {SPENT}: pass\n"
CHILD = f"{WORK}print('done', flush=True)\ninput()"
# A process whose own child has worked, and which waits for it when it is told to.
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
input()
child.communicate("\\n")
print("done", flush=True)
input()
"""


@pytest.fixture
def started() -> Iterator[Any]:
    """Starts a process and gives it with the first line that it says."""
    running = []

    def start(code: str) -> tuple[Any, str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
        running.append(process)
        return process, process.stdout.readline()

    yield start
    for process in running:
        end(process)


def end(process: Any) -> None:
    if process.poll() is None:
        process.communicate("\n")


def is_counted_once(before: float) -> bool:
    """Whether it is what one child has spent; the system counts hundredths, and others take much less."""
    return 0.9 * SPENT <= cpu_seconds() - before < 1.8 * SPENT


def test_a_child_that_ends_before_it_is_found_is_counted(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, below = cpu_seconds(), processes._below
    child, _ = started(CHILD)

    def ending(process: int) -> Iterator[int]:
        monkeypatch.setattr(processes, "_below", below)
        end(child)
        return below(process)

    monkeypatch.setattr(processes, "_below", ending)
    assert is_counted_once(before)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_that_ends_while_it_is_read_is_counted_once(
    when: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read = cpu_seconds(), processes._read
    child, _ = started(CHILD)

    def ending(path: str) -> bytes:
        if path != f"/proc/{child.pid}/stat":
            return read(path)
        monkeypatch.setattr(processes, "_read", read)
        said = read(path)
        end(child)
        return said if when == "after" else read(path)

    monkeypatch.setattr(processes, "_read", ending)
    assert is_counted_once(before)


def test_a_grandchild_that_ends_after_its_parent_was_read_is_counted(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read = cpu_seconds(), processes._read
    parent, grandchild = started(PARENT)

    def ending(path: str) -> bytes:
        if path != f"/proc/{int(grandchild)}/stat":
            return read(path)
        monkeypatch.setattr(processes, "_read", read)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "done\n"
        return read(path)

    monkeypatch.setattr(processes, "_read", ending)
    assert is_counted_once(before)


def test_a_thread_that_has_ended_hides_no_children_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = {1: ["1", "2", "3"], 11: ["11"], 12: ["12"]}
    children = {"/proc/1/task/1/children": b"11 ", "/proc/1/task/3/children": b"12 "}

    def read(path: str) -> bytes:
        if path == "/proc/1/task/2/children":
            raise FileNotFoundError(path)
        return children.get(path, b"")

    monkeypatch.setattr(processes.os, "listdir", lambda path: threads[int(path.split("/")[2])])
    monkeypatch.setattr(processes, "_read", read)
    assert list(processes._below(1)) == [11, 12]
