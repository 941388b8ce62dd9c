"""Programs: tables of operations on rows of numbers, run step after step in compiled code.

An operation is one row of a table: the address of a compiled function, where the numbers lie that it reads and writes,
and sizes. All functions of operations have the same arguments, so one compiled loop runs every program, and each
function is compiled once and alone; linked into larger kernels, it would be compiled for each of them again.

Numbers are float32 in NumPy arrays, given as views:

    [steps, rows, width]    each step has rows of its own
    [rows, width]           the same rows in every step
    [width]                 the same numbers in every row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from rl_training.compiling import address, call_at, njit
from rl_training.kernels.functions import FAST
from rl_training.kernels.products import LANES, PANEL, PRODUCT, call_product, product, turn

MOST_PLACES, MOST_SIZES = 7, 3
PLACE = 3  # an address, numbers from row to row, and bytes from step to step
SIZES = 1 + MOST_PLACES * PLACE  # before it: the function's address, and places
COLUMNS = SIZES + MOST_SIZES
NUMBER_BYTES = 4
ZERO = np.float32(0)
# Steps of a product as numbers and not as literals: for each set of literals numba would compile another product.
FIRST, NEXT, NEXT_PANEL = np.int64(0), np.int64(1), np.int64(PANEL)

OPERATION = types.void(types.int64[::1], types.int64, types.int64)
call_operation = call_at(OPERATION)


def operation(function: Any, *arrays: np.ndarray, sizes: Sequence[int]) -> list[int]:
    """A row of a table: the function on these arrays."""
    places = [number for array in arrays for number in place(array)]
    empty = [0] * (MOST_PLACES * PLACE - len(places))
    return [
        address(function, OPERATION),
        *places,
        *empty,
        *sizes,
        *([0] * (MOST_SIZES - len(sizes))),
    ]


def place(array: np.ndarray) -> tuple[int, int, int]:
    """Where a view's numbers begin, and how far it is from row to row and from step to step."""
    # Compiled code sees an address alone: other types, or numbers that do not lie side by side, would be misread.
    assert array.dtype == np.float32
    assert array.shape[-1] == 1 or array.strides[-1] == NUMBER_BYTES
    steps = (0,) * (3 - array.ndim) + array.strides
    return array.ctypes.data, steps[-2] // NUMBER_BYTES, steps[-3]


class Program:
    """Operations in the order in which a step does them; the arrays live as long as it does."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.arrays: list[np.ndarray] = []
        self.table = np.empty((0, COLUMNS), np.int64)

    def add(self, function: Any, *arrays: np.ndarray, sizes: Sequence[int] = ()) -> None:
        self.rows.append(operation(function, *arrays, sizes=sizes))
        self.arrays += arrays

    def multiply(self, out: np.ndarray, start: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """out = start + left · right, given as panels [n / 16, k, 16]; `out` and `start` have whole panels."""
        panels, depth, _ = right.shape
        self.add(
            multiply,
            out,
            start,
            left,
            right.reshape(-1),
            sizes=(panels * PANEL, depth, address(product, PRODUCT)),
        )

    def run(self, rows: int, steps: range) -> None:
        if len(self.table) < len(self.rows):
            self.table = np.array(self.rows, np.int64)
        run(self.table, steps.start, steps.stop, steps.step, rows)


def perform(function: Any, rows: int, *arrays: np.ndarray, sizes: Sequence[int]) -> None:
    """One operation on these rows."""
    run(np.array([operation(function, *arrays, sizes=sizes)]), 0, 1, 1, rows)


@njit(calls=True, borrows=True, nogil=True)
def run(table, first, last, by, rows):  # type: ignore[no-untyped-def]
    """All operations of a table, step after step."""
    for step in range(first, last, by):
        for i in range(len(table)):
            call_operation(table[i, 0], (table[i], step, rows))


@intrinsic
def _line(typing: Any, op: Any, which: Any, step: Any, row: Any, width: Any) -> Any:
    kind, index = types.float32[::1], types.int64

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        table = context.make_array(signature.args[0])(context, build, values[0]).data
        first = build.add(build.mul(values[1], index_of(PLACE)), index_of(1))
        start, apart, far = (build.load(build.gep(table, [build.add(first, index_of(i))])) for i in range(3))
        rows = build.mul(build.mul(values[3], apart), index_of(NUMBER_BYTES))
        where = build.add(build.add(start, build.mul(values[2], far)), rows)
        size = index_of(NUMBER_BYTES)
        array = context.make_array(kind)(context, build)
        shape, strides = (cgutils.pack_array(build, [number]) for number in (values[4], size))
        data = build.inttoptr(where, ir.FloatType().as_pointer())
        populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return array._getvalue()

    return kind(op, index, index, index, index), generate


line: Any = _line
"""line(op, which, step, row, width): so many numbers of a row of one of the operation's arrays."""


def index_of(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), number)


