"""Tuples of arrays that lie in memory, where compiled code reads them by their addresses.

For every array in an argument numba compiles how Python hands it over and how one function passes it on to the next:
where there are dozens, as in a few networks and optimizers, that takes longer than all that is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

Values = Sequence[Any]  # of arrays in C order, and of numbers


def words(values: Values) -> np.ndarray:
    """The values as numba lays out a tuple of them, which is how its C code finds arrays, too: `arystruct_t`."""
    laid: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous
            laid += (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
        else:
            laid.append(int(np.array(value).view(np.int64)))
    return np.array(laid)


class Kept:
    """The addresses of some tuples, written down once; anew where one of them is another than before."""

    def __init__(self) -> None:
        self.tuples: tuple[Values, ...] = ()
        self.words: list[np.ndarray] = []
        self.places = np.zeros(0, np.int64)

    def __call__(self, *tuples: Values) -> np.ndarray:
        if len(tuples) != len(self.tuples) or any(map(is_not, tuples, self.tuples)):
            self.tuples, self.words = tuples, [words(each) for each in tuples]
            self.places = np.array([each.ctypes.data for each in self.words])
        return self.places


def read_as(kind: types.BaseTuple) -> Any:
    """What reads a tuple of this type, given its address; it does not own the arrays."""

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        return build.load(build.inttoptr(values[0], context.get_value_type(kind).as_pointer()))

    @intrinsic
    def read(typing: Any, place: Any) -> Any:
        return kind(types.int64), generate

    return read
