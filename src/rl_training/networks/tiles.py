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
def _add_products(typing: Any, rows: Any, depth: Any, repeats: Any, out: Any, left: Any, right: Any) -> Any:
    height, length = rows.literal_value, depth.literal_value

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _, _, times, *factors = values
        out, left, right = (cgutils.unpack_tuple(build, factor) for factor in factors)
        fma = cgutils.get_or_insert_function(
            build.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

        def after(address: Any, stride: Any, steps: int) -> Any:
            return build.add(address, build.mul(stride, INT64(steps)))

        def row(start: Any, offsets: Any, m: int) -> Any:
            place = build.inttoptr(after(offsets, INT64(8), m), INT64.as_pointer())
            return build.add(start, build.load(place))

        def vectors(address: Any) -> list[Any]:
            places = (build.add(address, INT64(4 * lane)) for lane in range(0, COLUMNS, LANES))
            return [build.inttoptr(place, VECTOR.as_pointer()) for place in places]

        def everywhere(address: Any) -> Any:
            number = build.load(build.inttoptr(address, FLOAT.as_pointer()), align=4)
            first = build.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INT32(0))
            return build.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))

        cells = [cell for m in range(height) for cell in vectors(row(out[0], out[1], m))]
        lines = [row(left[0], left[1], m) for m in range(height)]
        # LLVM turns these places, whose addresses are never taken, into registers.
        sums = [cgutils.alloca_once_value(build, build.load(cell, align=4)) for cell in cells]
        with cgutils.for_range(build, times) as loop:
            shift = build.mul(loop.index, left[3])
            start = build.add(right[0], build.mul(loop.index, right[2]))
            for k in range(length):
                columns = [build.load(part, align=4) for part in vectors(after(start, right[1], k))]
                for m in range(height):
                    number = everywhere(after(build.add(lines[m], shift), left[2], k))
                    for column, place in zip(columns, sums[2 * m : 2 * m + 2], strict=True):
                        build.store(build.call(fma, [number, column, build.load(place)]), place)
        for cell, place in zip(cells, sums, strict=True):
            build.store(build.load(place), cell, align=4)
        return context.get_dummy_value()

    places = (types.UniTuple(types.intp, len(numbers)) for numbers in (out, left, right))
    return types.void(rows, depth, types.intp, *places), generate


add_products: Any = _add_products
"""out[m, :] += Σ_r Σ_k left[m, r, k] · right[r, k, :] in single precision, for 16 columns.

add_products(rows, depth, repeats, out, left, right) with m < rows and k < depth, both constants, and r < repeats.
`out` is an address and the address of each row's offset from it, `left` the same and the strides of k and r, and
`right` an address and the strides of k and r, all in bytes.
"""
