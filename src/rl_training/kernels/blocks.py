"""Dense layers and supports for a block of states at a time, inside compiled functions.

A block is an array [features, LANES]: each row has one feature of LANES states side by side, as vector registers have
them. So a layer is a product W X that needs no sum across a register, W is read as torch stores it, and a softmax over
atoms goes down the rows. What the compiler would not find in loops is written for vectors here: a layer takes about
half of the time of torch's for some dozen states, and a softmax over 601 atoms little more than half of the layer
that makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from rl_training.algorithms.value_transform import EPSILON
from rl_training.compiling import njit
from rl_training.kernels.functions import FAST, fast_tanh
from rl_training.kernels.supports import C1, C2, C3, C4, C5, C6, LEAST, LOG2_E, ONE_BITS, ROUND

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import Context
    from numba.core.typing.templates import Signature

# States in a block, and rows of a product that are computed at once: their sums fill half of the registers of AVX-512,
# where each number of W, once loaded, is used for two vectors, or of those that other processors have.
LANES, TILE = (32, 8) if binding.get_host_cpu_features().get("avx512f") else (16, 4)
WIDTHS = (LANES, 16, 8)  # lanes that are computed: with few states in a block the others are left out
ROWS = 64  # of a support that are summed up at once
CHAINS = 4  # of comparisons, which do not wait for each other
TANH, RELU = 1, 2  # as in `acting.ACTIVATIONS`
LINEAR = np.int64(0)  # none of them; for a literal numba would compile another product
SIDE = 8  # of the squares that are transposed in registers: states and features
NUMBER, INDEX, BITS = ir.FloatType(), ir.IntType(64), ir.IntType(32)


@dataclass(frozen=True)
class _Lanes:
    """The numbers of all lanes in a function that is being compiled; what is done to them is done to each."""

    builder: ir.IRBuilder
    value: ir.Value

    def __add__(self, other: _Lanes | np.float32 | float) -> _Lanes:
        return self._with(self.builder.fadd(self.value, self._value(other), flags=("contract",)))

    def __sub__(self, other: _Lanes | np.float32 | float) -> _Lanes:
        return self._with(self.builder.fsub(self.value, self._value(other), flags=("contract",)))

    def __mul__(self, other: _Lanes | np.float32 | float) -> _Lanes:
        return self._with(self.builder.fmul(self.value, self._value(other), flags=("contract",)))

    def at_least(self, other: _Lanes | np.float32 | float) -> _Lanes:
        """The larger of both; what is no number stays none."""
        low = self._value(other)
        return self._with(
            self.builder.select(self.builder.fcmp_ordered("<", self.value, low), low, self.value)
        )

    def exp2(self) -> _Lanes:
        """2ˣ, as `supports.exponentials` has it."""
        x = self.at_least(LEAST)
        rounded = x + ROUND
        f = x - (rounded - ROUND)
        power = f * C6
        for factor in (C5, C4, C3, C2, C1):
            power = (power + factor) * f
        count = self.value.type.count
        bits = ir.VectorType(BITS, count)
        shifted = self.builder.shl(self.builder.bitcast(rounded.value, bits), ir.Constant(bits, [23] * count))
        whole = self.builder.add(shifted, ir.Constant(bits, [ONE_BITS] * count))
        return (power + 1.0) * self._with(self.builder.bitcast(whole, self.value.type))

    def _with(self, value: ir.Value) -> _Lanes:
        return _Lanes(self.builder, value)

    def _value(self, other: _Lanes | np.float32 | float) -> ir.Value:
        if isinstance(other, _Lanes):
            return other.value
        return ir.Constant(self.value.type, [float(other)] * self.value.type.count)


class _Array(Protocol):
    """An array in a function that is being compiled."""

    data: ir.Value
    shape: ir.Value
    strides: ir.Value


class _Writer:
    """Loads and stores of the first `lanes` lanes, in a function that is being compiled."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder, self.lanes, self.vector = builder, lanes, ir.VectorType(NUMBER, lanes)

    def row(self, block: _Array, index: ir.Value) -> ir.Value:
        start = self.builder.gep(block.data, [self.builder.mul(index, INDEX(LANES))])
        return self.builder.bitcast(start, self.vector.as_pointer())

    def load(self, block: _Array, index: ir.Value) -> _Lanes:
        return _Lanes(self.builder, self.builder.load(self.row(block, index), align=4))

    def store(self, lanes: _Lanes, block: _Array, index: ir.Value) -> None:
        self.builder.store(lanes.value, self.row(block, index), align=4)

    def spread(self, number: ir.Value) -> _Lanes:
        """One number in all lanes."""
        return _Lanes(self.builder, spread(self.builder, number, self.vector))

    def in_steps(self, rows: ir.Value, sizes: Sequence[int], write: Callable[[int, ir.Value], None]) -> None:
        """write(size, first) for all rows: of the first size while there are as many, then of the next; powers of 2."""
        begin: ir.Value = INDEX(0)
        for size in sizes:
            end = self.builder.and_(rows, INDEX(-size))
            with cgutils.for_range_slice(self.builder, begin, end, INDEX(size)) as (first, _):
                write(size, first)
            begin = end

    def variable(self, start: _Lanes) -> ir.Value:
        place = cgutils.alloca_once(self.builder, self.vector)
        self.set(place, start)
        return place

    def get(self, place: ir.Value) -> _Lanes:
        return _Lanes(self.builder, self.builder.load(place))

    def set(self, place: ir.Value, lanes: _Lanes) -> None:
        self.builder.store(lanes.value, place)


