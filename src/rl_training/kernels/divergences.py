"""KL(p ‖ q) of a policy q that learns from a policy p that holds it, and its slopes, row by row.

p is known by the parameters [N, P] of its action distributions, logits of choices as log-probabilities: the anchors.
The equations are those of `algorithms.distributions`, the families those of `kernels.families`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from rl_training.algorithms.slopes import DIVERGENCE
from rl_training.compiling import address, call_at, njit
from rl_training.kernels.families import CHOICE, COINS, FIRST, KIND, SCALE, SIZE

FAMILY, ROWS, INDICES = types.int64[:, ::1], types.float32[:, ::1], types.int64[::1]
MEASURE = types.void(FAMILY, ROWS, ROWS, INDICES, ROWS)
SLOPES = types.void(FAMILY, ROWS, ROWS, INDICES, ROWS, ROWS)
call_divergence, call_divergence_slopes = call_at(MEASURE), call_at(SLOPES)
UNANCHORED = np.zeros((0, 0), np.float32)
ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)


def divergence_addresses() -> np.ndarray:
    """Where `measure_divergence` and `divergence_slopes` lie: losses without anchors need not compile them."""
    return np.array([address(measure_divergence, MEASURE), address(divergence_slopes, SLOPES)])


@njit(nogil=True, error_model="numpy")
def normalize_anchors(family, anchors):  # type: ignore[no-untyped-def]
    """Logits of choices [N, P] become log-probabilities, in place."""
    for line in anchors:
        for part in family:
            if part[KIND] == CHOICE:
                first, end = part[FIRST], part[FIRST] + part[SIZE]
                top, total = line[first], 0.0
                for j in range(first + 1, end):
                    top = max(top, line[j])
                for j in range(first, end):
                    total += math.exp(line[j] - top)
                level = np.float32(top + math.log(total))
                for j in range(first, end):
                    line[j] -= level


@njit(nogil=True, error_model="numpy")
def measure_divergence(family, outputs, anchors, rows, known):  # type: ignore[no-untyped-def]
    """KL into its column of `known` [n, 4], from outputs [n, ...] as `evaluate_actions` left them."""
    for i in range(len(outputs)):
        line, anchor, total = outputs[i], anchors[rows[i]], ZERO
        for part in family:
            first, size = part[FIRST], part[SIZE]
            if part[KIND] == CHOICE:
                for j in range(first, first + size):
                    total += np.float32(math.exp(anchor[j])) * (anchor[j] - line[j])
            elif part[KIND] == COINS:
                for j in range(first, first + size):
                    total += _sigmoid(anchor[j]) * (anchor[j] - line[j])
                    total += _softplus(line[j]) - _softplus(anchor[j])
            else:
                for j in range(first, first + size):
                    k = part[SCALE] + j - first
                    away, spread = line[j] - anchor[j], line[k] - anchor[k]
                    square = np.float32(math.exp(-TWO * spread))
                    square += away * away * np.float32(math.exp(-TWO * line[k]))
                    total += spread + HALF * square - HALF
        known[i, DIVERGENCE] = total


@njit(nogil=True, error_model="numpy")
def divergence_slopes(family, outputs, anchors, rows, known, slopes):  # type: ignore[no-untyped-def]
    """Add to slopes [n, ...] in what the network put out those of a loss with slopes `known` [n, 4] in KL.

    of logits:  ∂KL / ∂lⱼ = qⱼ - pⱼ        of a coin: ∂KL / ∂l = q - p
    of normals: ∂KL / ∂μ = (μ - μ_p) / σ²,  ∂KL / ∂log σ = 1 - σ_p² / σ² - (μ - μ_p)² / σ²

    All are exactly 0 where q is p: an optimizer that divides by the size of slopes would make steps of any rest.
    """
    for i in range(len(outputs)):
        line, slope, anchor, weight = outputs[i], slopes[i], anchors[rows[i]], known[i, DIVERGENCE]
        for part in family:
            first, size = part[FIRST], part[SIZE]
            if part[KIND] == CHOICE:
                for j in range(first, first + size):
                    slope[j] += weight * np.float32(math.exp(line[j]) - math.exp(anchor[j]))
            elif part[KIND] == COINS:
                for j in range(first, first + size):
                    slope[j] += weight * (_sigmoid(line[j]) - _sigmoid(anchor[j]))
            else:
                for j in range(first, first + size):
                    k = part[SCALE] + j - first
                    away, inverse = line[j] - anchor[j], np.float32(math.exp(-TWO * line[k]))
                    narrower = np.float32(math.exp(TWO * (anchor[k] - line[k])))
                    slope[j] += weight * away * inverse
                    slope[k] += weight * (ONE - narrower - away * away * inverse)


@njit(nogil=True, error_model="numpy")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return ONE / (ONE + np.float32(math.exp(-x)))


@njit(nogil=True, error_model="numpy")
def _softplus(x):  # type: ignore[no-untyped-def]
    return max(x, ZERO) + np.float32(math.log1p(math.exp(-abs(x))))
