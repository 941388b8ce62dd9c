"""A sum tree: numbers that can be changed and drawn in proportion, both in logarithmic time."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.state.leaves import are_finite, require, require_array


class SumTree:
    """Leaves 0 … size - 1, rounded to float32, and above them the sums of two and two in float64.

    A sum is always computed from its two parts and never by adding a difference, so it is a function of the
    leaves alone: a tree filled anew from its leaves is the same tree, bit for bit.
    """

    def __init__(self, size: int) -> None:
        self.width = 1 << max(size - 1, 1).bit_length()
        self.nodes = np.zeros(2 * self.width)
        self.largest = 1.0  # the largest number ever put, which new leaves get

    def put(self, places: np.ndarray, values: np.ndarray) -> None:
        values = values.astype(np.float32)
        _put(self.nodes, places, values)
        self.largest = max(self.largest, float(values.max()))

    def put_largest(self, places: np.ndarray) -> None:
        """What nobody has looked at yet shall be drawn soon."""
        if len(places):
            _put(self.nodes, places, np.full(len(places), self.largest, np.float32))

    def get(self, places: np.ndarray) -> np.ndarray:
        """The leaves themselves, as float32: nothing is lost."""
        return self.nodes[self.width + places].astype(np.float32)

    def draw(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For noise in [0, 1), one place from each of len(noise) equal shares of the total, and its probability."""
        return _draw(self.nodes, noise)

    def load(self, places: np.ndarray, leaves: np.ndarray, largest: float) -> None:
        """Be the tree with these leaves and no others."""
        require_array(leaves, places.shape, np.float32, "SumTree.leaves")
        positive = np.isfinite(leaves).all() and (leaves >= 0).all() and (not len(leaves) or leaves.max() > 0)
        require(positive and are_finite([largest]) and largest > 0, "SumTree: no priorities")
        self.nodes[:] = 0.0
        self.nodes[self.width + places] = leaves
        for start in iter_levels(self.width):
            pairs = self.nodes[2 * start : 4 * start]
            self.nodes[start : 2 * start] = pairs[0::2] + pairs[1::2]
        self.largest = largest


def iter_levels(width: int) -> list[int]:
    """The first node of every level above the leaves, from the bottom up."""
    return [width >> level for level in range(1, width.bit_length())]


@njit()
def put_leaf(nodes, place, value):  # type: ignore[no-untyped-def]
    """One leaf, and the sums above it."""
    at = len(nodes) // 2 + place
    nodes[at] = value
    while at > 1:
        at //= 2
        nodes[at] = nodes[2 * at] + nodes[2 * at + 1]


@njit()
def _put(nodes, places, values):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        put_leaf(nodes, places[i], values[i])


@njit()
def _draw(nodes, noise):  # type: ignore[no-untyped-def]
    width, count = len(nodes) // 2, len(noise)
    places = np.empty(count, np.int64)
    probability = np.empty(count)
    for i in range(count):
        left = (i + noise[i]) / count * nodes[1]
        at = 1
        while at < width:
            at *= 2
            # Rounding may leave a rest beyond the last leaf that has any weight.
            if left >= nodes[at] and nodes[at + 1] > 0.0:
                left -= nodes[at]
                at += 1
        places[i] = at - width
        probability[i] = nodes[at] / nodes[1]
    return places, probability