def spread(builder: ir.IRBuilder, number: ir.Value, vector: ir.VectorType) -> ir.Value:
    """A vector of one number."""
    nothing, places = ir.Constant(vector, ir.Undefined), ir.VectorType(BITS, vector.count)
    first = builder.insert_element(nothing, number, BITS(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(places, [0] * vector.count))


def _compiled(write: Callable[..., None], lanes: int, arrays: int) -> Any:
    """What `write` writes, as numba wants it: a function of some arrays and then, maybe, an index."""

    def emit(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        views = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:arrays], arguments[:arrays], strict=True)
        ]
        write(_Writer(builder, lanes), *views, *arguments[arrays:])
        return context.get_dummy_value()

    return emit


def _product(lanes: int) -> Any:
    """max(W X + b, floor) for the first `lanes` of a block, some rows at a time: all their sums are in registers."""

    def write(
        writer: _Writer, weight: _Array, bias: _Array, block: _Array, out: _Array, floor: ir.Value
    ) -> None:
        builder = writer.builder
        rows, count = cgutils.unpack_tuple(builder, weight.shape)

        def tile(size: int, first: ir.Value) -> None:
            numbers = [builder.add(first, INDEX(r)) for r in range(size)]
            begins = [builder.mul(number, count) for number in numbers]
            sums = [
                writer.variable(writer.spread(builder.load(builder.gep(bias.data, [number]))))
                for number in numbers
            ]
            with cgutils.for_range(builder, count) as loop:
                x = writer.load(block, loop.index)
                for begin, total in zip(begins, sums, strict=True):
                    w = builder.load(builder.gep(weight.data, [builder.add(begin, loop.index)]))
                    writer.set(total, writer.get(total) + writer.spread(w) * x)
            for number, total in zip(numbers, sums, strict=True):
                writer.store(writer.get(total).at_least(writer.spread(floor)), out, number)

        writer.in_steps(rows, (TILE, 1), tile)

    @intrinsic
    def product(
        typing: Context,
        weight: types.Array,
        bias: types.Array,
        block: types.Array,
        out: types.Array,
        floor: types.Type,
    ) -> Any:
        return types.void(weight, bias, block, out, types.float32), _compiled(write, lanes, 4)

    return product


_wide_product, _half_product, _narrow_product = (_product(lanes) for lanes in WIDTHS)


