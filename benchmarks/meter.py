"""What one run costs, measured inside its own process in the same way for us and for every peer.

Only the standard library is imported here: this file also runs in the peers' environments.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any


def measured(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Call `function`; its result, and its CPU-seconds, its seconds and the process's highest memory so far.

    CPU-seconds are those of all threads of this process and count no time spent waiting for the core.
    `start_cpu_seconds` is what the process took before: imports, and whatever was run to warm up.
    """
    began, cpu_began = time.perf_counter(), time.process_time()
    result = function()
    return result, {
        "start_cpu_seconds": cpu_began,
        "cpu_seconds": time.process_time() - cpu_began,
        "wall_seconds": time.perf_counter() - began,
        "peak_mb": peak_memory(),
    }


def repeated(
    make: Callable[[int], Callable[[], Any]], batches: Sequence[int], simulations: int, seconds: float
) -> dict[str, dict[str, float]]:
    """For each batch of roots, searches over and over for some CPU-seconds: their simulations and what they cost."""
    costs = {}
    for batch in batches:
        search = make(batch)
        search()  # for whatever is compiled
        search()
        began, cpu_began, done = time.perf_counter(), time.process_time(), 0
        while time.process_time() - cpu_began < seconds:
            search()
            done += batch * simulations
        costs[str(batch)] = {
            "steps": done,
            "cpu_seconds": time.process_time() - cpu_began,
            "wall_seconds": time.perf_counter() - began,
        }
    return costs


def peak_memory() -> float:
    """The most memory this process ever held, in MB."""
    # Not getrusage: what it says includes the process that started this one.
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def report(steps: int, cost: dict[str, float], packages: tuple[str, ...], **more: Any) -> None:
    """Print what a run has to say as its last line, for the process that started it."""
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"steps": steps, **cost, "versions": versions, **more}), flush=True)
