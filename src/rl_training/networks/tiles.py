"""A tile of a matrix product whose sums stay in the processor's registers: what fast convolutions are made of.

A compiler keeps a sum in memory if it lies in an array, and then every multiplication waits for a load and a store.
Here the sums are values of the compiler's own, a few vectors of eight numbers, so that a multiplication and an
addition of all eight is one instruction, and two of them are done at once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
COLUMNS = 2 * LANES  # of a tile
ROWS = 6  # at most: twelve vectors of sums, two of the right factor and two spare ones fill sixteen registers
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)


def strips(rows: int) -> tuple[int, int, int]:
    """`rows` in as few strips as there can be, all of `height` but for some that are one higher.

    → how many strips, how many of them are higher, and `height`.
    """
    count = -(-rows // ROWS)
    return count, rows % count, rows // count


@intrinsic(prefer_literal=True)
def add_products(  # type: ignore[no-untyped-def]
    typing, rows, depth, repeats, out, out_row, left, left_row, left_depth, left_repeat, right, right_depth, right_repeat
):
    """out[m, :] += Σ_r Σ_k left[m, r, k] · right[r, k, :] in single precision, for 16 columns.

    `out`, `left` and `right` are addresses, and all else but the three counts are strides in bytes. m < `rows` and
    k < `depth` must be constants, r < `repeats` need not.
    """
    arguments = (
        rows,
        depth,
        repeats,
        out,
        out_row,
        left,
        left_row,
        left_depth,
        left_repeat,
        right,
        right_depth,
        right_repeat,
    )
    height, length = rows.literal_value, depth.literal_value

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        numbers = [
            context.cast(build, value, kind, types.intp)
            for value, kind in zip(values, signature.args, strict=True)
        ]
        _, _, times, out, out_row, left, left_row, left_depth, left_repeat, right, right_depth, right_repeat = (
            numbers
        )
        fma = cgutils.get_or_insert_function(
            build.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

        def after(address: Any, stride: Any, steps: int) -> Any:
            return build.add(address, build.mul(stride, INT64(steps)))

        def vector(address: Any) -> Any:
            return build.inttoptr(address, VECTOR.as_pointer())

        def vectors(address: Any) -> list[Any]:
            return [vector(build.add(address, INT64(4 * lane))) for lane in range(0, COLUMNS, LANES)]

        def everywhere(address: Any) -> Any:
            number = build.load(build.inttoptr(address, FLOAT.as_pointer()), align=4)
            first = build.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INT32(0))
            return build.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))

        cells = [cell for m in range(height) for cell in vectors(after(out, out_row, m))]
        # LLVM turns these places, whose addresses are never taken, into registers.
        sums = [cgutils.alloca_once_value(build, build.load(cell, align=4)) for cell in cells]
        with cgutils.for_range(build, times) as loop:
            left_here = build.add(left, build.mul(loop.index, left_repeat))
            right_here = build.add(right, build.mul(loop.index, right_repeat))
            for k in range(length):
                factors = [build.load(part, align=4) for part in vectors(after(right_here, right_depth, k))]
                for m in range(height):
                    number = everywhere(after(after(left_here, left_depth, k), left_row, m))
                    for factor, place in zip(factors, sums[2 * m : 2 * m + 2], strict=True):
                        build.store(build.call(fma, [number, factor, build.load(place)]), place)
        for cell, place in zip(cells, sums, strict=True):
            build.store(build.load(place), cell, align=4)
        return context.get_dummy_value()

    return types.void(*arguments), generate
