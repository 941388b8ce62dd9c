"""Steps of optimizers down a gradient, scaled to a norm of at most `most`, in one pass over the parameters.

The equations are those of `runtime.optim`. Nothing moves if the norm is not finite.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.acting import FAST

SUMMED = 1024  # numbers that are summed up at once in single precision


@njit(nogil=True, fastmath=FAST, error_model="numpy")
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


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def adam(parameters, gradient, mean, square, count, rate, betas, epsilon, most):  # type: ignore[no-untyped-def]
    """A step of Adam, the number `count` [1] counting up; → the norm of the gradient."""
    norm = norm_of(gradient)
    if not math.isfinite(norm):
        return norm
    count[0] += 1
    scale, first, second = _scale(norm, most), np.float32(betas[0]), np.float32(betas[1])
    new, squared = np.float32(1 - betas[0]), np.float32(1 - betas[1])
    step = np.float32(rate / (1 - betas[0] ** count[0]))
    spread, least = np.float32(1 / math.sqrt(1 - betas[1] ** count[0])), np.float32(epsilon)
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        mean[i] = first * mean[i] + new * slope
        square[i] = second * square[i] + squared * slope * slope
        parameters[i] -= step * mean[i] / (np.sqrt(square[i]) * spread + least)
    return norm


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def rmsprop(parameters, gradient, square, rate, decay, epsilon, most):  # type: ignore[no-untyped-def]
    """A step of RMSprop with ε inside the root; → the norm of the gradient."""
    norm = norm_of(gradient)
    if not math.isfinite(norm):
        return norm
    scale, step, old, new = _scale(norm, most), np.float32(rate), np.float32(decay), np.float32(1 - decay)
    least = np.float32(epsilon)
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        square[i] = old * square[i] + new * slope * slope
        parameters[i] -= step * slope / np.sqrt(square[i] + least)
    return norm
