"""Tuples of arrays that compiled code reads in memory."""

from __future__ import annotations

import numpy as np
from numba import types

from rl_training.compiling import njit
from rl_training.kernels.records import Kept, read_as

KIND = types.Tuple((types.int64, types.float32[:, ::1], types.float64, types.int64[::1], types.boolean[::1]))
read = read_as(KIND)


@njit(borrows=True)
def use(place, found):  # type: ignore[no-untyped-def]
    whole, rows, number, places, flags = read(place)
    found[0], found[1] = whole, number
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            found[2] += rows[i, j] * (i + 1) * (j + 1)
            rows[i, j] = np.float32(0)
    for i in range(len(places)):
        found[3] += places[i]
    for i in range(len(flags)):
        found[4] += flags[i]


def test_compiled_code_reads_and_writes_what_is_kept() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    values = (-3, rows, 0.25, np.array([4, 5]), np.array([True, False, True]))
    expected = sum(rows[i, j] * (i + 1) * (j + 1) for i in range(2) for j in range(3))
    kept = Kept()
    (place,) = kept(values)
    found = np.zeros(5)
    use(place, found)
    np.testing.assert_array_equal(found, [-3, 0.25, expected, 9, 2])
    assert not rows.any()


def test_tuples_are_written_down_once_and_anew_when_others_come() -> None:
    kept, one, other = Kept(), (np.zeros(3),), (np.ones(3),)
    places = kept(one, other)
    assert kept(one, other) is places
    assert not np.array_equal(kept(other, one), places)
    assert len(kept(one)) == 1
