"""Slopes in the inputs of a network that is looked at in some rows only.

Of two critics the smaller one counts: half of the rows go backward through each of them.
"""

from __future__ import annotations

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
    network_at,
)


@njit(borrows=True, nogil=True)
def add_to_inputs(place, slopes, found, room):  # type: ignore[no-untyped-def]
    """Add to `found` [n, inputs] the slopes of a loss with these slopes [n] in what the network put out last.

    Rows without a slope are left out: what the layers put out in the others is moved to the first rows, in order, and
    the backward pass goes through those alone. `room` [n] is for their numbers.
    """
    network = network_at(place)
    table, memory = network.table, network.memory
    count = 0
    for r in range(len(slopes)):
        if slopes[r] != 0:
            room[count] = r
            count += 1
    if count == 0:
        return
    rows = room[:count]
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


@njit(borrows=True, nogil=True)
def _move_up(place, layer, memory, rows):  # type: ignore[no-untyped-def]
    stride, width = layer[STRIDE], layer[OUTPUTS]
    for r in range(len(rows)):
        to, at = place + r * stride, place + rows[r] * stride
        line, source = memory[to : to + width], memory[at : at + width]
        for j in range(width if to < at else 0):
            line[j] = source[j]