@njit(nogil=True, fastmath=FAST)
def activate(block, activation):  # type: ignore[no-untyped-def]
    """f(X) in place, f being one of `acting.ACTIVATIONS`."""
    zero = np.float32(0.0)
    if activation == TANH:
        for j in range(len(block)):
            for i in range(LANES):
                block[j, i] = fast_tanh(block[j, i])
    elif activation == RELU:
        for j in range(len(block)):
            for i in range(LANES):
                # Not max(): what is no number stays none.
                block[j, i] = zero if block[j, i] < zero else block[j, i]


@njit(nogil=True)
def dense(block, weight, bias, states, activation):  # type: ignore[no-untyped-def]
    """f(W X + b): a block [n, LANES] of so many states → [m, LANES]; f is 0 for none, or one of `acting.ACTIVATIONS`.

    weight [m, n] and bias [m] are float32 and contiguous.
    """
    out = np.empty((len(weight), LANES), np.float32)
    floor = np.float32(0.0) if activation == RELU else np.float32(-np.inf)
    if states > WIDTHS[1]:
        _wide_product(weight, bias, block, out, floor)
    elif states > WIDTHS[2]:
        _half_product(weight, bias, block, out, floor)
    else:
        _narrow_product(weight, bias, block, out, floor)
    if activation == TANH:
        activate(out, activation)
    return out


