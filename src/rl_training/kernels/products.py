"""Matrix products of any size in tiles whose sums stay in the processor's registers.

`tiles.py` writes its sizes out, for convolutions of a few known shapes. Here all sizes are numbers of the running
program, so that one compiled function serves every layer and every batch.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from rl_training.compiling import call_at, njit

LANES = 8
PANEL = 2 * LANES  # columns of a wide tile; narrow ones have half of them
NUMBER, INDEX, LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
NUMBER_BYTES = 4
# A panel is one register of AVX-512 and two of others, which have only sixteen of them. The sums are the same.
WHOLE = bool(binding.get_host_cpu_features().get("avx512f"))
TALL = 8 if WHOLE else 6  # rows of the tallest wide tile


def _tile(height: int, lanes: int, count: int) -> Any:
    """`height` rows of `product`, each of `count` vectors of sums: at most twelve of the sixteen registers."""
    vector = ir.VectorType(NUMBER, lanes)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        out, start, left, right = (
            context.make_array(signature.args[i])(context, build, values[i]).data for i in range(4)
        )
        o, o_row, s, s_row, x, x_row, x_step, r, r_step = cgutils.unpack_tuple(build, values[5])

        def vectors(array: Any, place: Any) -> list[Any]:
            places = (build.gep(array, [build.add(place, INDEX(lanes * v))]) for v in range(count))
            return [build.bitcast(at, vector.as_pointer()) for at in places]

        def rows(first: Any, stride: Any) -> list[Any]:
            return [build.add(first, build.mul(stride, INDEX(m))) for m in range(height)]

        def in_all_lanes(place: Any) -> Any:
            number = build.load(build.gep(left, [place]), align=NUMBER_BYTES)
            one = build.insert_element(ir.Constant(vector, ir.Undefined), number, LANE(0))
            return build.shuffle_vector(one, one, ir.Constant(ir.VectorType(LANE, lanes), [0] * lanes))

        begins = [at for row in rows(s, s_row) for at in vectors(start, row)]
        # LLVM turns these places, whose addresses are never taken, into registers.
        sums = [cgutils.alloca_once_value(build, build.load(at, align=NUMBER_BYTES)) for at in begins]
        lines = rows(x, x_row)
        with cgutils.for_range(build, values[4]) as loop:
            columns = vectors(right, build.add(r, build.mul(loop.index, r_step)))
            loaded = [build.load(column, align=NUMBER_BYTES) for column in columns]
            step = build.mul(loop.index, x_step)
            for m in range(height):
                number = in_all_lanes(build.add(lines[m], step))
                for column, place in zip(loaded, sums[count * m : count * (m + 1)], strict=True):
                    build.store(fused(build, number, column, build.load(place)), place)
        cells = [at for row in rows(o, o_row) for at in vectors(out, row)]
        for cell, place in zip(cells, sums, strict=True):
            build.store(build.load(place), cell, align=NUMBER_BYTES)
        return context.get_dummy_value()

    @intrinsic
    def tile(typing: Any, out: Any, start: Any, left: Any, right: Any, depth: Any, places: Any) -> Any:
        return types.void(out, start, left, right, types.int64, types.UniTuple(types.int64, 9)), generate

    return tile


WIDE = (PANEL, 1) if WHOLE else (LANES, 2)
_one, _two, _four, _tall = (_tile(height, *WIDE) for height in (1, 2, 4, TALL))
_thin_one, _thin_four, _thin_twelve = (_tile(height, LANES, 1) for height in (1, 4, 12))


@intrinsic
def turn(typing: Any, to: Any, source: Any, places: Any) -> Any:
    """to[k · PANEL + c] = source[c · row + k] for k, c < 8, each from its place on: (place, place, row).

    Halves, quarters and single lanes of pairs of rows change places in turn.
    """

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        out, left = (context.make_array(signature.args[i])(context, build, values[i]).data for i in range(2))
        o, x, x_row = cgutils.unpack_tuple(build, values[2])
        vector, lanes = ir.VectorType(NUMBER, LANES), range(LANES)

        def line(array: Any, first: Any, stride: Any, m: int) -> Any:
            at = build.add(first, build.mul(stride, INDEX(m)))
            return build.bitcast(build.gep(array, [at]), vector.as_pointer())

        def chosen(one: Any, other: Any, numbers: list[int]) -> Any:
            mask = ir.Constant(ir.VectorType(LANE, LANES), numbers)
            return build.shuffle_vector(one, other, mask)

        rows = [build.load(line(left, x, x_row, m), align=NUMBER_BYTES) for m in lanes]
        for apart in (4, 2, 1):
            for m in (m for m in lanes if not m & apart):
                one, other = rows[m], rows[m + apart]
                rows[m] = chosen(one, other, [k + LANES - apart if k & apart else k for k in lanes])
                rows[m + apart] = chosen(one, other, [k + LANES if k & apart else k + apart for k in lanes])
        for m in lanes:
            build.store(rows[m], line(out, o, INDEX(PANEL), m), align=NUMBER_BYTES)
        return context.get_dummy_value()

    return types.void(to, source, types.UniTuple(types.int64, 3)), generate


def fused(build: ir.IRBuilder, one: Any, other: Any, added: Any) -> Any:
    """one · other + added, rounded once, of vectors."""
    kind, name = ir.FunctionType(one.type, [one.type] * 3), f"llvm.fma.v{one.type.count}f32"
    return build.call(cgutils.get_or_insert_function(build.module, kind, name), [one, other, added])


ARRAY = types.float32[::1]
AT = (ARRAY, types.int64, types.int64)
# Larger kernels call it by its address: linked into each of them, it would be compiled for each again.
PRODUCT = types.void(*[types.int64] * 3, *[types.Tuple(AT)] * 2, *[types.Tuple((*AT, types.int64))] * 2)
call_product = call_at(PRODUCT)


@njit(borrows=True, nogil=True)
def product(rows, width, depth, to, begin, first, second):  # type: ignore[no-untyped-def]
    """out[m, n] = start[m, n] + Σ_k left[m, k] · right[k, n] in single precision, for m < rows, n < width, k < depth.

        to = (out, place, row)            place: of the first number in a flat array
        begin = (start, place, row)       row: numbers from one m to the next; `start` may be `out` itself
        first = (left, place, row, step)  step: numbers from one k to the next
        second = (right, place, step, panel)

    Columns come in panels of 16: `out` and `start` have as many as fill the last panel, and that of `right` begins
    `panel` numbers after the one before it. Of a last panel that is at most half full, half is computed.
    """
    (out, o, o_row), (start, s, s_row) = to, begin
    (left, x, x_row, step), (right, r, r_step, panel) = first, second
    while width > LANES:
        m = 0
        while rows - m >= TALL:
            at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
            _tall(out, start, left, right, depth, at)
            m += TALL
        if rows - m >= 4:
            at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
            _four(out, start, left, right, depth, at)
            m += 4
        if rows - m >= 2:
            at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
            _two(out, start, left, right, depth, at)
            m += 2
        if rows > m:
            at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
            _one(out, start, left, right, depth, at)
        o, s, r, width = o + PANEL, s + PANEL, r + panel, width - PANEL
    m = 0 if width > 0 else rows
    while rows - m >= 12:
        at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
        _thin_twelve(out, start, left, right, depth, at)
        m += 12
    while rows - m >= 4:
        at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
        _thin_four(out, start, left, right, depth, at)
        m += 4
    while rows > m:
        at = (o + m * o_row, o_row, s + m * s_row, s_row, x + m * x_row, x_row, step, r, r_step)
        _thin_one(out, start, left, right, depth, at)
        m += 1
