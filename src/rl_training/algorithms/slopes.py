"""Derivatives of losses for compiled updates: a torch loss, and ∂L/∂(log π, H, V) of the same equation per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from rl_training.compiling import address, call_at, njit

LOG_PROB, ENTROPY, VALUE = range(3)  # columns of what an actor-critic says about a row
DIVERGENCE = 3  # and one more where its policy is held to another: KL(other ‖ π)
ROWS, NUMBERS = types.float32[:, ::1], types.float64[::1]
SIGNATURE = types.void(ROWS, ROWS, types.float64, NUMBERS, ROWS, NUMBERS)
call_slopes = call_at(SIGNATURE)

# (log_prob, entropy, value, batch, **knobs) -> the loss, and what is worth logging of it
Loss = Callable[..., tuple[Any, dict[str, Any]]]


class Slopes(NamedTuple):
    """The slopes of a loss of what an actor-critic says about the rows of a batch, compiled.

    `function(said [n, 3], old [n, columns], share, knobs, slopes [n, 3], sums)` writes the slopes in log π, H and V of
    these rows' part of the loss, and adds to `sums` what they add to the loss and to each of `numbers`. `share` is 1
    over the number of rows of the whole minibatch; a knob that is none is infinite. Kernels call it by its address.
    """

    of: Loss  # torch's function of the same equation
    function: Any
    columns: tuple[str, ...]  # of the batch; `advantage` is one of them where it is to be normalised
    knobs: tuple[str, ...]
    numbers: tuple[str, ...]
    # Columns that torch's function takes one by one, where it does not take the batch.
    given: tuple[str, ...] = ()
    anchored: bool = False  # whether KL(other ‖ π) is a fourth column of what is said, and of the slopes

    @property
    def address(self) -> int:
        """Where the compiled function lies."""
        return address(self.function, SIGNATURE)


@njit(nogil=True, error_model="numpy", inline="always")
def gather(columns, rows, normalized, old):  # type: ignore[no-untyped-def]
    """Some rows of columns [N, C] into `old` [n, C], one of them as `normalize_advantage` has it; -1: none."""
    for i in range(len(rows)):
        for c in range(columns.shape[1]):
            old[i, c] = columns[rows[i], c]
    count = len(rows)
    if normalized < 0 or count < 2:
        return
    mean = square = 0.0
    for i in range(count):
        mean += old[i, normalized] / count
    for i in range(count):
        square += (old[i, normalized] - mean) ** 2
    scale = 1 / (np.sqrt(square / (count - 1)) + 1e-8)
    for i in range(count):
        old[i, normalized] = (old[i, normalized] - mean) * scale