def _transposed(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Eight vectors of eight numbers as eight others: the first of each number, the second of each, and so on.

    In three steps of one instruction for a vector: they take numbers, pairs and halves of two vectors in turn.
    """
    rows, kind = list(rows), ir.VectorType(BITS, SIDE)
    steps = (
        (1, 2, (0, 8, 1, 9, 4, 12, 5, 13)),
        (2, 2, (0, 1, 8, 9, 4, 5, 12, 13)),
        (4, 4, (0, 1, 2, 3, 8, 9, 10, 11)),
    )
    for distance, further, places in steps:
        chosen = [ir.Constant(kind, [place + start for place in places]) for start in (0, further)]
        for i in (i for i in range(SIDE) if not i & distance):
            pair = rows[i], rows[i + distance]
            rows[i], rows[i + distance] = (builder.shuffle_vector(*pair, mask) for mask in chosen)
    return [rows[i] for i in (0, 2, 1, 3, 4, 6, 5, 7)]


class _Square:
    """Eight states and eight of their features, in a function that is being compiled."""

    def __init__(self, builder: ir.IRBuilder, feature: ir.Value, state: ir.Value) -> None:
        self.builder, self.feature, self.state = builder, feature, state
        self.pointer = ir.VectorType(NUMBER, SIDE).as_pointer()

    def states(self, rows: _Array, numbers: Sequence[ir.Value]) -> list[ir.Value]:
        """Where the features of each state lie, its row having this number."""
        stride = cgutils.unpack_tuple(self.builder, rows.strides)[0]
        begin = self.builder.ptrtoint(self.builder.gep(rows.data, [self.feature]), INDEX)
        places = [self.builder.add(begin, self.builder.mul(number, stride)) for number in numbers]
        return [self.builder.inttoptr(place, self.pointer) for place in places]

    def features(self, block: _Array) -> list[ir.Value]:
        """Where each feature of the states lies."""
        lines = [self.builder.mul(number, INDEX(LANES)) for number in self.counted(self.feature)]
        places = [self.builder.gep(block.data, [self.builder.add(line, self.state)]) for line in lines]
        return [self.builder.bitcast(place, self.pointer) for place in places]

    def counted(self, first: ir.Value) -> list[ir.Value]:
        return [self.builder.add(first, INDEX(step)) for step in range(SIDE)]

    def load(self, places: Sequence[ir.Value]) -> list[ir.Value]:
        return [self.builder.load(place, align=4) for place in places]

    def store(self, vectors: Sequence[ir.Value], places: Sequence[ir.Value]) -> None:
        for vector, place in zip(vectors, places, strict=True):
            self.builder.store(vector, place, align=4)


def _read_rows(adds: bool) -> Any:
    """Put into a block, or add to it, the rows that an index names."""

    def write(
        writer: _Writer, block: _Array, rows: _Array, index: _Array, feature: ir.Value, state: ir.Value
    ) -> None:
        builder, square = writer.builder, _Square(writer.builder, feature, state)
        numbers = [builder.load(builder.gep(index.data, [place])) for place in square.counted(state)]
        vectors = _transposed(builder, square.load(square.states(rows, numbers)))
        places = square.features(block)
        if adds:
            before = square.load(places)
            vectors = [builder.fadd(*pair) for pair in zip(before, vectors, strict=True)]
        square.store(vectors, places)

    @intrinsic
    def read(
        typing: Context,
        block: types.Array,
        rows: types.Array,
        index: types.Array,
        feature: types.Type,
        state: types.Type,
    ) -> Any:
        return types.void(block, rows, index, types.int64, types.int64), _compiled(write, SIDE, 3)

    return read


def _write_rows() -> Any:
    """The opposite: from a block to rows one after the other."""

    def write(writer: _Writer, block: _Array, rows: _Array, feature: ir.Value, state: ir.Value) -> None:
        square = _Square(writer.builder, feature, state)
        vectors = _transposed(writer.builder, square.load(square.features(block)))
        square.store(vectors, square.states(rows, square.counted(state)))

    @intrinsic
    def store(
        typing: Context, block: types.Array, rows: types.Array, feature: types.Type, state: types.Type
    ) -> Any:
        return types.void(block, rows, types.int64, types.int64), _compiled(write, SIDE, 2)

    return store


_fill_square, _add_square, _store_square = _read_rows(adds=False), _read_rows(adds=True), _write_rows()
IN_ORDER = np.arange(LANES)


@njit(borrows=True, nogil=True)
def _in_squares(rows, states):  # type: ignore[no-untyped-def]
    """How many of so many states, and how many of their features, can be transposed in registers."""
    lie_together = rows.strides[1] == rows.itemsize
    return states - states % SIDE, (rows.shape[1] - rows.shape[1] % SIDE) * lie_together


@njit(nogil=True)
def to_block(rows):  # type: ignore[no-untyped-def]
    """States [n, features], n ≤ LANES, as a block; lanes without a state are 0."""
    states, features = rows.shape
    block = (
        np.zeros((features, LANES), np.float32) if states < LANES else np.empty((features, LANES), np.float32)
    )
    many, wide = _in_squares(rows, states)
    for j in range(0, wide, SIDE):
        for i in range(0, many, SIDE):
            _fill_square(block, rows, IN_ORDER, j, i)
    for i in range(states):
        for j in range(wide if i < many else 0, features):
            block[j, i] = rows[i, j]
    return block


@njit(nogil=True)
def from_block(block, rows):  # type: ignore[no-untyped-def]
    """The states of a block as rows [n, features]."""
    states, features = rows.shape
    many, wide = _in_squares(rows, states)
    for i in range(0, many, SIDE):
        for j in range(0, wide, SIDE):
            _store_square(block, rows, j, i)
    for i in range(many):
        for j in range(wide, features):
            rows[i, j] = block[j, i]
    for i in range(many, states):
        for j in range(features):
            rows[i, j] = block[j, i]


@njit(nogil=True)
def add_rows(block, table, index):  # type: ignore[no-untyped-def]
    """Add to each state of a block the row of a table that its index names."""
    states, features = len(index), table.shape[1]
    many, wide = _in_squares(table, states)
    for j in range(0, wide, SIDE):
        for i in range(0, many, SIDE):
            _add_square(block, table, index, j, i)
    for i in range(states):
        for j in range(wide if i < many else 0, features):
            block[j, i] += table[index[i], j]


@njit(nogil=True)
def add_actions(block, table, action):  # type: ignore[no-untyped-def]
    """Add to each state of a block what its action adds: the row that an index names, or a vector's sum of rows."""
    if action.ndim == 1:
        add_rows(block, table, action)
    else:
        for i in range(len(action)):
            for d in range(len(table)):
                for j in range(len(block)):
                    block[j, i] += action[i, d] * table[d, j]


def _shares(lanes: int) -> Any:
    """Σ eˣ and Σ (i - S) eˣ over the rows i of logits [2S + 1, LANES], x being the logits less the largest of a state.

    Some rows are summed up in float32 and these sums in float64: rounding does not add up over hundreds of atoms.
    """

    def write(writer: _Writer, logits: _Array, out: _Array) -> None:
        builder, double = writer.builder, ir.VectorType(ir.DoubleType(), lanes)
        rows, _ = cgutils.unpack_tuple(builder, logits.shape)
        tops = [writer.variable(writer.load(logits, INDEX(0))) for _ in range(CHAINS)]

        def take(size: int, first: ir.Value) -> None:
            for step, top in enumerate(tops[:size]):
                row = writer.load(logits, builder.add(first, INDEX(step)))
                writer.set(top, row.at_least(writer.get(top)))

        writer.in_steps(rows, (CHAINS, 1), take)
        highest = writer.get(tops[0])
        for top in tops[1:]:
            highest = highest.at_least(writer.get(top))
        zero = writer.spread(NUMBER(0.0))
        total, weighted, row = (cgutils.alloca_once(builder, writer.vector) for _ in range(3))
        sums = [cgutils.alloca_once_value(builder, ir.Constant(double, [0.0] * lanes)) for _ in range(2)]

        def add(place: ir.Value, more: ir.Value) -> None:
            builder.store(builder.fadd(builder.load(place), more), place)

        with cgutils.for_range_slice(builder, INDEX(0), rows, INDEX(ROWS)) as (first, _):
            end = builder.add(first, INDEX(ROWS))
            end = builder.select(builder.icmp_signed("<", end, rows), end, rows)
            for place in (total, weighted, row):
                writer.set(place, zero)
            with cgutils.for_range_slice(builder, first, end, INDEX(1)) as (index, _):
                share = ((writer.load(logits, index) - highest) * LOG2_E).exp2()
                writer.set(total, writer.get(total) + share)
                writer.set(weighted, writer.get(weighted) + share * writer.get(row))
                writer.set(row, writer.get(row) + 1.0)  # cheaper than converting the index
            part, moment = (builder.fpext(writer.get(place).value, double) for place in (total, weighted))
            # Rows were counted from the first of these; the middle one of all is 0.
            distance = builder.sitofp(builder.sub(first, builder.lshr(rows, INDEX(1))), ir.DoubleType())
            add(sums[0], part)
            add(sums[1], builder.fadd(moment, builder.fmul(spread(builder, distance, double), part)))
        for number, place in enumerate(sums):
            start = builder.gep(out.data, [INDEX(number * LANES)])
            builder.store(builder.load(place), builder.bitcast(start, double.as_pointer()), align=8)

    @intrinsic
    def shares(typing: Context, logits: types.Array, out: types.Array) -> Any:
        return types.void(logits, out), _compiled(write, lanes, 2)

    return shares


_wide_shares, _half_shares, _narrow_shares = (_shares(lanes) for lanes in WIDTHS)


@njit(nogil=True, error_model="numpy")
def decode_block(logits, out):  # type: ignore[no-untyped-def]
    """h⁻¹(Σᵢ pᵢ i) of logits [2S + 1, LANES] over -S … S: the scalars of the first states, as many as `out` has."""
    sums = np.empty((2, LANES))
    if len(out) > WIDTHS[1]:
        _wide_shares(logits, sums)
    elif len(out) > WIDTHS[2]:
        _half_shares(logits, sums)
    else:
        _narrow_shares(logits, sums)
    for i in range(len(out)):
        out[i] = expand_scalar(sums[1, i] / sums[0, i])


@njit(nogil=True, error_model="numpy")
def expand_scalar(y):  # type: ignore[no-untyped-def]
    """As `algorithms.value_transform.expand`, of one number: h⁻¹."""
    c = abs(y) + (1 + EPSILON)
    q = 2 * c / (math.sqrt(1 + 4 * EPSILON * c) + 1)
    return math.copysign(q * q - 1, y)
