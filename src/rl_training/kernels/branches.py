"""Slopes in the inputs of networks side by side, where each is looked at in some rows only.

Of two critics the smaller one counts: half of the rows go backward through each of them.
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.layers import (
    BEGINS,
    COLUMN,
    HEIGHT,
    KEPT,
    NORMED,
    OUTPUTS,
    SLOPES,
    SOURCE,
    STRIDE,
    VALUES,
    Layers,
    backward,
)


class Branches:
    """A network whose outputs, one each, are of chains of layers that share the inputs and nothing else."""

    def __init__(self, layers: Layers) -> None:
        assert layers.passes
        self.layers = layers
        self.tables = [chain(layers.table, column) for column in range(layers.outputs)]
        self.found = np.zeros((HEIGHT, layers.inputs), np.float32)

    def to_inputs(self, slopes: np.ndarray) -> np.ndarray:
        """The slopes [n, inputs] of a loss with these slopes [n, outputs] in what `forward` put out last.

        What the layers put out is written over. Valid until the next call.
        """
        layers, found = self.layers, self.found[: len(slopes)]
        found[:] = 0
        for column, table in enumerate(self.tables):
            rows = np.flatnonzero(slopes[:, column])
            if len(rows):
                add_to_inputs(table, layers.packed, layers.memory, slopes[rows], rows, layers.gradient, found)
        return found


def chain(table: np.ndarray, column: int) -> np.ndarray:
    """The rows of a table of layers that lead to one output column, and the row of the inputs."""
    last = int(np.flatnonzero(table[:-1, COLUMN] == column)[0])
    numbers = [last]
    while table[numbers[0], SOURCE] >= 0:
        numbers.insert(0, int(table[numbers[0], SOURCE]))
    rows = table[[*numbers, len(table) - 1]].copy()
    rows[:-1, SOURCE] = np.arange(len(numbers)) - 1
    rows[:-1, BEGINS] = 1  # nothing else comes to its source
    return rows


@njit(nogil=True)
def add_to_inputs(table, packed, memory, slopes, rows, gradient, found):  # type: ignore[no-untyped-def]
    """Move what the layers put out in `rows` [n], in order, to the first rows, and go backward through those alone."""
    for i in range(len(table) - 1):
        layer = table[i]
        for r in range(len(rows)):
            to, at = r * layer[STRIDE], rows[r] * layer[STRIDE]
            for j in range(layer[OUTPUTS]):
                memory[layer[VALUES] + to + j] = memory[layer[VALUES] + at + j]
                if layer[KEPT] >= 0:
                    memory[layer[KEPT] + to + j] = memory[layer[KEPT] + at + j]
                if layer[NORMED] >= 0:
                    memory[layer[NORMED] + to + j] = memory[layer[NORMED] + at + j]
            if layer[NORMED] >= 0:
                deviations = layer[NORMED] + HEIGHT * layer[STRIDE]
                memory[deviations + r] = memory[deviations + rows[r]]
    backward(table, packed, memory, slopes, gradient, False)
    for r in range(len(rows)):
        at = table[-1, SLOPES] + r * table[-1, STRIDE]
        for j in range(table[-1, OUTPUTS]):
            found[rows[r], j] += memory[at + j]
