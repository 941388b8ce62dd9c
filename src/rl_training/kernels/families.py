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


@njit(nogil=True, error_model="numpy")
def evaluate_actions(family, outputs, actions, masks, rows, known):  # type: ignore[no-untyped-def]
    """log π(a|s), H and V [n, 3] from outputs [n, P + 1], whose last column is the value.

    `actions` [N, K] and `masks` [N, P] of choices, which may be empty, are looked up by `rows` [n]. Logits of choices
    become log-probabilities in place.
    """
    for i in range(len(outputs)):
        line, action, known_here = outputs[i], actions[rows[i]], known[i]
        known_here[LOG_PROB] = known_here[ENTROPY] = ZERO
        known_here[VALUE] = line[len(line) - 1]
        for part in family:
            if part[KIND] == CHOICE:
                for j in range(part[FIRST], part[FIRST] + part[SIZE] if len(masks) else 0):
                    line[j] = line[j] if masks[rows[i], j] else FORBIDDEN
                _choose(part, line, action, known_here)
            elif part[KIND] == COINS:
                _flip(part, line, action, known_here)
            else:
                _measure(part, line, action, known_here)


@njit(nogil=True, error_model="numpy")
def _choose(part, line, action, known):  # type: ignore[no-untyped-def]
    first, end = part[FIRST], part[FIRST] + part[SIZE]
    top, total, entropy = line[first], ZERO, ZERO
    for j in range(first + 1, end):
        top = max(top, line[j])
    for j in range(first, end):
        total += math.exp(line[j] - top)
    level = top + np.float32(math.log(total))
    for j in range(first, end):
        line[j] -= level
        entropy -= np.float32(math.exp(line[j])) * line[j]
    known[LOG_PROB] += line[first + np.int64(action[part[ACTION]])]
    known[ENTROPY] += entropy


@njit(nogil=True, error_model="numpy")
def _flip(part, line, action, known):  # type: ignore[no-untyped-def]
    for k in range(part[SIZE]):
        logit = line[part[FIRST] + k]
        level = max(logit, ZERO) + np.float32(math.log1p(math.exp(-abs(logit))))  # softplus
        known[LOG_PROB] += action[part[ACTION] + k] * logit - level
        known[ENTROPY] += level - logit * _sigmoid(logit)


@njit(nogil=True, error_model="numpy")
def _measure(part, line, action, known):  # type: ignore[no-untyped-def]
    for k in range(part[SIZE]):
        mean, log_std = line[part[FIRST] + k], line[part[FIRST] + part[SIZE] + k]
        away = (action[part[ACTION] + k] - mean) * np.float32(math.exp(-log_std))
        known[LOG_PROB] -= HALF * away * away + log_std + HALF_LOG_2_PI
        known[ENTROPY] += log_std + HALF + HALF_LOG_2_PI


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
        line, slope, action = outputs[i], slopes[i], actions[rows[i]]
        slope[len(line) - 1] = known[i, VALUE]
        to_log_prob, to_entropy = known[i, LOG_PROB], known[i, ENTROPY]
        for part in family:
            first, size, at = part[FIRST], part[SIZE], part[ACTION]
            if part[KIND] == CHOICE:
                entropy = ZERO
                for j in range(first, first + size):
                    slope[j] = math.exp(line[j])
                    entropy -= slope[j] * line[j]
                for j in range(first, first + size):
                    slope[j] *= -(to_log_prob + to_entropy * (line[j] + entropy))
                slope[first + np.int64(action[at])] += to_log_prob
                for j in range(first, first + size if len(masks) else 0):
                    slope[j] = slope[j] if masks[rows[i], j] else ZERO
            elif part[KIND] == COINS:
                for k in range(size):
                    logit = line[first + k]
                    heads = _sigmoid(logit)
                    slope[first + k] = to_log_prob * (action[at + k] - heads)
                    slope[first + k] -= to_entropy * logit * heads * (ONE - heads)
            else:
                for k in range(size):
                    inverse = np.float32(math.exp(-line[first + size + k]))
                    away = (action[at + k] - line[first + k]) * inverse
                    slope[first + k] = to_log_prob * away * inverse
                    slope[first + size + k] = to_log_prob * (away * away - ONE) + to_entropy
