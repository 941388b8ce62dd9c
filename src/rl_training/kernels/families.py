"""Log-probabilities and entropies of actions, and what their slopes are in what a network put out, row by row.

A family of distributions is data too: a table whose rows are one choice among several, coins, or independent normals.
The equations are those of `algorithms.distributions`.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.algorithms.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    MultiCategorical,
)
from rl_training.algorithms.masking import BLOCKED
from rl_training.compiling import njit

FAMILIES = (Categorical, MultiCategorical, Bernoulli, DiagonalGaussian)
KIND, FIRST, SIZE, ACTION = range(4)  # of a row: what it is, its first output, how many, and its first action
CHOICE, COINS, NORMALS = range(3)
LOG_PROB, ENTROPY, VALUE = range(3)  # columns of what is known about a row
HALF_LOG_2_PI = np.float32(0.5 * math.log(2 * math.pi))
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
FORBIDDEN = np.float32(BLOCKED)
UNMASKED = np.zeros((0, 0), np.bool_)


def family_table(family: Family) -> np.ndarray:
    """A family as rows [parts, 4]; its outputs begin at column 0."""
    if isinstance(family, Categorical):
        rows = [(CHOICE, 0, family.num_choices, 0)]
    elif isinstance(family, MultiCategorical):
        starts = np.cumsum([0, *family.num_choices]).tolist()
        rows = [(CHOICE, starts[i], size, i) for i, size in enumerate(family.num_choices)]
    elif isinstance(family, Bernoulli):
        rows = [(COINS, 0, family.num_coins, 0)]
    else:
        assert isinstance(family, DiagonalGaussian)
        rows = [(NORMALS, 0, family.num_dimensions, 0)]
    return np.array(rows, np.int64)


# Rows are looked up by numbers: views of them would be counted, which costs as much as the arithmetic.
@njit(nogil=True, error_model="numpy")
def evaluate_actions(family, outputs, actions, masks, rows, known):  # type: ignore[no-untyped-def]
    """log π(a|s), H and V [n, 3] from outputs [n, P + 1], whose last column is the value.

    `actions` [N, K] and `masks` [N, P] of choices, which may be empty, are looked up by `rows` [n]. Logits of choices
    become log-probabilities in place.
    """
    for i in range(len(outputs)):
        known[i, LOG_PROB] = known[i, ENTROPY] = ZERO
        known[i, VALUE] = outputs[i, outputs.shape[1] - 1]
    for part in range(len(family)):
        kind, first, size, at = family[part]
        if kind == CHOICE:
            forbid(first, size, outputs, masks, rows)
            _choose(first, size, at, outputs, actions, rows, known)
        elif kind == COINS:
            _flip(first, size, at, outputs, actions, rows, known)
        else:
            _measure(first, size, at, outputs, actions, rows, known)


@njit(nogil=True, error_model="numpy")
def forbid(first, size, outputs, masks, rows):  # type: ignore[no-untyped-def]
    """Put the logits of masked choices out of reach."""
    for i in range(len(outputs) if len(masks) else 0):
        for j in range(first, first + size):
            if not masks[rows[i], j]:
                outputs[i, j] = FORBIDDEN


@njit(nogil=True, error_model="numpy")
def _choose(first, size, at, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    """With eⱼ = exp(lⱼ - l_max): log pⱼ = lⱼ - l_max - log Σ e, and H = log Σ e - Σ e (l - l_max) / Σ e."""
    for i in range(len(outputs)):
        top, total, weighted = outputs[i, first], ZERO, ZERO
        for j in range(first + 1, first + size):
            top = max(top, outputs[i, j])
        for j in range(first, first + size):
            away = outputs[i, j] - top
            power = np.float32(math.exp(away))
            total += power
            weighted += power * away
        spread = np.float32(math.log(total))
        for j in range(first, first + size):
            outputs[i, j] -= top + spread
        known[i, LOG_PROB] += outputs[i, first + np.int64(actions[rows[i], at])]
        known[i, ENTROPY] += spread - weighted / total


@njit(nogil=True, error_model="numpy")
def _flip(first, size, at, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            logit = outputs[i, first + k]
            level = max(logit, ZERO) + np.float32(math.log1p(math.exp(-abs(logit))))  # softplus
            known[i, LOG_PROB] += actions[rows[i], at + k] * logit - level
            known[i, ENTROPY] += level - logit * _sigmoid(logit)


@njit(nogil=True, error_model="numpy")
def _measure(first, size, at, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            log_std = outputs[i, first + size + k]
            away = (actions[rows[i], at + k] - outputs[i, first + k]) * np.float32(math.exp(-log_std))
            known[i, LOG_PROB] -= HALF * away * away + log_std + HALF_LOG_2_PI
            known[i, ENTROPY] += log_std + HALF + HALF_LOG_2_PI


@njit(nogil=True, error_model="numpy")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return ONE / (ONE + np.float32(math.exp(-x)))


@njit(nogil=True, error_model="numpy")
def action_slopes(family, outputs, actions, masks, rows, known, slopes):  # type: ignore[no-untyped-def]
    """Slopes [n, P + 1] in what the network put out, from slopes `known` [n, 3] in log π, H and V.

        of logits:  ∂log π(a) / ∂lⱼ = [j = a] - pⱼ        ∂H / ∂lⱼ = -pⱼ (log pⱼ + H)
        of a coin:  ∂log π(a) / ∂l = a - p                ∂H / ∂l = -l p (1 - p)
        of normals: ∂log π(a) / ∂μ = z / σ,  ∂log π(a) / ∂log σ = z² - 1 with z = (a - μ) / σ,  ∂H / ∂log σ = 1

    `outputs` are as `evaluate_actions` left them.
    """
    for i in range(len(outputs)):
        slopes[i, outputs.shape[1] - 1] = known[i, VALUE]
    for part in range(len(family)):
        kind, first, size, at = family[part]
        if kind == CHOICE:
            _choice_slopes(first, size, at, outputs, actions, rows, known, slopes)
            for i in range(len(outputs) if len(masks) else 0):
                for j in range(first, first + size):
                    slopes[i, j] = slopes[i, j] if masks[rows[i], j] else ZERO
        elif kind == COINS:
            _coin_slopes(first, size, at, outputs, actions, rows, known, slopes)
        else:
            _normal_slopes(first, size, at, outputs, actions, rows, known, slopes)


@njit(nogil=True, error_model="numpy")
def _choice_slopes(first, size, at, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        to_log_prob, to_entropy, entropy = known[i, LOG_PROB], known[i, ENTROPY], ZERO
        for j in range(first, first + size):
            slopes[i, j] = math.exp(outputs[i, j])
            entropy -= slopes[i, j] * outputs[i, j]
        for j in range(first, first + size):
            slopes[i, j] *= -(to_log_prob + to_entropy * (outputs[i, j] + entropy))
        slopes[i, first + np.int64(actions[rows[i], at])] += to_log_prob


@njit(nogil=True, error_model="numpy")
def _coin_slopes(first, size, at, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            logit = outputs[i, first + k]
            heads = _sigmoid(logit)
            slopes[i, first + k] = known[i, LOG_PROB] * (actions[rows[i], at + k] - heads)
            slopes[i, first + k] -= known[i, ENTROPY] * logit * heads * (ONE - heads)


@njit(nogil=True, error_model="numpy")
def _normal_slopes(first, size, at, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            inverse = np.float32(math.exp(-outputs[i, first + size + k]))
            away = (actions[rows[i], at + k] - outputs[i, first + k]) * inverse
            slopes[i, first + k] = known[i, LOG_PROB] * away * inverse
            slopes[i, first + size + k] = known[i, LOG_PROB] * (away * away - ONE) + known[i, ENTROPY]
