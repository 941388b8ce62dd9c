"""Log-probabilities and entropies of actions, and what their slopes are in what a network put out, row by row.

A family of distributions is data too: a table whose rows are one choice among several, coins, or independent normals.
The equations are those of `algorithms.distributions`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from rl_training.algorithms.distributions import (
    LARGEST,
    NODES,
    WEIGHTS,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)
from rl_training.algorithms.masking import BLOCKED
from rl_training.compiling import address, call_at, njit
from rl_training.dynamics.chance import normal, uniform

FAMILIES = (Categorical, MultiCategorical, Bernoulli, DiagonalGaussian, SquashedGaussian, Joint)
# Of a row: what it is, its first output, how many, its first action, its first log σ, and where its functions lie.
COLUMNS = 7
KIND, FIRST, SIZE, ACTION, SCALE, EVALUATE, DIFFERENTIATE = range(COLUMNS)
CHOICE, COINS, NORMALS, SQUASHED = range(4)
PLACES, ROWS, INDICES = (types.int64,) * 4, types.float32[:, ::1], types.int64[::1]
EVALUATION = types.void(*PLACES, ROWS, ROWS, INDICES, ROWS)
SLOPES = types.void(*PLACES, ROWS, ROWS, INDICES, ROWS, ROWS)
DRAW = types.void(*PLACES, ROWS, ROWS, types.float32[::1], types.uint64[::1])
call_evaluation, call_slopes_of, call_draw = call_at(EVALUATION), call_at(SLOPES), call_at(DRAW)
LOG_PROB, ENTROPY, VALUE = range(3)  # columns of what is known about a row
HALF_LOG_2_PI = np.float32(0.5 * math.log(2 * math.pi))
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
FORBIDDEN = np.float32(BLOCKED)
UNMASKED = np.zeros((0, 0), np.bool_)


def family_table(family: Family) -> np.ndarray:
    """A family as rows [parts, COLUMNS]; its outputs begin at column 0, and all log σ follow them."""
    rows = _rows(family, 0, 0, family.num_parameters - family.num_scales)
    return np.array([(*row, *_addresses(row[KIND])) for row in rows], np.int64)


def _rows(family: Family, first: int, action: int, scale: int) -> list[tuple[int, ...]]:
    """The same without addresses, of a family whose outputs, actions and log σ begin there."""
    if isinstance(family, Joint):
        rows = []
        for part, width in zip(family.families, family.widths, strict=True):
            rows += _rows(part, first, action, scale)
            first, scale = first + part.num_parameters - part.num_scales, scale + part.num_scales
            action += width
        return rows
    if isinstance(family, MultiCategorical):
        starts = np.cumsum([0, *family.num_choices]).tolist()
        sizes = enumerate(family.num_choices)
        return [(CHOICE, first + starts[i], size, action + i, scale) for i, size in sizes]
    if isinstance(family, Categorical):
        return [(CHOICE, first, family.num_choices, action, scale)]
    if isinstance(family, Bernoulli):
        return [(COINS, first, family.num_coins, action, scale)]
    assert isinstance(family, DiagonalGaussian)
    kind = SQUASHED if isinstance(family, SquashedGaussian) else NORMALS
    return [(kind, first, family.num_dimensions, action, scale)]


def masks_of_outputs(family: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Masks [N, M] of choices as masks [N, P] of outputs, of which some may be none of a choice."""
    choices = family[family[:, KIND] == CHOICE]
    if not len(choices):
        return UNMASKED
    logits = np.concatenate([np.arange(row[FIRST], row[FIRST] + row[SIZE]) for row in choices])
    every = np.ones((len(masks), logits[-1] + 1), np.bool_)
    every[:, logits] = masks != 0
    return every


def num_actions(family: np.ndarray) -> int:
    """Numbers in a row of a family's actions."""
    one = family[:, KIND] == CHOICE  # of a row of the table, else as many as its size
    return int((family[:, ACTION] + np.where(one, 1, family[:, SIZE])).max(initial=0))


def _addresses(kind: int) -> tuple[int, int]:
    """Where the functions of one kind lie: the others need not be compiled."""
    evaluate = (_choose, _flip, _measure, _measure_squashed)[kind]
    slopes = (_choice_slopes, _coin_slopes, _normal_slopes, _squashed_slopes)[kind]
    return address(evaluate, EVALUATION), address(slopes, SLOPES)


