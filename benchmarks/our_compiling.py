"""A short run of a shipped config: its CPU-seconds, and those that numba took for each function it compiled.

python -m benchmarks.our_compiling '{"config": "ppo/cartpole"}'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from numba.core.event import Event, Listener, install_listener

from benchmarks.meter import report
from rl_training import load_config, train
from rl_training.tools.warming import brief

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "numba")


class Compilations(Listener):
    """Functions in the order in which they are done, each without the time of those that it made numba compile."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str, float]] = []
        self._open: list[float] = []  # when each began, plus the time of those inside it

    def on_start(self, event: Event) -> None:
        self._open.append(time.process_time())

    def on_end(self, event: Event) -> None:
        took = time.process_time() - self._open.pop()
        self._open = [began + took for began in self._open]
        function, types = event.data["dispatcher"].py_func, event.data["args"]
        self.done.append((f"{function.__module__}.{function.__qualname__}", ", ".join(map(str, types)), took))


def main(settings: dict[str, Any]) -> None:
    began = time.perf_counter()
    config = brief(load_config(settings["config"], **settings.get("changes", {})))
    compilations = Compilations()
    with tempfile.TemporaryDirectory() as folder, install_listener("numba:compile", compilations):
        result = train(config, run_dir=Path(folder) / "run")
    if not any("loss" in name for name in result.metrics):
        raise SystemExit(f"{settings['config']}: no update was made, so none was compiled")
    used = os.times()  # of this process, and of actors it started
    cost = {"cpu_seconds": sum(used[:4]), "wall_seconds": time.perf_counter() - began}
    report(config.total_timesteps, cost, PACKAGES, compiled=compilations.done)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
