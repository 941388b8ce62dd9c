"""Commands of this package one after the other, each a process: the CPU-seconds of all they start.

python -m benchmarks.our_commands '{"commands": [["train", "ppo/cartpole", "seed=1"], ...], "steps": 100000}'
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.meter import report

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "numba")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(settings: dict[str, Any]) -> None:
    # Whatever outlives a command, such as a fork server, becomes a child of this process, and its time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for arguments in settings["commands"]:
            command = [sys.executable, "-m", "rl_training", *arguments, "--quiet"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            reap()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {"cpu_seconds": used.ru_utime + used.ru_stime, "wall_seconds": time.perf_counter() - began}
    report(settings["steps"], cost, PACKAGES)


def reap() -> None:
    """Wait for all that is left of a command."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