def drawing(family: np.ndarray, greedy: bool = False) -> np.ndarray:
    """Where the functions lie that draw actions, for each row of a family's table; `greedy`: that take the mode."""
    draws = (draw_choices, draw_coins, draw_normals, draw_squashed)
    if greedy:
        draws = (likeliest_choices, likeliest_coins, mean_normals, mean_squashed)
    return np.array([address(draws[kind], DRAW) for kind in family[:, KIND]], np.int64)


# Rows are looked up by numbers: views of them would be counted, which costs as much as the arithmetic.
@njit(nogil=True, error_model="numpy", inline="always")
def evaluate_actions(family, outputs, actions, masks, rows, known):  # type: ignore[no-untyped-def]
    """log π(a|s), H and V [n, 3] from outputs [n, P + 1], whose last column is the value.

    `actions` [N, K] and `masks` [N, P] of choices, which may be empty, are looked up by `rows` [n]. Logits of choices
    become log-probabilities in place.
    """
    for i in range(len(outputs)):
        known[i, LOG_PROB] = known[i, ENTROPY] = ZERO
        known[i, VALUE] = outputs[i, outputs.shape[1] - 1]
    for part in range(len(family)):
        kind, first, size, at, scale, where, _ = family[part]
        if kind == CHOICE:
            forbid(first, size, outputs, masks, rows)
        call_evaluation(where, (first, size, at, scale, outputs, actions, rows, known))


@njit(nogil=True, error_model="numpy", inline="always")
def forbid(first, size, outputs, masks, rows):  # type: ignore[no-untyped-def]
    """Put the logits of masked choices out of reach."""
    for i in range(len(outputs) if len(masks) else 0):
        for j in range(first, first + size):
            if not masks[rows[i], j]:
                outputs[i, j] = FORBIDDEN


