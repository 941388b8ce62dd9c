"""Matrix products in tiles whose sums stay in the processor's registers: what fast convolutions are made of.

A compiler keeps a sum in memory if it lies in an array, and then every multiplication waits for a load and a store.
Here the sums are values of the compiler's own, a few vectors, so that a multiplication and an addition of all numbers
of a vector is one instruction, and two of them are done at once. A vector has sixteen numbers with AVX-512 and eight
elsewhere; each sum is one chain of additions either way, so the numbers are the same.

numba keeps what it compiled until the file of the compiled function changes: a change here asks for one there.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import Context
    from numba.core.typing.templates import Signature

COLUMNS = 16  # of a tile
# Rows of a tile, at most: six of two vectors are twelve of sixteen registers, and twelve of one leave enough of 32.
# Tiles of twice the columns have fewer rows: more additions for each number that is loaded.
LANES, ROWS, WIDE_ROWS = (16, 12, 8) if binding.get_host_cpu_features().get("avx512f") else (8, 6, 3)
NUMBER_BYTES, INDEX_BYTES = 4, 8
NUMBER, INDEX, LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(NUMBER, LANES)


@functools.cache
def has_fused_multiplication() -> bool:
    """Whether the processor multiplies and adds in one instruction; else each would be a call of a function."""
    return platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("fma"))


def strips(rows: int, most: int = ROWS) -> tuple[int, int, int]:
    """`rows` in as few strips as there can be, all of `height` but for some that are one higher.

    → how many strips, how many of them are higher, and `height`.
    """
    count = -(-rows // most)
    return count, rows % count, rows // count


def _products(adds: bool, columns: int = COLUMNS, most: int = ROWS) -> Any:
    @intrinsic(prefer_literal=True)
    def products(
        typing: Context,
        rows: types.IntegerLiteral,
        depth: types.IntegerLiteral,
        repeats: types.Integer,
        out: types.UniTuple,
        left: types.UniTuple,
        right: types.UniTuple,
    ) -> Any:
        count, higher, height = strips(rows.literal_value, most)

        def generate(
            context: BaseContext, build: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
        ) -> ir.Value:
            _, _, times, *factors = values
            addresses = [cgutils.unpack_tuple(build, factor) for factor in factors]
            done = 0
            for some, size in ((higher, height + 1), (count - higher, height)):
                with cgutils.for_range(build, INDEX(some)) as strip:
                    first = build.add(INDEX(done), build.mul(strip.index, INDEX(size)))
                    _tile(build, adds, columns, size, depth.literal_value, times, first, *addresses)
                done += some * size
            return context.get_dummy_value()

        places = (types.UniTuple(types.intp, len(numbers)) for numbers in (out, left, right))
        return types.void(rows, depth, types.intp, *places), generate

    return products


def _tile(
    build: ir.IRBuilder,
    adds: bool,
    columns: int,
    height: int,
    depth: int,
    times: ir.Value,
    first: ir.Value,
    out: Sequence[ir.Value],
    left: Sequence[ir.Value],
    right: Sequence[ir.Value],
) -> None:
    """Some rows from the `first` on."""
    fma = cgutils.get_or_insert_function(
        build.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )

    def after(address: ir.Value, stride: ir.Value, steps: int) -> ir.Value:
        return build.add(address, build.mul(stride, INDEX(steps)))

    def row(start: ir.Value, offsets: ir.Value, m: int) -> ir.Value:
        place = build.add(offsets, build.mul(build.add(first, INDEX(m)), INDEX(INDEX_BYTES)))
        return build.add(start, build.load(build.inttoptr(place, INDEX.as_pointer())))

    def vectors(address: ir.Value) -> list[ir.Value]:
        places = (build.add(address, INDEX(NUMBER_BYTES * lane)) for lane in range(0, columns, LANES))
        return [build.inttoptr(place, VECTOR.as_pointer()) for place in places]

    def in_all_lanes(address: ir.Value) -> ir.Value:
        number = build.load(build.inttoptr(address, NUMBER.as_pointer()), align=NUMBER_BYTES)
        one = build.insert_element(ir.Constant(VECTOR, ir.Undefined), number, LANE(0))
        return build.shuffle_vector(one, one, ir.Constant(ir.VectorType(LANE, LANES), [0] * LANES))

    each = columns // LANES  # vectors of a row
    cells = [cell for m in range(height) for cell in vectors(row(out[0], out[1], m))]
    lines = [row(left[0], left[1], m) for m in range(height)]
    # LLVM turns these places, whose addresses are never taken, into registers.
    nothing = ir.Constant(VECTOR, [0.0] * LANES)
    first_sums = (build.load(cell, align=NUMBER_BYTES) if adds else nothing for cell in cells)
    sums = [cgutils.alloca_once_value(build, value) for value in first_sums]
    with cgutils.for_range(build, times) as loop:
        shift = build.mul(loop.index, left[3])
        start = build.add(right[0], build.mul(loop.index, right[2]))
        for k in range(depth):
            factors = [build.load(part, align=NUMBER_BYTES) for part in vectors(after(start, right[1], k))]
            for m in range(height):
                number = in_all_lanes(after(build.add(lines[m], shift), left[2], k))
                for factor, place in zip(factors, sums[each * m : each * (m + 1)], strict=True):
                    build.store(build.call(fma, [number, factor, build.load(place)]), place)
    for cell, place in zip(cells, sums, strict=True):
        build.store(build.load(place), cell, align=NUMBER_BYTES)


add_products: Any = _products(adds=True)
"""out[m, :] += Σ_r Σ_k left[m, r, k] · right[r, k, :] in single precision, for 16 columns.

add_products(rows, depth, repeats, out, left, right) with m < rows and k < depth, both constants, and r < repeats.
`out` is an address and the address of each row's offset from it, `left` the same and the strides of k and r, and
`right` an address and the strides of k and r, all in bytes. All k are written out: `depth` should be some dozen.
"""

put_products: Any = _products(adds=False)
"""The same products as out[m, :] = …, whatever was there."""

put_wide_products: Any = _products(False, 2 * COLUMNS, WIDE_ROWS)
"""The same for 32 columns."""
