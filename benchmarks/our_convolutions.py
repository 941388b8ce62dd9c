"""The three convolutions of Atari's network, forward and backward, with some threads: the best of many calls.

python -m benchmarks.our_convolutions '{"threads": [1, 2], "pictures": 256, "calls": 20}'
"""

from __future__ import annotations

import rl_training  # noqa: F401  # before torch, whose threads then wait as they do in training

# isort: split
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from benchmarks.meter import report
from rl_training.allocator import keep_freed_memory
from rl_training.networks.encoders import NatureCNN

PACKAGES = ("rl-training", "torch", "numpy", "numba")


def main(settings: dict[str, Any]) -> None:
    keep_freed_memory()  # as training does
    torch.manual_seed(0)
    encoder = NatureCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    shape = (settings["pictures"], 4, 84, 84)
    frames = torch.randint(0, 256, shape, dtype=torch.uint8).to(memory_format=torch.channels_last)

    def learn() -> None:
        encoder.zero_grad()
        encoder.convolved(frames).sum().backward()

    best = dict.fromkeys(settings["threads"], float("inf"))
    for _ in range(settings["calls"]):  # in turn, so that whatever else the machine does hits all of them
        for threads in best:
            torch.set_num_threads(threads)
            best[threads] = min(best[threads], seconds(learn))
    report(len(frames), {"wall_seconds": best[settings["threads"][0]]}, PACKAGES, best=best)


def seconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
