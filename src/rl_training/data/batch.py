"""Batch: a plain dict of tensors, time-major [T, B, ...]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rl_training.trees import tree_map

Batch = dict[str, Any]


def flatten_time(batch: Batch) -> Batch:
    """[T, B, ...] → [T·B, ...]."""
    return tree_map(lambda column: column.flatten(0, 1), batch)


def minibatches(batch: Batch, epochs: int, num_minibatches: int) -> Iterator[Batch]:
    """[N, ...] cut into shuffled minibatches, `epochs` times over.

    Each epoch covers every row once; the sizes differ by at most 1.
    """
    action = batch["action"]
    for _ in range(epochs):
        for rows in torch.randperm(len(action)).to(action.device).tensor_split(num_minibatches):
            yield tree_map(lambda column, rows=rows: column[rows], batch)
