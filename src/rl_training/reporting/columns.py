"""Logs of any length in constant memory: the points of each metric are thinned while the log is read.

Up to MOST_POINTS points a metric is kept as it is. Beyond, neighbours are taken together in stretches of equal length,
each with its mean and its lowest and highest value; the newest point always stands for itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

MOST_POINTS = 2**14  # of a metric before it is thinned
MOST_STRETCHES = 2**11


class Curve(NamedTuple):
    """One metric of a run: its steps and values, and where it was thinned the range of what each value stands for."""

    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Column:
    """The points of one metric. NaN stands where a knob was off."""

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole  # every point is kept
        self.steps, self.values = array("d"), array("d")
        self.stretch = MOST_POINTS // MOST_STRETCHES
        self.stretches = np.empty((0, 6))  # sum of steps, points, sum of values, values, lowest, highest

    def add(self, step: float, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) >= MOST_POINTS and not self.whole:
            self._thin()

    def _thin(self) -> None:
        """Take the points together that fill stretches; at least one is left, so that the last value is exact."""
        count = (len(self.steps) - 1) // self.stretch * self.stretch
        steps = np.array(self.steps[:count]).reshape(-1, self.stretch)
        values = np.array(self.values[:count]).reshape(-1, self.stretch)
        known = np.isfinite(values)
        new = [
            steps.sum(1),
            np.full(len(steps), float(self.stretch)),
            np.where(known, values, 0.0).sum(1),
            known.sum(1),
            np.where(known, values, np.inf).min(1),
            np.where(known, values, -np.inf).max(1),
        ]
        del self.steps[:count], self.values[:count]
        self.stretches = np.concatenate([self.stretches, np.stack(new, 1)])
        while len(self.stretches) > MOST_STRETCHES:
            self._merge()

    def _merge(self) -> None:
        """Make one stretch of every two."""
        self.stretch *= 2
        even = np.arange(0, len(self.stretches), 2)
        sums = np.add.reduceat(self.stretches[:, :4], even)
        low = np.minimum.reduceat(self.stretches[:, 4:5], even)
        high = np.maximum.reduceat(self.stretches[:, 5:], even)
        self.stretches = np.concatenate([sums, low, high], 1)

    def curve(self) -> Curve:
        steps, values = np.array(self.steps), np.array(self.values)
        if not len(self.stretches):
            return Curve(steps, values)
        step_sum, points, value_sum, known, low, high = self.stretches.T
        gap = known == 0
        means = np.where(gap, np.nan, value_sum / np.maximum(known, 1))
        low, high = np.where(gap, np.nan, low), np.where(gap, np.nan, high)
        return Curve(
            np.concatenate([np.round(step_sum / points), steps]),
            np.concatenate([means, values]),
            np.concatenate([low, values]),
            np.concatenate([high, values]),
        )


class Columns:
    """The metrics of a log by name. With `only`, no others are kept, and these whole."""

    def __init__(
        self,
        *,
        only: Collection[str] | None = None,
        whole: Collection[str] = (),
        expected: Collection[str] = (),
    ) -> None:
        self.only, self.whole, self.expected = only, set(whole), set(expected)
        self.by_name: dict[str, Column] = {}
        self.names: dict[str, None] = {}  # all that were met, in their order
        self.last_step = 0

    def add(self, line: Mapping[str, float], *, complete: bool) -> None:
        """Take in a line; a `complete` one has all expected names, and where it lacks one that was off."""
        step = line["step"]
        for name, value in line.items():
            if name not in self.names:
                self.names[name] = None
            if self.only is None or name in self.only:
                self._column(name).add(step, value)
        if complete and self.expected:
            for name in self.expected - line.keys():
                self._column(name).add(step, np.nan)
        self.last_step = int(step)

    def _column(self, name: str) -> Column:
        column = self.by_name.get(name)
        if column is None:
            column = self.by_name[name] = Column(whole=self.only is not None or name in self.whole)
        return column

    def curve(self, name: str) -> Curve:
        return self.by_name.get(name, Column()).curve()
