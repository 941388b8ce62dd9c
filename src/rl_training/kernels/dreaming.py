"""Losses in a world model as operations of programs: what heads say, and the slopes of losses in what they put out.

Heads say numbers on bins, chances, latents and actions. Torch's equations and gradients are the same, in `algorithms`.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.bins import around, sum_of, top_of
from rl_training.kernels.functions import FAST, tanh
from rl_training.kernels.fused import HALF, MIX, ONE, ZERO
from rl_training.kernels.programs import SIZES, line
from rl_training.kernels.supports import exponentials

HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2 * math.pi))


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def mirrored_sum(shares, bins):  # type: ignore[no-untyped-def]
    """Σ pᵢ bᵢ, each bin with its mirror image; the middle one is 0, and makes their number even."""
    middle, total = len(bins) // 2, ZERO
    for j in range(middle + 1):
        total += (shares[middle + j] - shares[middle - j]) * bins[middle + j]
    return total


@njit(borrows=True, nogil=True, error_model="numpy")
def decode_number(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits, bins, room for a row → the number that they say; sizes: logits, filled up to whole panels, and bins."""
    width, count = op[SIZES], op[SIZES + 1]
    bins, shares = line(op, 1, step, 0, count), line(op, 2, step, 0, width)
    for i in range(rows):
        logits = line(op, 0, step, i, width)
        top = top_of(logits)
        exponentials(logits, top, shares)
        # The last term is 0, and NaN where a logit is: comparisons made a number of it.
        line(op, 3, step, i, 1)[0] = mirrored_sum(shares, bins) / sum_of(shares) + ZERO * top


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def chance(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits → σ(l)."""
    for i in range(rows):
        line(op, 1, step, i, 1)[0] = HALF + HALF * tanh(HALF * line(op, 0, step, i, 1)[0])


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_bins(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits, bins, two targets, the slope of the loss → slopes of the logits, and the loss; sizes: as above, targets.

    Cross-entropies with two-hot codes t of the targets, summed: n log Σ eˡ - Σ t l        ∂l = n softmax(l) - Σ t
    """
    width, count, targets = op[SIZES], op[SIZES + 1], op[SIZES + 2]
    bins = line(op, 1, step, 0, count)
    for i in range(rows):
        logits, slopes = line(op, 0, step, i, width), line(op, 5, step, i, width)
        slope, top = line(op, 4, step, i, 1)[0], top_of(logits)
        exponentials(logits, top, slopes)
        total = sum_of(slopes)
        loss = np.float32(targets) * (top + np.float32(math.log(total)))
        factor = np.float32(targets) * slope / total
        for j in range(width):
            slopes[j] *= factor
        for k in range(targets):
            below, above, share = around(line(op, 2 + k, step, i, 1)[0], bins)
            loss -= (ONE - share) * logits[below] + share * logits[above]
            slopes[below] -= slope * (ONE - share)
            slopes[above] -= slope * share
        line(op, 6, step, i, 1)[0] = loss


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_chance(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits, targets, the slope of the loss [1] → slopes of the logits, and the loss:

    max(l, 0) - l t + log(1 + e⁻|l|)        ∂l = σ(l) - t
    """
    slope = line(op, 2, step, 0, 1)[0]
    for i in range(rows):
        logit, target = line(op, 0, step, i, 1)[0], line(op, 1, step, i, 1)[0]
        small = np.float32(math.exp(-abs(logit)))
        share = ONE / (ONE + small)
        share = share if logit >= ZERO else ONE - share
        line(op, 3, step, i, 1)[0] = slope * (share - target)
        loss = max(logit, ZERO) - logit * target + np.float32(math.log1p(small))
        line(op, 4, step, i, 1)[0] = loss + ZERO * logit


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_latents(op, step, rows):  # type: ignore[no-untyped-def]
    """Probabilities p, logits of what was foreseen, settings → slopes of both, both losses, with room for a row.

    settings [3]: free nats, and the slopes of L_dyn and L_rep. With q = (1 - m) softmax(l) + m / K:
        ∂q = -s_dyn p / q        ∂p = s_rep (log p - log q + 1)        each where the divergence is not below free
    """
    classes, choices = op[SIZES], op[SIZES + 1]
    size, settings = classes * choices, line(op, 5, step, 0, 3)
    room = line(op, 6, step, 0, size + 3 * choices)
    plain, top, total, mean = (
        room[:size],
        room[size:],
        room[size + choices :],
        room[size + 2 * choices :],
    )
    free, mix = settings[0], MIX / np.float32(classes)
    for i in range(rows):
        probs, logits = line(op, 0, step, i, size), line(op, 1, step, i, size)
        to_probs, to_logits = line(op, 2, step, i, size), line(op, 3, step, i, size)
        for s in range(choices):
            top[s], total[s], mean[s] = logits[s], ZERO, ZERO
        for k in range(1, classes):
            for s in range(choices):
                top[s] = max(top[s], logits[k * choices + s])
        for k in range(classes):
            for s in range(choices):
                to_logits[k * choices + s] = logits[k * choices + s] - top[s]
        exponentials(to_logits, ZERO, plain)
        for k in range(classes):
            for s in range(choices):
                total[s] += plain[k * choices + s]
        divergence = ZERO
        for k in range(classes):
            for s in range(choices):
                at = k * choices + s
                plain[at] = plain[at] / total[s] * (ONE - MIX)
                share = plain[at] + mix + ZERO * logits[at]
                ratio = probs[at] / share
                to_logits[at], to_probs[at] = ratio, np.float32(math.log(ratio))
                mean[s] += plain[at] * ratio
                divergence += probs[at] * to_probs[at]
        dynamics, representation = (settings[1], settings[2]) if divergence >= free else (ZERO, ZERO)
        for k in range(classes):
            for s in range(choices):
                at = k * choices + s
                # q's slopes through softmax: (1 - m) p̂ (g - Σ p̂ g), g = -s p / q; `plain` has (1 - m) p̂.
                to_logits[at] = dynamics * plain[at] * (mean[s] / (ONE - MIX) - to_logits[at])
                to_probs[at] = representation * (to_probs[at] + ONE)
        losses = line(op, 4, step, i, 1)
        losses[0] = free if divergence < free else divergence  # NaN stays NaN


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_choice(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs, actions, advantages A, weights w, settings → slopes of the outputs, and loss and entropy.

    settings [2]: η and a factor f of all slopes. With π = (1 - m) softmax(l) + m / n:
        L = -w (A log π(a) + η H)        ∂π = -f w (A [a] / π(a) - η (log π + 1))
    """
    choices, settings = op[SIZES], line(op, 4, step, 0, 2)
    for i in range(rows):
        outputs, slopes = line(op, 0, step, i, choices), line(op, 5, step, i, choices)
        action, advantage = np.int64(line(op, 1, step, i, 1)[0]), line(op, 2, step, i, 1)[0]
        weight, told = line(op, 3, step, i, 1)[0], line(op, 6, step, i, 2)
        top, total, entropy, mean, chosen = outputs[0], ZERO, ZERO, ZERO, ZERO
        for j in range(1, choices):
            top = max(top, outputs[j])
        for j in range(choices):
            total += np.float32(math.exp(outputs[j] - top))
        for j in range(choices):
            plain = np.float32(math.exp(outputs[j] - top)) / total
            share = plain * (ONE - MIX) + MIX / np.float32(choices)
            log_share = np.float32(math.log(share))
            entropy -= share * log_share
            slope = -settings[0] * (log_share + ONE)
            if j == action:
                chosen, slope = log_share, slope + advantage / share
            slopes[j] = slope
            mean += plain * slope
        factor = -settings[1] * weight * (ONE - MIX)
        for j in range(choices):
            slopes[j] = factor * np.float32(math.exp(outputs[j] - top)) / total * (slopes[j] - mean)
        told[0], told[1] = -weight * (chosen * advantage + settings[0] * entropy), entropy


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_normal(op, step, rows):  # type: ignore[no-untyped-def]
    """The same of normals: outputs m and s → μ = tanh(m), σ = 0.9 σ(s + 2) + 0.1. With e = (a - μ) / σ:

    log π = Σ -½ e² - log σ - ½ log 2π        ∂μ = e / σ        ∂log σ = e² - 1        H = Σ log σ + ½ log 2πe
    """
    size, settings = op[SIZES], line(op, 4, step, 0, 2)
    for i in range(rows):
        outputs, slopes = line(op, 0, step, i, 2 * size), line(op, 5, step, i, 2 * size)
        action, advantage = line(op, 1, step, i, size), line(op, 2, step, i, 1)[0]
        weight, told = line(op, 3, step, i, 1)[0], line(op, 6, step, i, 2)
        log_prob, entropy, factor = ZERO, ZERO, -settings[1] * weight
        for j in range(size):
            mean, share = tanh(outputs[j]), HALF + HALF * tanh(HALF * (outputs[size + j] + np.float32(2)))
            deviation = np.float32(0.9) * share + np.float32(0.1)
            far, log_deviation = (action[j] - mean) / deviation, np.float32(math.log(deviation))
            log_prob -= HALF * far * far + log_deviation + HALF_LOG_TWO_PI
            entropy += log_deviation + HALF_LOG_TWO_PI + HALF
            slopes[j] = factor * advantage * far / deviation * (ONE - mean * mean)
            to_deviation = advantage * (far * far - ONE) + settings[0]
            slopes[size + j] = factor * to_deviation / deviation * np.float32(0.9) * share * (ONE - share)
        told[0], told[1] = -weight * (log_prob * advantage + settings[0] * entropy), entropy


@njit(borrows=True, nogil=True, error_model="numpy")
def fit_squares(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs x, targets y, the slope of the loss [1] → slopes of the outputs, and the loss Σ (x - y)²."""
    size, slope = op[SIZES], line(op, 2, step, 0, 1)[0]
    for i in range(rows):
        outputs, targets = line(op, 0, step, i, size), line(op, 1, step, i, size)
        slopes, loss = line(op, 3, step, i, size), ZERO
        for j in range(size):
            error = outputs[j] - targets[j]
            loss += error * error
            slopes[j] = np.float32(2) * slope * error
        line(op, 4, step, i, 1)[0] = loss
