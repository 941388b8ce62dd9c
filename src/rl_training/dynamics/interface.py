"""Interface of compiled environments; compiled loops call them by address, so one loop serves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types
from numba.core.typing.templates import Signature

from rl_training.compiling import address, call_at

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


call_reset, call_step, call_observe = call_at(RESET), call_at(STEP), call_at(OBSERVE)
