"""Circular buffer of batches for asynchronous learners (Luo et al. 2020, arXiv 1912.00167, section 3.1).

On disk each batch is a segment of its own, written once (see state/segments.py); a checkpoint adds how often each may
still be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rl_training.data.batch import Batch, FragmentBatch
from rl_training.data.collector import Carry
from rl_training.envs.spaces import action_codec
from rl_training.state.leaves import is_whole, require, require_array
from rl_training.state.segments import SegmentStore
from rl_training.state.stateful import Stateful
from rl_training.trees import tree_leaves, tree_map

Flat = dict[str, np.ndarray]  # the arrays of a batch by name


class CircularBuffer(Stateful):
    """The newest N batches, each drawn at most K times; a new one takes the place of the oldest.

    A batch that was drawn K times is no longer drawn, but keeps its place until N newer ones have come.
    """

    transient = ("capacity", "uses", "columns", "carry", "codec", "batches", "store")

    def __init__(
        self, capacity: int, uses: int, columns: Batch, carry: Carry, action_space: spaces.Space
    ) -> None:
        """`columns` [T, L, ...] and `carry` [L, ...] are what batches look like."""
        self.capacity, self.uses, self.columns, self.carry = capacity, uses, columns, carry
        self.codec = action_codec(action_space)
        self.added = 0  # batches since the start of the run
        self.left: list[int] = []  # uses of the newest N batches, the oldest first
        self.batches: dict[int, Flat] = {}  # by number, those with uses left
        self.store: SegmentStore | None = None

    def after(self, batch: FragmentBatch) -> Iterator[tuple[FragmentBatch, int]]:
        """Add a batch; then batches drawn uniformly of those with uses left, and how many came after each.

        One until N batches have come, so that the buffer fills; from then on K, as many uses as a new batch brings.
        """
        self.batches[self.added] = self._flat(batch)
        self.added += 1
        self.left = [*self.left, self.uses][-self.capacity :]
        self.batches.pop(self.added - 1 - self.capacity, None)
        for _ in range(1 if self.added < self.capacity else self.uses):
            numbers = sorted(self.batches)
            if not numbers:
                return
            number = numbers[int(torch.randint(len(numbers), ()))]
            drawn = self._batch(self.batches[number])
            place = number - self._oldest
            self.left[place] -= 1
            if not self.left[place]:
                del self.batches[number]
            yield drawn, self.added - 1 - number

    @property
    def _oldest(self) -> int:
        return self.added - len(self.left)

    def _flat(self, batch: FragmentBatch) -> Flat:
        """Copies of a batch's arrays: actors write over the originals."""
        rows: Any = {name: batch[name] for name in self.columns}  # type: ignore[literal-required]
        flat = {
            name: part.numpy().copy() for key in rows for name, part in tree_leaves(rows[key], f"rows/{key}")
        }
        flat |= {f"carry/{i}": part.cpu().numpy() for i, part in enumerate(batch["carry"])}
        places = [(t, lane) for t, lane, _ in batch["cut"]]
        flat["cut/place"] = np.array(places, np.int64).reshape(-1, 2)
        seen = [obs for _, _, obs in batch["cut"]]
        cut = tree_map(
            lambda column, *parts: np.stack(parts) if parts else column[0, :0], self.columns["obs"], *seen
        )
        return flat | dict(tree_leaves(cut, "cut/obs"))

    def _batch(self, flat: Flat) -> FragmentBatch:
        batch: Any = {
            key: tree_map(torch.from_numpy, _filled(column, f"rows/{key}", flat))
            for key, column in self.columns.items()
        }
        carry = [torch.from_numpy(flat[f"carry/{i}"]) for i in range(len(self.carry))]
        batch["carry"] = tuple(part.to(like.device) for part, like in zip(carry, self.carry, strict=True))
        seen = _filled(self.columns["obs"], "cut/obs", flat)
        batch["cut"] = [
            (t, lane, tree_map(lambda part, i=i: part[i], seen))
            for i, (t, lane) in enumerate(flat["cut/place"].tolist())
        ]
        return batch

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.store is None:
            return state | {"batches": {number: dict(flat) for number, flat in self.batches.items()}}
        self.store.keep({_segment(number) for number in self.batches})
        for number, flat in self.batches.items():
            if _segment(number) not in self.store:
                self.store.write(_segment(number), flat)
        return state | {"batches": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({name: part for name, part in state.items() if name != "batches"})
        numbers = [self._oldest + place for place, left in enumerate(self.left) if left]
        batches = state["batches"]
        if batches is None:
            if numbers and self.store is None:
                raise ValueError(
                    "CircularBuffer: batches were saved, but there is no folder to read them from"
                )
            batches = {number: self.store.read(_segment(number)) for number in numbers} if self.store else {}
        require(sorted(batches) == numbers, "CircularBuffer: other batches than those with uses left")
        for flat in batches.values():
            self._check(flat)
        self.batches = {number: dict(batches[number]) for number in numbers}

    def check_state(self) -> None:
        fits = is_whole(self.added) and len(self.left) == min(self.added, self.capacity)
        require(
            fits and all(is_whole(left, high=self.uses + 1) for left in self.left), "CircularBuffer: no uses"
        )

    def _check(self, flat: Flat) -> None:
        like = {
            name: part for key in self.columns for name, part in tree_leaves(self.columns[key], f"rows/{key}")
        }
        like |= {f"carry/{i}": part.cpu().numpy() for i, part in enumerate(self.carry)}
        places = flat.get("cut/place", np.empty(0))
        cut = {
            name: np.empty((len(places), *part.shape[2:]), part.dtype)
            for name, part in tree_leaves(self.columns["obs"], "cut/obs")
        }
        like |= cut | {"cut/place": np.empty((len(places), 2), np.int64)}
        require(flat.keys() == like.keys(), "CircularBuffer: no batch")
        for name, part in like.items():
            require_array(flat[name], part.shape, part.dtype, f"CircularBuffer.{name}")
            finite = part.dtype.kind != "f" or np.isfinite(flat[name]).all()
            require(finite, f"CircularBuffer.{name}: a number that is not finite")
        shape = self.columns["reward"].shape
        require(((places >= 0) & (places < shape)).all(), "CircularBuffer: time limits outside the batch")
        action = flat["rows/action"]
        taken = self.codec.holds(action.reshape(-1, *action.shape[2:]))
        require(taken, "CircularBuffer: actions outside the action space")


def _filled(like: Any, name: str, flat: Flat) -> Any:
    if isinstance(like, dict):
        return {key: _filled(part, f"{name}/{key}", flat) for key, part in like.items()}
    return flat[name]


def _segment(number: int) -> str:
    return f"batch-{number:012d}.safetensors"
