"""A sum tree: update priorities and sample in proportion to them, both in logarithmic time."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.state.leaves import require, require_array


class SumTree:
    """Leaves 0 … size - 1, rounded to float32, and above them the sums of two and two in float64.

    A sum is always computed from its two parts and never by adding a difference, so it is a function of the
    leaves alone: a tree filled anew from its leaves is the same tree, bit for bit. A second tree holds maxima.
    """

    def __init__(self, size: int) -> None:
        self.width = 1 << max(size - 1, 1).bit_length()
        self.nodes = np.zeros(2 * self.width)
        self.maxima = np.zeros(2 * self.width, np.float32)

    @property
    def largest(self) -> float:
        """The largest leaf there is, which new ones get; 1 where there is none."""
        return float(self.maxima[1]) or 1.0

    def put(self, places: np.ndarray, values: np.ndarray) -> None:
        _put(self.nodes, self.maxima, places, values.astype(np.float32))

    def put_largest(self, places: np.ndarray) -> None:
        """What nobody has looked at yet shall be drawn soon."""
        if len(places):
            self.put(places, np.full(len(places), self.largest))

    def get(self, places: np.ndarray) -> np.ndarray:
        """The leaves themselves, as float32: nothing is lost."""
        return self.nodes[self.width + places].astype(np.float32)

    def draw(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For noise in [0, 1), one place from each of len(noise) equal shares of the total, and its probability."""
        return _draw(self.nodes, noise)

    def load(self, places: np.ndarray, leaves: np.ndarray) -> None:
        """Be the tree with these leaves and no others."""
        require_array(leaves, places.shape, np.float32, "SumTree.leaves")
        positive = np.isfinite(leaves).all() and (leaves >= 0).all() and (not len(leaves) or leaves.max() > 0)
        require(positive, "SumTree: no priorities")
        for nodes, join in ((self.nodes, np.add), (self.maxima, np.maximum)):
            nodes[:] = 0.0
            nodes[self.width + places] = leaves
            for start in iter_levels(self.width):
                pairs = nodes[2 * start : 4 * start]
                nodes[start : 2 * start] = join(pairs[0::2], pairs[1::2])


def iter_levels(width: int) -> list[int]:
    """The first node of every level above the leaves, from the bottom up."""
    return [width >> level for level in range(1, width.bit_length())]


@njit(borrows=True)
def put_leaf(nodes, maxima, place, value):  # type: ignore[no-untyped-def]
    """One leaf, and the sums and maxima above it."""
    at = len(nodes) // 2 + place
    nodes[at] = maxima[at] = value
    while at > 1:
        at //= 2
        nodes[at] = nodes[2 * at] + nodes[2 * at + 1]
        left, right = maxima[2 * at], maxima[2 * at + 1]
        maxima[at] = right if right > left else left


@njit()
def _put(nodes, maxima, places, values):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        put_leaf(nodes, maxima, places[i], values[i])


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
