"""What a compiled environment consists of, and how compiled loops call it: by address, so one loop serves them all.

numba compiles a loop anew for each function that it is given, and cannot keep the result between processes. Given an
address instead, one compiled loop is kept for all environments; an indirect call costs some nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

STATE, CHANCE, ACTION, SEEN = types.float64[::1], types.uint64[::1], types.float64[::1], types.float32[::1]
RESET: Signature = types.void(STATE, CHANCE)
STEP: Signature = types.Tuple((types.float64, types.boolean))(STATE, ACTION, CHANCE)
OBSERVE: Signature = types.void(STATE, SEEN)

Compiled = Callable[..., Any]  # a function of `njit`


class Dynamics(NamedTuple):
    """An environment as three compiled functions of its state, a row of numbers [S] that holds all there is to know.

    reset(state, chance)                              writes the state of a new episode
    step(state, action, chance) -> reward, terminated  changes the state
    observe(state, obs)                               writes what is seen, and after it, if `masked`, the action mask

    `action` is what Gymnasium's `step` gets, as numbers [A] (an index is one), and `obs` the observation, flat, in
    single precision; a mask has its place there whether an algorithm reads it or not. Chance comes from
    `uniform(chance)` and its like (`dynamics/chance.py`) and from nowhere else. Time limits are no part of it.
    """

    reset: Compiled
    step: Compiled
    observe: Compiled
    # What each number of a state can be. Compiled code looks at no bounds, and a checkpoint may have been forged.
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    masked: bool = False

    def addresses(self) -> tuple[int, int, int]:
        """Where the three functions lie."""
        functions = ((self.reset, RESET), (self.step, STEP), (self.observe, OBSERVE))
        reset, step, observe = (address(function, signature) for function, signature in functions)
        return reset, step, observe


def address(function: Any, signature: Signature) -> int:
    """The address of a function compiled for this signature; its result is converted."""
    compiled = function.get_compile_result(signature)
    where: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return where


def _caller(signature: Signature) -> Any:
    """The call of a function of this signature at an address."""

    def generate(context: Any, build: ir.IRBuilder, typed: Any, values: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        place = build.inttoptr(values[0], kind.as_pointer())
        status, returned = convention.call_function(
            build, place, signature.return_type, signature.args, values[1:]
        )
        with cgutils.if_unlikely(build, status.is_error):
            convention.return_status_propagate(build, status)
        return returned

    return generate


@intrinsic
def call_reset(typing: Any, where: Any, state: Any, chance: Any) -> Any:
    return RESET.return_type(types.intp, *RESET.args), _caller(RESET)


@intrinsic
def call_step(typing: Any, where: Any, state: Any, action: Any, chance: Any) -> Any:
    return STEP.return_type(types.intp, *STEP.args), _caller(STEP)


@intrinsic
def call_observe(typing: Any, where: Any, state: Any, obs: Any) -> Any:
    return OBSERVE.return_type(types.intp, *OBSERVE.args), _caller(OBSERVE)
