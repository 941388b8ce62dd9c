"""Minibatch after minibatch in one call: outputs, a loss's slopes, gradients and an optimizer's step, without Python.

The passes over the network, the loss and the step are called by their addresses: one compiled loop serves them all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.algorithms.slopes import call_slopes, gather
from rl_training.compiling import njit
from rl_training.kernels.descent import call_descent
from rl_training.kernels.divergences import call_divergence, call_divergence_slopes
from rl_training.kernels.families import action_slopes, evaluate_actions
from rl_training.kernels.layers import (
    BACK,
    FORTH,
    HEIGHT,
    PACKING,
    UNPACKING,
    call_backward,
    call_forward,
    call_pack,
    call_unpack,
)


class Learner(NamedTuple):
    """An actor-critic of dense layers and the family of its actions, with room for what is said about a block."""

    where: np.ndarray  # addresses of the passes over its layers
    table: np.ndarray  # the layers, as `kernels.layers` has them
    packed: np.ndarray
    memory: np.ndarray
    gradient: np.ndarray
    family: np.ndarray  # as `kernels.families` has it
    outputs: np.ndarray  # [HEIGHT, P + 1], and slopes in them
    slopes: np.ndarray
    said: np.ndarray  # [HEIGHT, 3]: log π, H and V, with anchors KL too, and slopes in them
    known: np.ndarray
    held: np.ndarray  # addresses of the KL to anchors and of its slopes; [0] without anchors


class Rows(NamedTuple):
    """Rows of a batch, as compiled code reads them."""

    inputs: np.ndarray  # [N, features]
    actions: np.ndarray  # [N, K] float32
    masks: np.ndarray  # [N, P], or empty
    anchors: (
        np.ndarray
    )  # [N, P] parameters of a policy that holds this one, as `kernels.divergences` has them, or empty
    columns: np.ndarray  # [N, C] of the loss
    chosen: np.ndarray  # [N, C], room for those of a minibatch


class Slope(NamedTuple):
    """A loss: where its slopes lie, which of its columns is normalised (-1: none), its knobs, and when it is far.

    Where number `far` of what it adds up is above `limit`, nothing more is learned; with far = 0 that never happens.
    """

    where: int
    normalized: int
    knobs: np.ndarray
    far: int
    limit: float


@njit(calls=True, borrows=True, nogil=True, error_model="numpy")
def descend(learner, loss, batch, order, ends, descent, rate, most, numbers):  # type: ignore[no-untyped-def]
    """A step on each minibatch: the rows of `order` up to the first of `ends`, from there to the second, and so on.

    Row m of `numbers` gets what the loss adds up on minibatch m, the loss itself first, and last the gradient's norm,
    which stays as it is if no step is taken: where the loss is not finite or `far`. → how many minibatches there were.
    """
    table, packed, memory, gradient = learner.table, learner.packed, learner.memory, learner.gradient
    start, last = 0, numbers.shape[1] - 1
    for m in range(len(ends)):
        rows, start = order[start : ends[m]], ends[m]
        sums, old, share = numbers[m, :last], batch.chosen[: len(rows)], 1.0 / len(rows)
        gather(batch.columns, rows, loss.normalized, old)
        call_pack(learner.where[PACKING], (table, descent.parameters, packed, True))
        for first in range(0, len(rows), HEIGHT):
            block = rows[first : first + HEIGHT]
            count = len(block)
            outputs, slopes = learner.outputs[:count], learner.slopes[:count]
            said, known = learner.said[:count], learner.known[:count]
            call_forward(learner.where[FORTH], (table, packed, memory, batch.inputs, block, outputs))
            evaluate_actions(learner.family, outputs, batch.actions, batch.masks, block, said)
            if len(learner.held):
                kept = (learner.family, outputs, batch.anchors, block)
                call_divergence(learner.held[0], (*kept, said))
            call_slopes(loss.where, (said, old[first : first + count], share, loss.knobs, known, sums))
            action_slopes(learner.family, outputs, batch.actions, batch.masks, block, known, slopes)
            if len(learner.held):
                call_divergence_slopes(learner.held[1], (*kept, known, slopes))
            call_backward(learner.where[BACK], (table, packed, memory, slopes, gradient, True, first == 0))
        if not math.isfinite(sums[0]) or (loss.far > 0 and sums[loss.far] > loss.limit):
            return m + 1
        call_unpack(learner.where[UNPACKING], (table, gradient, descent.gradient))
        vectors = (descent.parameters, descent.gradient, descent.mean, descent.square, descent.steps)
        norm = call_descent(descent.where, (*vectors, descent.settings, rate, most))
        numbers[m, last] = norm
        if not math.isfinite(norm):
            return m + 1
    return len(ends)
