"""Gradients of a penalty on the slopes of a network in its inputs: a derivative of a derivative, written out.

For a chain of layers h ← tanh(z), z = W h + b, with one linear output f, let g = ∇ₓ f, let P(g) be the penalty, and let
a = ∂f/∂z be the slopes that the backward pass leaves behind. ∂P/∂θ is the slope in θ of t · g with t = ∂P/∂g held as it
is, and t · g is how fast f grows along t:

    u ← W t,  t ← (1 - h²) ∘ u                          forward, from t = ∂P/∂g at the inputs
    ∂W += aᵀ t
    c ← (c W) ∘ (1 - h²) - 2 h ∘ u ∘ a                  backward, from c = 0 at the output
    ∂W += cᵀ h,  ∂b += Σ c
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.layers import (
    BACKWARD,
    FORWARD,
    GRADIENT,
    HEIGHT,
    INPUTS,
    NEXT,
    NEXT_PANEL,
    OUTPUTS,
    SLOPES,
    SOURCE,
    START,
    STAY,
    STRIDE,
    TO_PRODUCT,
    VALUES,
    Layers,
)
from rl_training.kernels.products import PANEL, call_product

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
NO_PLACE = np.int64(0)


class Penalty:
    """The slopes of a network in its inputs, and what a penalty on them adds to its gradient.

    layers: a chain of dense layers, all but the last of them tanh, whose only output is one number
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.turned, self.moved = (np.zeros_like(layers.memory) for _ in range(2))  # u, and then c; t
        self.zeros = np.zeros(int(layers.table[:, STRIDE].max()), np.float32)
        self.ones = np.ones((HEIGHT, 1), np.float32)

    def slopes(self, inputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """∇ₓ f [n, inputs] for some rows of inputs, at most HEIGHT; valid until the next call."""
        self.layers.forward(inputs, rows)
        self.layers.backward(self.ones[: len(rows)], learns=False)
        return self.layers.to_inputs[: len(rows)]

    def add(self, along: np.ndarray) -> None:
        """Add the gradient of a penalty with these slopes [n, inputs] in what `slopes` gave last."""
        layers = self.layers
        arrays = (layers.memory, self.turned, self.moved, self.zeros)
        add_penalty(layers.table, layers.packed, *arrays, along, layers.gradient)


@njit(borrows=True, nogil=True)
def add_penalty(table, packed, memory, turned, moved, zeros, along, gradient):  # type: ignore[no-untyped-def]
    """The equations above, for the rows `along` [n, inputs] that hold t at the inputs."""
    count = len(along)
    for r in range(count):
        at = table[-1, VALUES] + r * table[-1, STRIDE]
        for j in range(table[-1, OUTPUTS]):
            moved[at + j] = along[r, j]
    nothing, where = (zeros, NO_PLACE, STAY), table[-1, TO_PRODUCT]
    for i in range(len(table) - 1):
        layer, source = table[i], table[table[i, SOURCE]]
        _add_product(where, layer, source, (memory, layer[SLOPES]), moved, gradient, count)
        if i == len(table) - 2:
            break  # the output is linear: how far it moves decides nothing
        to, first = (turned, layer[VALUES], layer[STRIDE]), (moved, source[VALUES], source[STRIDE], NEXT)
        second = (packed, layer[FORWARD], NEXT_PANEL, layer[INPUTS] * NEXT_PANEL)
        call_product(where, (count, layer[OUTPUTS], layer[INPUTS], to, nothing, first, second))
        for r in range(count):
            at, slopes = layer[VALUES] + r * layer[STRIDE], layer[SLOPES] + r * layer[STRIDE]
            for j in range(layer[OUTPUTS]):
                h, u = memory[at + j], turned[at + j]
                moved[at + j] = (ONE - h * h) * u
                turned[at + j] = -TWO * h * u * memory[slopes + j]
    for i in range(len(table) - 3, -1, -1):
        layer, source = table[i], table[table[i, SOURCE]]
        _add_product(where, layer, source, (turned, layer[VALUES]), memory, gradient, count)
        for r in range(count):
            at = layer[VALUES] + r * layer[STRIDE]
            for j in range(layer[OUTPUTS]):
                gradient[layer[START] + j] += turned[at + j]
        if i == 0:
            break
        to = (memory, source[SLOPES], source[STRIDE])  # whose slopes are not needed any more
        first = (turned, layer[VALUES], layer[STRIDE], NEXT)
        second = (packed, layer[BACKWARD], NEXT_PANEL, layer[OUTPUTS] * NEXT_PANEL)
        call_product(where, (count, layer[INPUTS], layer[OUTPUTS], to, nothing, first, second))
        for r in range(count):
            at, slopes = source[VALUES] + r * source[STRIDE], source[SLOPES] + r * source[STRIDE]
            for j in range(source[OUTPUTS]):
                h = memory[at + j]
                turned[at + j] += memory[slopes + j] * (ONE - h * h)


@njit(borrows=True, nogil=True, inline="always")
def _add_product(where, layer, source, given, taken, gradient, count):  # type: ignore[no-untyped-def]
    """∂W += gᵀ x for g at a place of `given`, and x where `taken` has what the layer's source has."""
    width = (layer[INPUTS] + PANEL - 1) // PANEL * PANEL
    to, first = (gradient, layer[GRADIENT], width), (given[0], given[1], NEXT, layer[STRIDE])
    second = (taken, source[VALUES], source[STRIDE], NEXT_PANEL)
    call_product(where, (layer[OUTPUTS], layer[INPUTS], count, to, to, first, second))
