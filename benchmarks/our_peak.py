"""What this core can do at most: floating-point operations per second of a large matrix product in single precision.

python -m benchmarks.our_peak '{"size": 1024, "calls": 12}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from benchmarks.meter import report


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    size, best = settings["size"], float("inf")
    left, right = torch.randn(size, size), torch.randn(size, size)
    for _ in range(settings["calls"]):
        began = time.process_time()
        left @ right
        best = min(best, time.process_time() - began)
    report(settings["calls"], {"cpu_seconds": best}, ("torch",), operations_per_second=2 * size**3 / best)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
