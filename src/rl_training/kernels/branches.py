"""Slopes in the inputs of a network that is looked at in some rows only.

Of two critics the smaller one counts: half of the rows go backward through each of them.
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.layers import (
    BACK,
    HEIGHT,
    KEPT,
    NORMED,
    OUTPUTS,
    SLOPES,
    STRIDE,
    VALUES,
    call_backward,
)


@njit(nogil=True)
def add_to_inputs(network, slopes, found):  # type: ignore[no-untyped-def]
    """Add to `found` [n, inputs] the slopes of a loss with these slopes [n] in what `put_out` gave last.

    Rows without a slope are left out: what the layers put out in the others is moved to the first rows, in order, and
    the backward pass goes through those alone.
    """
    table, memory = network.table, network.memory
    rows = np.flatnonzero(slopes)
    if len(rows) == 0:
        return
    for i in range(len(table) - 1):
        _move_up(table[i, VALUES], table[i], memory, rows)
        if table[i, KEPT] >= 0:
            _move_up(table[i, KEPT], table[i], memory, rows)
        if table[i, NORMED] >= 0:
            _move_up(table[i, NORMED], table[i], memory, rows)
            deviations = memory[table[i, NORMED] + HEIGHT * table[i, STRIDE] :]
            for r in range(len(rows)):
                deviations[r] = deviations[rows[r]]
    some = network.slopes[: len(rows)]
    for r in range(len(rows)):
        some[r, 0] = slopes[rows[r]]
    places = (table, network.packed, memory, some, network.gradient, False, False)
    call_backward(network.where[BACK], places)
    inputs = table[-1]
    for r in range(len(rows)):
        at = inputs[SLOPES] + r * inputs[STRIDE]
        for j in range(inputs[OUTPUTS]):
            found[rows[r], j] += memory[at + j]


@njit(nogil=True)
def _move_up(place, layer, memory, rows):  # type: ignore[no-untyped-def]
    stride, width = layer[STRIDE], layer[OUTPUTS]
    for r in range(len(rows)):
        to, at = place + r * stride, place + rows[r] * stride
        line, source = memory[to : to + width], memory[at : at + width]
        for j in range(width if to < at else 0):
            line[j] = source[j]
