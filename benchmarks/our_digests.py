"""A shipped config, trained twice in one process, the second time with a timer around every digest of a log line.

python -m benchmarks.our_digests '{"config": {"extends": "ppo/cartpole", "seed": 1}}'
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.meter import measured, report
from rl_training import load_config, train
from rl_training.runtime.trainer import Trainer

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "numba")


def timer_cost() -> float:
    """CPU-nanoseconds that a timer counts with nothing between its two readings."""
    clock = time.process_time_ns
    return statistics.median(-(clock() - clock()) for _ in range(10_000))


def main(settings: dict[str, Any]) -> None:
    config, taken, digest = load_config(settings["config"]), list[int](), Trainer.digest

    def timed(trainer: Trainer[Any]) -> str:
        began = time.process_time_ns()
        value = digest(trainer)
        taken.append(time.process_time_ns() - began)
        return value

    with tempfile.TemporaryDirectory() as folder:
        train(config, run_dir=Path(folder) / "warm_up", quiet=True)
        Trainer.digest = timed  # type: ignore[method-assign, assignment]
        cost = measured(lambda: train(config, run_dir=Path(folder) / "run", quiet=True))[1]
    own = timer_cost()
    digests = {"lines": len(taken), "cpu_seconds": (sum(taken) - own * len(taken)) / 1e9, "timer_ns": own}
    report(config.total_timesteps, cost, PACKAGES, digests=digests)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
