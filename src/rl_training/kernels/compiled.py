"""Conditions under which compiled kernels may replace torch operations."""

from __future__ import annotations

import torch
from llvmlite import binding
from torch import Tensor

REVISION = 2  # raised when compiled updates, rollouts or environments compute other numbers
# Of parts of a trainer whose compiled code alone has computed other numbers since, by their names in a run's record.
PART_REVISIONS = {"fast_networks": 4}
FEATURES = ("fma", "avx2", "avx512f", "neon", "sve")  # of a processor, which decide how sums are split


def fits(x: Tensor) -> bool:
    """They know single precision in the processor's memory, and nothing can look into them."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()


def cpu_features() -> str:
    """Those that the numbers of compiled code depend on."""
    found = binding.get_host_cpu_features()
    return " ".join(name for name in FEATURES if found.get(name))