@njit(calls=True, borrows=True, nogil=True)
def multiply(op, step, rows):  # type: ignore[no-untyped-def]
    width, depth = op[SIZES], op[SIZES + 1]
    to, begin = line(op, 0, step, 0, width), line(op, 1, step, 0, width)
    left, right = line(op, 2, step, 0, depth), line(op, 3, step, 0, depth)
    first, second = (left, FIRST, op[1 + 2 * PLACE + 1], NEXT), (right, FIRST, NEXT_PANEL, depth * NEXT_PANEL)
    start = (begin, FIRST, op[1 + PLACE + 1])
    call_product(op[SIZES + 2], (rows, width, depth, (to, FIRST, op[2]), start, first, second))


@njit(borrows=True, nogil=True)
def add(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← a + b."""
    width = op[SIZES]
    for i in range(rows):
        to, more = line(op, 0, step, i, width), line(op, 1, step, i, width)
        for j in range(width):
            to[j] += more[j]


@njit(borrows=True, nogil=True)
def carry(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← b, and zeros in rows where c > 0."""
    width = op[SIZES]
    for i in range(rows):
        to, source = line(op, 0, step, i, width), line(op, 1, step, i, width)
        if line(op, 2, step, i, 1)[0] > ZERO:
            for j in range(width):
                to[j] = ZERO
        else:
            for j in range(width):
                to[j] = source[j]


@njit(borrows=True, nogil=True, fastmath=FAST)
def pick(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← b + Σ of the rows of a table that the picks name, four at a time."""
    width, count = op[SIZES], op[SIZES + 1]
    for i in range(rows):
        to, start, picks = (
            line(op, 0, step, i, width),
            line(op, 1, step, i, width),
            line(op, 3, step, i, count),
        )
        whole_fours = count // 4 * 4
        for j in range(width):
            to[j] = start[j]
        for s in range(0, whole_fours, 4):
            one, two = (
                line(op, 2, 0, np.int64(picks[s]), width),
                line(op, 2, 0, np.int64(picks[s + 1]), width),
            )
            three, four = (
                line(op, 2, 0, np.int64(picks[s + 2]), width),
                line(op, 2, 0, np.int64(picks[s + 3]), width),
            )
            for j in range(width):
                to[j] += (one[j] + two[j]) + (three[j] + four[j])
        for s in range(whole_fours, count):
            one = line(op, 2, 0, np.int64(picks[s]), width)
            for j in range(width):
                to[j] += one[j]


def outer(program: Program, out: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """out [m, n] ← out + leftᵀ · right, of left [..., N, m] and right [..., N, n]."""
    program.add(multiply_outer, out, left, right, sizes=(*out.shape, address(product, PRODUCT)))


@njit(calls=True, borrows=True, nogil=True)
def multiply_outer(op, step, rows):  # type: ignore[no-untyped-def]
    height, width = op[SIZES], op[SIZES + 1]
    to, left, right = line(op, 0, step, 0, width), line(op, 1, step, 0, height), line(op, 2, step, 0, width)
    place = (to, FIRST, op[2])
    first, second = (left, FIRST, NEXT, op[1 + PLACE + 1]), (right, FIRST, op[1 + 2 * PLACE + 1], NEXT_PANEL)
    call_product(op[SIZES + 2], (height, width, rows, place, place, first, second))


@njit(borrows=True, nogil=True, fastmath=FAST)
def sum_rows(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← a + Σ of the rows of b."""
    width = op[SIZES]
    to = line(op, 0, step, 0, width)
    for i in range(rows):
        more = line(op, 1, step, i, width)
        for j in range(width):
            to[j] += more[j]


@njit(borrows=True, nogil=True)
def pack_turned(op, step, rows):  # type: ignore[no-untyped-def]
    """W [n, k] → panels [n / 16, k, 16] of its transpose."""
    outputs, inputs, stride = op[SIZES], op[SIZES + 1], op[1 + PLACE + 1]
    to, source = line(op, 0, step, 0, PANEL), line(op, 1, step, 0, inputs)
    for first in range(0, outputs, PANEL):
        panel, width = first * inputs, min(NEXT_PANEL, outputs - first)
        turned = inputs // LANES * LANES if width == PANEL else 0
        for k in range(0, turned, LANES):
            at, half = panel + k * PANEL, first + LANES
            turn(to, source, (at, first * stride + k, stride))  # type: ignore[call-arg]  # numba gives the first
            turn(to, source, (at + LANES, half * stride + k, stride))
        for k in range(turned, inputs):
            for c in range(width):
                to[panel + k * PANEL + c] = source[(first + c) * stride + k]


@njit(borrows=True, nogil=True)
def pack_rows(op, step, rows):  # type: ignore[no-untyped-def]
    """W [k, n] → panels [n / 16, k, 16]."""
    depth, columns, stride = op[SIZES], op[SIZES + 1], op[1 + PLACE + 1]
    to, source = line(op, 0, step, 0, PANEL), line(op, 1, step, 0, columns)
    for first in range(0, columns, PANEL):
        width = min(NEXT_PANEL, columns - first)
        for k in range(depth):
            for c in range(width):
                to[(first * depth) + k * PANEL + c] = source[k * stride + first + c]