@njit(borrows=True, nogil=True, error_model="numpy")
def _choose(first, size, at, scale, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    """With eⱼ = exp(lⱼ - l_max): log pⱼ = lⱼ - l_max - log Σ e, and H = log Σ e - Σ e (l - l_max) / Σ e."""
    for i in range(len(outputs)):
        top, total, weighted = outputs[i, first], ZERO, ZERO
        for j in range(first + 1, first + size):
            top = outputs[i, j] if outputs[i, j] > top else top
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


@njit(borrows=True, nogil=True, error_model="numpy")
def _flip(first, size, at, scale, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            logit = outputs[i, first + k]
            level = max(logit, ZERO) + np.float32(math.log1p(math.exp(-abs(logit))))  # softplus
            known[i, LOG_PROB] += actions[rows[i], at + k] * logit - level
            known[i, ENTROPY] += level - logit * _sigmoid(logit)


@njit(borrows=True, nogil=True, error_model="numpy")
def _measure(first, size, at, scale, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            log_std = outputs[i, scale + k]
            away = (actions[rows[i], at + k] - outputs[i, first + k]) * np.float32(math.exp(-log_std))
            known[i, LOG_PROB] -= HALF * away * away + log_std + HALF_LOG_2_PI
            known[i, ENTROPY] += log_std + HALF + HALF_LOG_2_PI


@njit(borrows=True, nogil=True, error_model="numpy")
def squashed(raw):  # type: ignore[no-untyped-def]
    """tanh u in single precision, inside (-1, 1)."""
    return np.float32(min(max(math.tanh(raw), -LARGEST), LARGEST))


@njit(borrows=True, nogil=True, error_model="numpy")
def unsquashed(action):  # type: ignore[no-untyped-def]
    """atanh a, for |a| < 1 or cut to that."""
    held = min(max(np.float64(action), -LARGEST), LARGEST)
    return 0.5 * (math.log1p(held) - math.log1p(-held))


@njit(borrows=True, nogil=True, error_model="numpy")
def log_tanh_slope(raw):  # type: ignore[no-untyped-def]
    """log(1 - tanh² u), as `algorithms.distributions` has it; even in u."""
    size = abs(raw)
    return 2 * (math.log(2.0) - size - math.log1p(math.exp(-2 * size)))


@njit(nogil=True, error_model="numpy")
def _measure_squashed(first, size, at, scale, outputs, actions, rows, known):  # type: ignore[no-untyped-def]
    _measure(first, size, at, scale, outputs, _raw(size, at, actions, rows), np.arange(len(outputs)), known)
    for i in range(len(outputs)):
        for k in range(size):
            mean, std = np.float64(outputs[i, first + k]), math.exp(outputs[i, scale + k])
            shift = 0.0
            for node in range(len(NODES)):
                shift += WEIGHTS[node] * log_tanh_slope(mean + std * NODES[node])
            known[i, LOG_PROB] -= log_tanh_slope(unsquashed(actions[rows[i], at + k]))
            known[i, ENTROPY] += shift


@njit(nogil=True, error_model="numpy")
def _raw(size, at, actions, rows):  # type: ignore[no-untyped-def]
    """atanh of some rows' actions, in the same columns."""
    raw = np.empty((len(rows), at + size), np.float32)
    for i in range(len(rows)):
        for k in range(at, at + size):
            raw[i, k] = unsquashed(actions[rows[i], k])
    return raw


@njit(borrows=True, nogil=True, error_model="numpy")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return ONE / (ONE + np.float32(math.exp(-x)))


@njit(nogil=True, error_model="numpy", inline="always")
def action_slopes(family, outputs, actions, masks, rows, known, slopes):  # type: ignore[no-untyped-def]
    """Slopes [n, P + 1] in what the network put out, from slopes `known` [n, 3] in log π, H and V.

        of logits:  ∂log π(a) / ∂lⱼ = [j = a] - pⱼ        ∂H / ∂lⱼ = -pⱼ (log pⱼ + H)
        of a coin:  ∂log π(a) / ∂l = a - p                ∂H / ∂l = -l p (1 - p)
        of normals: ∂log π(a) / ∂μ = z / σ,  ∂log π(a) / ∂log σ = z² - 1 with z = (a - μ) / σ,  ∂H / ∂log σ = 1
        squashed:   the same with z = (atanh a - μ) / σ; to ∂H add E[-2 tanh u] and E[-2 tanh(u) (u - μ)], u ~ N(μ, σ)

    `outputs` are as `evaluate_actions` left them.
    """
    for i in range(len(outputs)):
        slopes[i, outputs.shape[1] - 1] = known[i, VALUE]
    for part in range(len(family)):
        kind, first, size, at, scale, _, where = family[part]
        call_slopes_of(where, (first, size, at, scale, outputs, actions, rows, known, slopes))
        for i in range(len(outputs) if kind == CHOICE and len(masks) else 0):
            for j in range(first, first + size):
                slopes[i, j] = slopes[i, j] if masks[rows[i], j] else ZERO


@njit(borrows=True, nogil=True, error_model="numpy")
def _choice_slopes(first, size, at, scale, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        to_log_prob, to_entropy, entropy = known[i, LOG_PROB], known[i, ENTROPY], ZERO
        for j in range(first, first + size):
            slopes[i, j] = math.exp(outputs[i, j])
            entropy -= slopes[i, j] * outputs[i, j]
        for j in range(first, first + size):
            slopes[i, j] *= -(to_log_prob + to_entropy * (outputs[i, j] + entropy))
        slopes[i, first + np.int64(actions[rows[i], at])] += to_log_prob


@njit(borrows=True, nogil=True, error_model="numpy")
def _coin_slopes(first, size, at, scale, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            logit = outputs[i, first + k]
            heads = _sigmoid(logit)
            slopes[i, first + k] = known[i, LOG_PROB] * (actions[rows[i], at + k] - heads)
            slopes[i, first + k] -= known[i, ENTROPY] * logit * heads * (ONE - heads)


@njit(borrows=True, nogil=True, error_model="numpy")
def _normal_slopes(first, size, at, scale, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            inverse = np.float32(math.exp(-outputs[i, scale + k]))
            away = (actions[rows[i], at + k] - outputs[i, first + k]) * inverse
            slopes[i, first + k] = known[i, LOG_PROB] * away * inverse
            slopes[i, scale + k] = known[i, LOG_PROB] * (away * away - ONE) + known[i, ENTROPY]


@njit(nogil=True, error_model="numpy")
def _squashed_slopes(first, size, at, scale, outputs, actions, rows, known, slopes):  # type: ignore[no-untyped-def]
    raw = _raw(size, at, actions, rows)
    _normal_slopes(first, size, at, scale, outputs, raw, np.arange(len(outputs)), known, slopes)
    for i in range(len(outputs)):
        for k in range(size):
            mean, std = np.float64(outputs[i, first + k]), math.exp(outputs[i, scale + k])
            along_mean = along_log_std = 0.0
            for node in range(len(NODES)):
                slope = -2 * WEIGHTS[node] * math.tanh(mean + std * NODES[node])
                along_mean += slope
                along_log_std += slope * std * NODES[node]
            slopes[i, first + k] += known[i, ENTROPY] * along_mean
            slopes[i, scale + k] += known[i, ENTROPY] * along_log_std


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_choices(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    """An index by its probability ∝ exp(logit), row by row, and its log-probability; one uniform number decides."""
    for i in range(len(outputs)):
        top, total = outputs[i, first], 0.0
        for j in range(first + 1, first + size):
            top = outputs[i, j] if outputs[i, j] > top else top
        for j in range(first, first + size):
            total += math.exp(np.float64(outputs[i, j] - top))
        left, chosen = uniform(chance) * total, first
        # The last choice is taken where rounding leaves something over, unless its probability is 0.
        for j in range(first, first + size):
            power = math.exp(np.float64(outputs[i, j] - top))
            if power > 0:
                chosen = j
            left -= power
            if left < 0:
                break
        actions[i, at] = chosen - first
        log_probs[i] += np.float64(outputs[i, chosen] - top) - math.log(total)


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_coins(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    """1 with probability σ(l), else 0, coin by coin."""
    for i in range(len(outputs)):
        for k in range(size):
            logit = np.float64(outputs[i, first + k])
            heads = uniform(chance) < 1.0 / (1.0 + math.exp(-logit))
            actions[i, at + k] = heads
            log_probs[i] += (logit if heads else 0.0) - max(logit, 0.0) - math.log1p(math.exp(-abs(logit)))


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_normals(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    """a = μ + σ ε from outputs (μ, log σ), and its log-density."""
    for i in range(len(outputs)):
        for k in range(size):
            noise, log_std = normal(chance), np.float64(outputs[i, scale + k])
            actions[i, at + k] = outputs[i, first + k] + math.exp(log_std) * noise
            log_probs[i] -= 0.5 * noise * noise + log_std + HALF_LOG_2_PI


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_squashed(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    """a = tanh(μ + σ ε) from outputs (μ, log σ), and its log-density: that of the a which is kept."""
    for i in range(len(outputs)):
        for k in range(size):
            mean, log_std = np.float64(outputs[i, first + k]), np.float64(outputs[i, scale + k])
            actions[i, at + k] = squashed(mean + math.exp(log_std) * normal(chance))
            raw = unsquashed(actions[i, at + k])
            away = (raw - mean) * math.exp(-log_std)
            log_probs[i] -= 0.5 * away * away + log_std + HALF_LOG_2_PI + log_tanh_slope(raw)


# The modes, as `algorithms.distributions` has them; nobody asks for their log-probabilities.
@njit(borrows=True, nogil=True, error_model="numpy")
def likeliest_choices(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        chosen = first
        for j in range(first + 1, first + size):
            chosen = j if outputs[i, j] > outputs[i, chosen] else chosen
        actions[i, at] = chosen - first


@njit(borrows=True, nogil=True, error_model="numpy")
def likeliest_coins(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            actions[i, at + k] = outputs[i, first + k] > 0


@njit(borrows=True, nogil=True, error_model="numpy")
def mean_normals(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            actions[i, at + k] = outputs[i, first + k]


@njit(borrows=True, nogil=True, error_model="numpy")
def mean_squashed(first, size, at, scale, outputs, actions, log_probs, chance):  # type: ignore[no-untyped-def]
    for i in range(len(outputs)):
        for k in range(size):
            actions[i, at + k] = squashed(outputs[i, first + k])
