"""The reference script runs as a user would run it, and prints the return."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "examples" / "sac_pendulum_reference.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_quick_run_prints_returns_and_the_score() -> None:
    out = run("--total-timesteps", "620", "--episodes", "2")
    assert re.search(r"^step +200   return +-[0-9]+\.[0-9]$", out, re.M)
    found = re.search(r"mean return of 2 greedy episodes after 620 steps: (-[0-9.]+)", out)
    assert found is not None and -2000 < float(found[1]) < 0
