"""Where compiled functions of our own may do the work of torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor


def fits(x: Tensor) -> bool:
    """They know single precision in the processor's memory, and nothing can look into them."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
