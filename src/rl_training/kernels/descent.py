"""Steps of optimizers down a gradient, scaled to a norm of at most `most`, in one pass over the parameters.

The equations are those of `runtime.optim`. Nothing moves if the norm is not finite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import types

from rl_training.compiling import call_at, njit
from rl_training.kernels.functions import FAST
from rl_training.kernels.records import read_as

VECTOR, SETTINGS = types.float32[::1], types.float64[::1]
SIGNATURE = types.float64(*[VECTOR] * 5, SETTINGS, types.float64, types.float64)
call_descent = call_at(SIGNATURE)
SUMMED = 1024  # numbers that are summed up at once in single precision


class Descent(NamedTuple):
    """An optimizer: where its step lies, and what that moves."""

    where: int
    parameters: np.ndarray
    gradient: np.ndarray
    mean: np.ndarray  # [0] where it has none
    square: np.ndarray
    steps: np.ndarray  # [1], or [0] where it has none
    settings: np.ndarray


descent_at = read_as(types.NamedTuple((types.int64, *[VECTOR] * 5, SETTINGS), Descent))
NO_DESCENT = Descent._make((0, *[np.zeros(0, np.float32)] * 5, np.zeros(0)))  # of what does not learn


@njit(nogil=True, inline="always")
def descend(descent, rate, most):  # type: ignore[no-untyped-def]
    """`Optimizer.descend`, called in compiled code. → the norm of the gradient"""
    vectors = (descent.parameters, descent.gradient, descent.mean, descent.square, descent.steps)
    return call_descent(descent.where, (*vectors, descent.settings, rate, most))


# The step as Python calls it: compiled for Python too, it would take as long again.
@njit(calls=True, borrows=True, nogil=True)
def descend_at(where, parameters, gradient, mean, square, steps, settings, rate, most):  # type: ignore[no-untyped-def]
    return call_descent(where, (parameters, gradient, mean, square, steps, settings, rate, most))


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def norm_of(gradient):  # type: ignore[no-untyped-def]
    """√Σ g², part by part in single precision and the parts in double."""
    total = np.float64(0)
    for first in range(0, len(gradient), SUMMED):
        part, some = gradient[first : first + SUMMED], np.float32(0)
        for i in range(len(part)):
            some += part[i] * part[i]
        total += some
    return math.sqrt(total)


@njit(nogil=True, error_model="numpy", inline="always")
def _scale(norm, most):  # type: ignore[no-untyped-def]
    return np.float32(most / (norm + 1e-6)) if norm > most else np.float32(1)


@njit(borrows=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def adam(parameters, gradient, mean, square, count, settings, rate, most):  # type: ignore[no-untyped-def]
    """A step of Adam with `settings` (β₁, β₂, ε), the number `count` [1] counting up; → the norm of the gradient."""
    norm = norm_of(gradient)
    if not math.isfinite(norm):
        return norm
    count[0] += 1
    beta, gamma, epsilon = settings
    scale, first, second = _scale(norm, most), np.float32(beta), np.float32(gamma)
    new, squared = np.float32(1 - beta), np.float32(1 - gamma)
    step = np.float32(rate / (1 - beta ** count[0]))
    spread, least = np.float32(1 / math.sqrt(1 - gamma ** count[0])), np.float32(epsilon)
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        mean[i] = first * mean[i] + new * slope
        square[i] = second * square[i] + squared * slope * slope
        parameters[i] -= step * mean[i] / (np.sqrt(square[i]) * spread + least)
    return norm


@njit(borrows=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def two_rate_adam(parameters, gradient, mean, square, count, settings, rate, most):  # type: ignore[no-untyped-def]
    """The same with another rate in some ranges of the parameters; `settings`: β₁, β₂, ε, that rate, first, end, …"""
    norm = norm_of(gradient)
    if not math.isfinite(norm):
        return norm
    count[0] += 1
    beta, gamma = settings[0], settings[1]
    scale, first, second = _scale(norm, most), np.float32(beta), np.float32(gamma)
    new, squared = np.float32(1 - beta), np.float32(1 - gamma)
    bias = 1 - beta ** count[0]
    along, apart = np.float32(rate / bias), np.float32(settings[3] / bias)
    spread, least = np.float32(1 / math.sqrt(1 - gamma ** count[0])), np.float32(settings[2])
    start, end, part = 0, int(settings[4]), 4
    while start < len(parameters):
        step = along if part % 2 == 0 else apart
        for i in range(start, end):
            slope = gradient[i] = gradient[i] * scale
            mean[i] = first * mean[i] + new * slope
            square[i] = second * square[i] + squared * slope * slope
            parameters[i] -= step * mean[i] / (np.sqrt(square[i]) * spread + least)
        part += 1
        start, end = end, int(settings[part]) if part < len(settings) else len(parameters)
    return norm


@njit(borrows=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def rmsprop(parameters, gradient, mean, square, count, settings, rate, most):  # type: ignore[no-untyped-def]
    """A step of RMSprop with `settings` (decay, ε inside the root, ε outside of it); → the norm of the gradient."""
    norm = norm_of(gradient)
    if not math.isfinite(norm):
        return norm
    decay, inside, outside = settings
    scale, step, old, new = _scale(norm, most), np.float32(rate), np.float32(decay), np.float32(1 - decay)
    least, added = np.float32(inside), np.float32(outside)
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        square[i] = old * square[i] + new * slope * slope
        parameters[i] -= step * slope / (np.sqrt(square[i] + least) + added)
    return norm


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def laprop(vectors, ends, settings, count, rate):  # type: ignore[no-untyped-def]
    """Step number `count` of LaProp after adaptive gradient clipping; → the norm of the gradient.

    vectors: parameters, gradient, mean, square; ends: of each tensor in them; settings: β₁, β₂, ε, c
    """
    parameters, gradient, mean, square = vectors
    beta, gamma, epsilon, clip = settings
    norm, begin = norm_of(gradient), 0
    if not math.isfinite(norm):
        return norm
    first, second, least = np.float32(beta), np.float32(gamma), np.float32(epsilon)
    new, squared = np.float32(1 - beta), np.float32(1 - gamma)
    spread, step = np.float32(1 / (1 - gamma**count)), np.float32(rate / (1 - beta**count))
    for end in ends:
        length, slope_norm = norm_of(parameters[begin:end]), norm_of(gradient[begin:end])
        scale = np.float32(min(1.0, clip * max(1e-3, length) / max(1e-30, slope_norm)))
        for i in range(begin, end):
            slope = gradient[i] = gradient[i] * scale
            square[i] = second * square[i] + squared * slope * slope
            mean[i] = first * mean[i] + new * (slope / (np.sqrt(square[i] * spread) + least))
            parameters[i] -= step * mean[i]
        begin = end
    return norm
