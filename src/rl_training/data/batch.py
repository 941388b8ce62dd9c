"""Batches: plain dicts of tensors, with the fields of each family of algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.ppo import Acted
from rl_training.networks.recurrent import Sequences
from rl_training.trees import Arrays, Tensors, tree_map

Batch = dict[str, Any]


class Priorities(TypedDict, total=False):
    """What a batch has besides where it was drawn by priority."""

    index: np.ndarray  # [B], for `Replay.set_priorities`
    weight: Tensor  # [B], which corrects for how it was drawn


class TransitionBatch(Priorities):
    """Transitions of n steps, or fewer where an episode ended: what SAC and DQN learn from."""

    obs: Tensors  # [B, ...]
    action: Tensor
    reward: Tensor  # [B], the discounted sum of its rewards
    next_obs: Tensors
    discount: Tensor  # [B], what the value of `next_obs` is worth


class PositionBatch(Priorities):
    """Positions with the K steps after them, as `EpisodeReplay` has them: what planners learn from."""

    action: Tensor  # [K, B]
    reward: Tensor  # [K, B]
    policy: Tensor  # [K + 1, B, A]
    returns: Tensor  # [K + 1, B]
    discount: Tensor  # [K + 1, B]
    acted: Tensor  # [K + 1, B]
    known: Tensor  # [K + 1, B]
    places: np.ndarray  # [K + 1, B]
    bootstrap: np.ndarray  # [K + 1, B]
    turn: NotRequired[Tensor]  # [B], by which symmetry of the game each is shown
    # [K + 1, B, A, D], the vectors that `policy` is about; `action` is [K, B, D] then.
    samples: NotRequired[Tensor]


class WindowBatch(TypedDict):
    """Positions of one task with the K steps after them, rows first: what ScaleZero learns from."""

    obs: Tensors  # [B · (K + 1), ...]
    next_obs: Tensors  # [B · K, ...]
    action: Tensor  # [B, K]
    reward: Tensor  # [B, K]
    policy: Tensor  # [B, K + 1, A]
    returns: Tensor  # [B, K + 1]
    discount: Tensor  # [B, K + 1]
    acted: Tensor  # [B, K + 1]
    known: Tensor  # [B, K + 1]
    bootstrap: np.ndarray  # of the positions with a discount, places of what is bootstrapped from


class Steps(TypedDict):
    """T steps of B lanes, as `Collector` has them."""

    obs: Tensors  # [T, B, ...]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B]
    terminated: Tensor  # [T, B]
    truncated: Tensor  # [T, B]


class Rollout(Steps, total=False):
    """The same of an actor-critic."""

    log_prob: Tensor  # [T, B]
    value: Tensor  # [T, B]
    next_value: Tensor  # [T, B], of where each action led


class Remembered(TypedDict, total=False):
    """What rows have besides for a network with a memory."""

    sequences: Sequences  # which they lie in
    carry: tuple[Tensor, ...]  # [b, ...] each: the memories that their lanes began with


class RolloutBatch(Acted, Remembered):
    """Rows of rollouts, N or T times B: what PPO and its kin learn from."""

    obs: Tensors  # [N, ...], normalised
    action: Tensor  # [N, ...]


class AnchoredBatch(RolloutBatch):
    """The same around a target network's policy: what APPO learns from."""

    parameters: Tensor  # [N, ...], of that policy's action distribution


class FragmentBatch(TypedDict):
    """Fragments of actors side by side, L lanes of T steps: what IMPALA and APPO learn from."""

    obs: Tensors  # [T + 1, L, ...], at last what follows the last step
    action: Tensor  # [T, L, ...]
    log_prob: Tensor  # [T, L], of the actor's policy
    reward: Tensor  # [T, L]
    terminated: Tensor  # [T, L]
    truncated: Tensor  # [T, L]
    cut: list[tuple[int, int, Arrays]]  # (t, lane, obs) where time limits ended episodes
    carry: tuple[Tensor, ...]  # [L, ...] each: the memories that the lanes began with


class SequenceBatch(TypedDict):
    """Sequences of L steps, as `StreamReplay` has them: what Dreamer learns from."""

    obs: Tensors  # [L, B, ...]
    action: Tensor  # [L, B, ...], taken at the row before each
    reward: Tensor  # [L, B]
    first: Tensor  # [L, B]
    last: Tensor  # [L, B]
    terminal: Tensor  # [L, B]
    deter: Tensor  # [B, ...], the latent at the row before all
    stoch: Tensor  # [B, ...]
    lane: np.ndarray  # [B]
    row: np.ndarray  # [B]


class HasAction(TypedDict):
    action: Tensor


BatchT = TypeVar("BatchT", bound=Mapping[str, object])
RowsT = TypeVar("RowsT", bound=HasAction)
TreeT = TypeVar("TreeT")


def on_device(batch: BatchT, device: torch.device) -> BatchT:
    """A batch with its tensors on a device; arrays, which say where rows lie in a replay, stay."""
    sent: Any = {name: part.to(device) if isinstance(part, Tensor) else part for name, part in batch.items()}
    return sent


def flatten_time(batch: TreeT) -> TreeT:
    """[T, B, ...] → [T·B, ...]."""
    return tree_map(lambda column: column.flatten(0, 1), batch)


def minibatches(batch: RowsT, epochs: int, num_minibatches: int) -> Iterator[RowsT]:
    """[N, ...] cut into shuffled minibatches, `epochs` times over.

    Each epoch covers every row once; the sizes differ by at most 1. An epoch is shuffled as a whole, so that
    its minibatches are views.
    """
    rows = len(batch["action"])
    for _ in range(epochs):
        order = torch.randperm(rows, device=batch["action"].device)
        shuffled = tree_map(lambda column, order=order: take_rows(column, order), batch)
        for start, end in even_parts(rows, num_minibatches):
            yield tree_map(lambda column, start=start, end=end: column[start:end], shuffled)


def take_rows(column: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """column[rows], copied row by row: frames with their channels last in memory take a tenth of the time."""
    if column.ndim == 4 and column.is_contiguous(memory_format=torch.channels_last):
        return column.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return column.index_select(0, rows)


def lane_groups(lanes: int, epochs: int, num_groups: int) -> Iterator[torch.Tensor]:
    """The numbers of `lanes` lanes in shuffled groups, `epochs` times over: for rollouts that must stay whole."""
    for _ in range(epochs):
        order = torch.randperm(lanes) if num_groups > 1 else torch.arange(lanes)
        yield from (order[start:end] for start, end in even_parts(lanes, num_groups))


def even_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """(start, end) of `parts` neighbouring ranges that cover `count` places; their sizes differ by at most 1."""
    ends = [count * (i + 1) // parts for i in range(parts)]
    return list(zip([0, *ends], ends, strict=False))


def take_lanes(batch: TreeT, lanes: torch.Tensor) -> TreeT:
    """Some lanes of columns [T, B, ...] as rows [T·b, ...]."""
    return tree_map(lambda column: column[:, lanes].flatten(0, 1), batch)
