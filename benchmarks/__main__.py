"""Training speed, and what checkpoints at the default interval cost: `python -m benchmarks [CONFIG...]`."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rl_training import load_config, train
from rl_training.state import checkpoints

CONFIGS = ("ppo/cartpole", "ppo/acrobot", "ppo/pendulum")


class Stopwatch:
    """Adds up the seconds spent in a function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0
        self.seconds = 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*args, **options)
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - began


def measure(name: str) -> str:
    """Train a shipped config as it stands; one line of the table."""
    config = load_config(name)
    saving, keeping = Stopwatch(checkpoints.save_checkpoint), Stopwatch(checkpoints.save_policy)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save_checkpoint, checkpoints.save_policy = saving, keeping
        began = time.perf_counter()
        try:
            train(config, run_dir=Path(folder) / "run")
        finally:
            checkpoints.save_checkpoint, checkpoints.save_policy = saving.function, keeping.function
        seconds = time.perf_counter() - began
    share = 100 * (saving.seconds + keeping.seconds) / seconds
    each = 1000 * saving.seconds / max(saving.calls, 1)
    speed = config.total_timesteps / seconds
    return f"{name:<16}{speed:>10,.0f}{seconds:>10.1f}{saving.calls:>8}{each:>12.2f}{share:>10.2f} %"


def main() -> None:
    print(f"{'config':<16}{'steps/s':>10}{'seconds':>10}{'saves':>8}{'ms a save':>12}{'of the run':>12}")
    for name in sys.argv[1:] or CONFIGS:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
