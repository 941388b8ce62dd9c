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

    Each epoch covers every row once; the sizes differ by at most 1. An epoch is shuffled as a whole, so that
    its minibatches are views.
    """
    rows = len(batch["action"])
    ends = [rows * (i + 1) // num_minibatches for i in range(num_minibatches)]
    for _ in range(epochs):
        order = torch.randperm(rows, device=batch["action"].device)
        shuffled = tree_map(lambda column, order=order: column[order], batch)
        for start, end in zip([0, *ends], ends, strict=False):
            yield tree_map(lambda column, start=start, end=end: column[start:end], shuffled)
