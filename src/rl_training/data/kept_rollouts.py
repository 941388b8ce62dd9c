"""Rollouts that are kept until a phase has enough of them: written once, one file each, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from rl_training.state.leaves import require
from rl_training.state.segments import SegmentStore
from rl_training.trees import Arrays, Tensors, tree_leaves, tree_map

# Raw observations [T, B, ...] and value targets [T, B]; no class statement, because `return` is a keyword.
Kept = TypedDict("Kept", {"obs": Tensors, "return": Tensor})


def write_rollouts(store: SegmentStore, kept: Sequence[Kept], so_far: int) -> None:
    """Write those of a phase that are not there yet, and let go of all others; the last is number `so_far` - 1."""
    names = _segments(len(kept), so_far)
    store.keep(set(names))
    for name, rollout in zip(names, kept, strict=True):
        if name not in store:
            store.write(name, {key: part.numpy() for key, part in tree_leaves(rollout, "kept")})


def read_rollouts(store: SegmentStore | None, count: int, so_far: int, obs: Arrays) -> list[Kept]:
    """The last `count` of `so_far`; `obs` are observations of the environment."""
    if count and store is None:
        raise ValueError("kept: rollouts were saved, but there is no folder to read them from")
    return [_read(store, name, obs) for name in _segments(count, so_far) if store is not None]


def _read(store: SegmentStore, name: str, obs: Arrays) -> Kept:
    arrays, like = store.read(name), {"obs": obs, "return": np.zeros(())}
    require(arrays.keys() == {leaf for leaf, _ in tree_leaves(like, "kept")}, "kept: no rollout")

    def filled(tree: Any, path: str) -> Any:
        if isinstance(tree, dict):
            return {key: filled(part, f"{path}/{key}") for key, part in tree.items()}
        return torch.from_numpy(arrays[path])

    rollout: Kept = filled(like, "kept")
    return rollout


def check_rollouts(kept: Sequence[Kept], lanes: tuple[int, int], obs: Arrays) -> None:
    """Refuse what no rollout of T steps in B = `lanes` environments with such observations gives."""
    like = tree_map(torch.as_tensor, obs)
    for rollout in kept:
        require(rollout.keys() == {"obs", "return"}, "kept: no rollout")
        returns = rollout["return"]
        require(returns.shape == lanes and returns.isfinite().all(), "kept: no returns")
        columns = zip(tree_leaves(like, "obs"), tree_leaves(rollout["obs"], "obs"), strict=True)
        for (name, part), (_, column) in columns:
            fits = column.shape == (*lanes, *part.shape[1:]) and column.dtype == part.dtype
            require(fits, f"kept: {name} of another shape")


def _segments(count: int, so_far: int) -> list[str]:
    return [f"rollout-{number:012d}.safetensors" for number in range(so_far - count, so_far)]
