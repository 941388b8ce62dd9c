"""Minibatch after minibatch in one call: outputs, a loss's slopes, gradients and an optimizer's step, without Python.

The loss and the step are called by their addresses, so that one compiled loop serves them all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.algorithms.slopes import call_slopes, gather
from rl_training.compiling import njit
from rl_training.kernels.descent import call_descent
from rl_training.kernels.families import action_slopes, evaluate_actions
from rl_training.kernels.layers import HEIGHT, backward, forward, pack, unpack


class Learner(NamedTuple):
    """An actor-critic of dense layers and the family of its actions, with room for what is said about a block."""

    table: np.ndarray  # the layers, as `kernels.layers` has them
    packed: np.ndarray
    memory: np.ndarray
    slopes_packed: np.ndarray
    family: np.ndarray  # as `kernels.families` has it
    outputs: np.ndarray  # [HEIGHT, P + 1], and slopes in them
    slopes: np.ndarray
    said: np.ndarray  # [HEIGHT, 3]: log π, H and V, and slopes in them
    known: np.ndarray


class Rows(NamedTuple):
    """Rows of a batch, as compiled code reads them."""

    inputs: np.ndarray  # [N, features]
    actions: np.ndarray  # [N, K] float32
    masks: np.ndarray  # [N, P], or empty
    columns: np.ndarray  # [N, C] of the loss


class Slope(NamedTuple):
    """A loss: where its slopes lie, which of its columns is normalised (-1: none), its knobs, and when it is far.

    Where number `far` of what it adds up is above `limit`, nothing more is learned; with far = 0 that never happens.
    """

    where: int
    normalized: int
    knobs: np.ndarray
    far: int
    limit: float


@njit(nogil=True, error_model="numpy")
def differentiate(learner, loss, batch, rows, sums):  # type: ignore[no-untyped-def]
    """Add up the gradient over the rows [n] of a minibatch, block by block, and what the loss has to say."""
    old = np.empty((len(rows), batch.columns.shape[1]), np.float32)
    gather(batch.columns, rows, loss.normalized, old)
    for start in range(0, len(rows), HEIGHT):
        block = rows[start : start + HEIGHT]
        count = len(block)
        outputs, slopes = learner.outputs[:count], learner.slopes[:count]
        said, known = learner.said[:count], learner.known[:count]
        forward(learner.table, learner.packed, learner.memory, batch.inputs, block, outputs)
        evaluate_actions(learner.family, outputs, batch.actions, batch.masks, block, said)
        share = 1.0 / len(rows)
        call_slopes(loss.where, (said, old[start : start + count], share, loss.knobs, known, sums))
        action_slopes(learner.family, outputs, batch.actions, batch.masks, block, known, slopes)
        backward(learner.table, learner.packed, learner.memory, slopes, learner.slopes_packed, True)


@njit(nogil=True, error_model="numpy")
def descend(learner, loss, batch, order, ends, descent, rate, most, numbers):  # type: ignore[no-untyped-def]
    """A step on each minibatch: the rows of `order` up to the first of `ends`, from there to the second, and so on.

    Row m of `numbers` gets what the loss adds up on minibatch m, the loss itself first, and last the gradient's norm,
    which stays as it is if no step is taken: where the loss is not finite or `far`. → how many minibatches there were.
    """
    start = 0
    for m in range(len(ends)):
        rows, start = order[start : ends[m]], ends[m]
        sums = numbers[m, : numbers.shape[1] - 1]
        pack(learner.table, descent.parameters, learner.packed)
        for i in range(len(learner.slopes_packed)):
            learner.slopes_packed[i] = np.float32(0)
        differentiate(learner, loss, batch, rows, sums)
        if not math.isfinite(sums[0]) or (loss.far > 0 and sums[loss.far] > loss.limit):
            return m + 1
        unpack(learner.table, learner.slopes_packed, descent.gradient)
        vectors = (descent.parameters, descent.gradient, descent.mean, descent.square, descent.count)
        norm = call_descent(descent.where, (*vectors, descent.settings, rate, most))
        numbers[m, numbers.shape[1] - 1] = norm
        if not math.isfinite(norm):
            return m + 1
    return len(ends)
