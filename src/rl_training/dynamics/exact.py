"""Powers as numpy computes them for scalars: with the C library's pow, whose x² may differ from x·x in the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rl_training.compiling import njit

BITS_OF_TWO = 0x4000000000000000


@intrinsic
def _two(typing: Any) -> Any:
    """2.0, which the compiler cannot see: it would turn a power with a known exponent into a product."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        number = ir.IntType(64)
        moved = ir.FunctionType(number, [number])  # through a register, by no instruction at all
        seen = build.asm(moved, "", "=r,0", [number(BITS_OF_TWO)], False)
        return build.bitcast(seen, ir.DoubleType())

    return types.float64(), generate


@njit()
def square(x):  # type: ignore[no-untyped-def]
    """x ** 2 of a float64."""
    return math.pow(x, _two())


@njit()
def square_single(x):  # type: ignore[no-untyped-def]
    """x ** 2 of a float32."""
    return np.float32(math.pow(x, np.float32(_two())))
