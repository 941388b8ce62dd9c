"""Slopes through activations in vectors of a panel, row after row, with the sums of biases in registers.

The compiler would have to check for each row whether slopes, values and biases overlap, which takes longer than a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from rl_training.kernels.products import INDEX, NUMBER, NUMBER_BYTES, WIDE, fused

Derivative = Callable[[ir.IRBuilder, Any, Any], Any]  # (g, h) -> g f', where f' is a function of h


def _down(derivative: Derivative) -> Any:
    """A panel of slopes: g ← g f'(h) in place, and b ← b + Σ g if the layer learns.

    It is called with the places of g, h and b, the numbers from row to row, the number of rows, and whether it learns.
    """
    lanes, count = WIDE
    vector = ir.VectorType(NUMBER, lanes)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        memory, bias = (
            context.make_array(signature.args[i])(context, build, values[i]).data for i in range(2)
        )
        g, h, b, stride, rows, learns = cgutils.unpack_tuple(build, values[2])

        def at(array: Any, place: Any, v: int) -> Any:
            first = build.gep(array, [build.add(place, INDEX(lanes * v))])
            return build.bitcast(first, vector.as_pointer())

        def load(array: Any, place: Any, v: int) -> Any:
            return build.load(at(array, place, v), align=NUMBER_BYTES)

        # LLVM turns these places, whose addresses are never taken, into registers.
        sums = [cgutils.alloca_once_value(build, load(bias, b, v)) for v in range(count)]
        with cgutils.for_range(build, rows) as loop:
            row = build.mul(loop.index, stride)
            here, there = build.add(g, row), build.add(h, row)
            for v in range(count):
                slope = derivative(build, load(memory, here, v), load(memory, there, v))
                build.store(slope, at(memory, here, v), align=NUMBER_BYTES)
                build.store(build.fadd(build.load(sums[v]), slope), sums[v])
        with build.if_then(learns):
            for v in range(count):
                build.store(build.load(sums[v]), at(bias, b, v), align=NUMBER_BYTES)
        return context.get_dummy_value()

    @intrinsic
    def down(typing: Any, memory: Any, bias: Any, places: Any) -> Any:
        return types.void(memory, bias, types.Tuple((*[types.int64] * 5, types.boolean))), generate

    return down


def _all(like: Any, number: float) -> Any:
    return ir.Constant(like.type, [number] * like.type.count)


def _of_tanh(build: ir.IRBuilder, slope: Any, value: Any) -> Any:
    return build.fmul(slope, fused(build, build.fneg(value), value, _all(value, 1.0)))


def _of_relu(build: ir.IRBuilder, slope: Any, value: Any) -> Any:
    above = build.fcmp_ordered(">", value, _all(value, 0.0))
    return build.fmul(slope, build.select(above, _all(value, 1.0), _all(value, 0.0)))


def _of_elu(build: ir.IRBuilder, slope: Any, value: Any) -> Any:
    one = _all(value, 1.0)
    below = build.fcmp_ordered("<", value, _all(value, 0.0))
    return build.fmul(slope, build.select(below, build.fadd(value, one), one))


def _kept(build: ir.IRBuilder, slope: Any, derivative: Any) -> Any:
    return build.fmul(slope, derivative)


def _plain(build: ir.IRBuilder, slope: Any, value: Any) -> Any:
    return slope


down_tanh, down_relu, down_elu, down_kept, down_plain = map(
    _down, (_of_tanh, _of_relu, _of_elu, _kept, _plain)
)
