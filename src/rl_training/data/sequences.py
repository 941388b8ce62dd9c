"""Rollouts as sequences for recurrent networks: split at episode ends, shuffled by environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.batch import BatchT, lane_groups, take_lanes
from rl_training.networks.recurrent import Carry, Sequences


def cut_sequences(ended: np.ndarray) -> Sequences:
    """The sequences of a rollout [T, B]: a lane's steps, cut after each end of an episode.

    Rows are numbered as in the flattened rollout: step t of lane b is row t · B + b.
    """
    steps, lanes = ended.shape
    starts = np.ones((lanes, steps), np.bool_)
    starts[:, 1:] = ended[:-1].T
    # Lane by lane, sequence by sequence.
    first = np.flatnonzero(starts)
    sequence = np.cumsum(starts) - 1
    step = np.arange(lanes * steps) - first[sequence]
    row = np.arange(lanes * steps).reshape(steps, lanes).T.reshape(-1)
    rows = np.zeros((step.max() + 1, len(first)), np.int64)
    rows[step, sequence] = row
    places = np.empty(lanes * steps, np.int64)
    places[row] = step * len(first) + sequence
    return Sequences(*map(torch.from_numpy, (rows, places, first // steps, first % steps > 0)))


def sequence_minibatches(
    rollout: BatchT, ended: Tensor, carry: Carry, epochs: int, num_minibatches: int
) -> Iterator[BatchT]:
    """Columns [T, B, ...] cut into shuffled groups of whole lanes, `epochs` times over.

    Each minibatch holds rows [T · b, ...], the `sequences` they lie in, and the `carry` that their lanes began
    the rollout with. Steps are never torn out of their sequence; the sizes differ by at most one lane.
    """
    device = carry[0].device
    for group in lane_groups(ended.shape[1], epochs, num_minibatches):
        sequences = cut_sequences(ended[:, group].numpy())
        minibatch: Any = {
            **take_lanes(rollout, group),
            "sequences": Sequences(*(part.to(device) for part in sequences)),
            "carry": tuple(part[group] for part in carry),
        }
        yield minibatch


def append_bootstraps(sequences: Sequences, ended: np.ndarray, cut: list[tuple[int, int]]) -> Sequences:
    """The sequences of a rollout [T, B], each followed by what its last action led to.

    The rows gain B + K: what each lane sees after the rollout, and then what was seen at each of the K places (t, lane)
    where a time limit cut an episode. A lane whose last step ended its episode has nothing to follow; its row is
    there, and means nothing.
    """
    steps, lanes = ended.shape
    rows, places, count = sequences.rows.numpy(), sequences.places.numpy(), sequences.rows.shape[1]
    lengths = np.bincount(places % count, minlength=count)
    last = [(steps - 1, lane) for lane in range(lanes)]
    extended = np.concatenate([rows, np.zeros((1, count), np.int64)])
    more = np.zeros(lanes + len(cut), np.int64)
    for i, (t, lane) in enumerate([*last, *cut]):
        if i < lanes and ended[t, lane]:
            continue
        sequence = places[t * lanes + lane] % count
        extended[lengths[sequence], sequence] = steps * lanes + i
        more[i] = lengths[sequence] * count + sequence
    return sequences._replace(
        rows=torch.from_numpy(extended), places=torch.from_numpy(np.concatenate([places, more]))
    )
