"""Starting runs: each in a process of its own, all on one core, with one thread unless a row asks for more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Run = dict[str, Any]  # what `meter.report` printed


class RunFailed(Exception):
    """A run ended with an error; the message is its last line."""


def pin_to_one_core() -> int:
    """Keep this process and all it starts on one core: the last one, as interrupts are mostly served by the first."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def run(
    module: str, settings: Mapping[str, Any], python: str | Path = sys.executable, threads: int = 1
) -> Run:
    """`python -m module settings` in the repository's root; what it reported."""
    done = subprocess.run(
        [str(python), "-m", module, json.dumps(settings)],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(THREADS, str(threads)),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunFailed(f"{module} failed: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
