"""Replay buffer for world models: one stream of steps per environment, sampled as sequences.

A row is an observation, the action taken there, the reward that came with it, whether an episode begins, ends or
terminates there, and the latent state of the policy that acted. An episode's last observation is a row of its own, in
which nothing is done; the first of the next follows it. A sequence may run over the seam: who reads it forgets where
`first` says so.

    row      0    1    2    3    4    5             reward[t] is what action[t - 1] earned
    obs      a₀   a₁   a₂   b₀   b₁   b₂            an episode of two steps, and one that goes on
    first    1    0    0    1    0    0
    last     0    0    1    0    0    0
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from rl_training.data.batch import Batch, SequenceBatch
from rl_training.errors import ConfigError
from rl_training.state.leaves import is_whole, require, require_array
from rl_training.state.segments import SegmentStore
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, tree_leaves, tree_map

SEGMENTS = 64  # into which a lane's full ring is cut on disk
LATENTS = ("deter", "stoch")


def going_on(obs: Arrays, reward: np.ndarray, first: np.ndarray, acted: Batch) -> Batch:
    """A row [B, ...] where something is done; `acted` holds the action and the latent it was chosen for."""
    never = np.zeros(len(reward), np.bool_)
    return {"obs": obs, "reward": reward, "first": first, "last": never, "terminal": never, **acted}


def ended(obs: Arrays, reward: np.ndarray, terminal: np.ndarray, acted: Batch) -> Batch:
    """A row [B, ...] of the last observations of episodes; no action follows, so actions and latents are zeros."""
    idle = {name: np.zeros_like(part) for name, part in acted.items()}
    never = np.zeros(len(reward), np.bool_)
    return {"obs": obs, "reward": reward, "first": never, "last": ~never, "terminal": terminal, **idle}


class StreamReplay(Stateful):
    """A ring of rows per lane, from which sequences of `length` rows and the one before them are drawn.

    Every stretch of a lane is drawn once soon after it is complete, before anything is drawn at random.
    `refresh` keeps latents apart from the immutable rest, so that they can be replaced.
    """

    transient = ("store", "columns")

    def __init__(
        self, capacity: int, row: Batch, *, length: int, num_classes: int, refresh: bool = False
    ) -> None:
        """`row` holds one row of every lane, [B, ...] each, as `add` takes it: for shapes and types alone."""
        self.lanes = len(row["reward"])
        self.capacity = capacity // self.lanes  # rows of a lane
        self.span = length + 1
        if self.capacity < 2 * self.span:
            raise ConfigError(
                f"{self.lanes} environments and sequences of {length} step{'s' * (length != 1)} need a buffer_size "
                f"of at least {2 * self.span * self.lanes}, not {capacity}",
                ("buffer_size",),
            )
        self.num_classes, self.refresh = num_classes, refresh
        self.rows = max(1, self.capacity // SEGMENTS)  # in a segment
        self.heads = np.zeros(self.lanes, np.int64)  # rows of each lane so far
        self.cut = np.zeros(self.lanes, np.int64)  # where each lane's next stretch begins
        self.fresh: deque[tuple[int, int]] = deque()  # (lane, first row) of stretches not yet drawn
        self.store: SegmentStore | None = None
        self.columns = tree_map(
            lambda part: np.zeros((self.lanes, self.capacity, *part.shape[1:]), _narrow(part.dtype)), row
        )

    def __len__(self) -> int:
        """How many sequences can be drawn."""
        return int(self._counts().sum())

    def largest_reward(self) -> float:
        """Of all that it holds, without its sign."""
        return float(np.abs(self.columns["reward"]).max())

    def add(self, lanes: np.ndarray, row: Batch) -> None:
        """One row [len(lanes), ...] of each of these lanes."""
        places = self.heads[lanes] % self.capacity
        for (_, column), (_, part) in zip(tree_leaves(self.columns, ""), tree_leaves(row, ""), strict=True):
            column[lanes, places] = part
        self.heads[lanes] += 1
        for lane in lanes:
            if self.heads[lane] - self.cut[lane] >= self.span:
                self.fresh.append((int(lane), int(self.cut[lane])))
                self.cut[lane] += self.span

    def sample(self, batch_size: int) -> SequenceBatch:
        """Sequences, time-major: `obs`, `reward`, `first`, `last`, `terminal` [L, B, ...] of L rows, and

        `action` [L, B, ...]       taken at the row before each
        `deter`, `stoch` [B, ...]  the latent at the row before all
        `lane`, `row` [B]          where they lie, for `put_latents`
        """
        lane, row = self._draw(batch_size)
        places = (row + np.arange(self.span)[:, None]) % self.capacity  # [L + 1, B]

        def rows(name: str, where: np.ndarray) -> Any:
            return tree_map(lambda column: torch.from_numpy(column[lane, where]), self.columns[name])

        return {
            "obs": rows("obs", places[1:]),
            "reward": rows("reward", places[1:]),
            "first": rows("first", places[1:]),
            "last": rows("last", places[1:]),
            "terminal": rows("terminal", places[1:]),
            "action": rows("action", places[:-1]),
            "deter": rows("deter", places[0]).float(),
            "stoch": one_hot(rows("stoch", places[0]), self.num_classes),
            "lane": lane,
            "row": row,
        }

    def taken(self) -> np.ndarray:
        """The actions that the ring holds, [rows of all lanes, ...]."""
        return np.concatenate(
            [lane[: int(head)] for lane, head in zip(self.columns["action"], self.heads, strict=True)]
        )

    def put_latents(self, lane: np.ndarray, row: np.ndarray, deter: np.ndarray, stoch: np.ndarray) -> None:
        """Replace the latents [L, B, ...] of sequences just drawn; `stoch` holds classes."""
        places = (row + np.arange(1, self.span)[:, None]) % self.capacity
        self.columns["deter"][lane, places] = deter
        self.columns["stoch"][lane, places] = stoch

    def _counts(self) -> np.ndarray:
        """For each lane, how many sequences begin in it."""
        return np.maximum(np.minimum(self.heads, self.capacity) - self.span + 1, 0)

    def _draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Lanes and first rows [B]: what is new comes first, the rest is drawn with the same probability each."""
        new: list[tuple[int, int]] = []
        while self.fresh and len(new) < batch_size:
            lane, row = self.fresh.popleft()
            if row >= self.heads[lane] - self.capacity:  # else overwritten before its turn came
                new.append((lane, row))
        ends = self._counts().cumsum()
        number = (np.random.random(batch_size - len(new)) * ends[-1]).astype(np.int64)
        lanes = np.searchsorted(ends, number, side="right")
        # Counted back from the newest, so that a lane whose ring has turned needs no case of its own.
        rows = self.heads[lanes] - self.span - (ends[lanes] - 1 - number)
        drawn = np.concatenate([np.array(new, np.int64).reshape(-1, 2), np.stack([lanes, rows], 1)])
        return drawn[:, 0], drawn[:, 1]

    def _lasting(self) -> list[tuple[str, np.ndarray]]:
        """The columns that never change once written."""
        leaves = [leaf for name, column in self.columns.items() for leaf in tree_leaves(column, name)]
        return [(name, column) for name, column in leaves if not (self.refresh and name in LATENTS)]

    def _oldest(self, lane: int) -> int:
        return max(int(self.heads[lane]) - self.capacity, 0)

    def _read(self, lane: int, begin: int, end: int) -> dict[str, np.ndarray]:
        places = np.arange(begin, end) % self.capacity
        return {name: column[lane, places] for name, column in self._lasting()}

    def state_dict(self) -> dict[str, Any]:
        """Counters and the rows that are in no segment; full segments are written to the store."""
        wanted = self._write_segments() if self.store is not None else [0] * self.lanes
        tails = [
            self._read(lane, max(full * self.rows, self._oldest(lane)), int(self.heads[lane]))
            for lane, full in enumerate(wanted)
        ]
        latents = {}
        if self.refresh:
            filled = int(min(self.heads.max(), self.capacity))
            latents = {name: self.columns[name][:, :filled].copy() for name in LATENTS}
        return {
            "heads": self.heads.copy(),
            "cut": self.cut.copy(),
            "fresh": np.array(self.fresh, np.int64).reshape(-1, 2),
            "segments": wanted,
            "tails": tails,
            "latents": latents,
        }

    def _write_segments(self) -> list[int]:
        """Write what is complete and not written yet; for each lane, how many segments are full."""
        assert self.store is not None
        full = [int(head) // self.rows for head in self.heads]
        spans = [(lane, number) for lane in range(self.lanes) for number in self._numbers(lane, full[lane])]
        self.store.keep({_segment(*span) for span in spans})
        for lane, number in spans:
            if _segment(lane, number) not in self.store:
                begin = max(number * self.rows, self._oldest(lane))
                self.store.write(_segment(lane, number), self._read(lane, begin, (number + 1) * self.rows))
        return full

    def _numbers(self, lane: int, full: int) -> range:
        return range(self._oldest(lane) // self.rows, full)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_counters(**{name: state[name] for name in ("heads", "cut", "fresh", "segments")})
        self.heads, self.cut = state["heads"].copy(), state["cut"].copy()
        self.fresh = deque((int(lane), int(row)) for lane, row in state["fresh"])
        for lane, (full, tail) in enumerate(zip(state["segments"], state["tails"], strict=True)):
            for number in self._numbers(lane, full):
                if self.store is None:
                    raise ValueError(
                        "StreamReplay: segments were saved, but there is no folder to read them from"
                    )
                begin = max(number * self.rows, self._oldest(lane))
                rows = self.store.read(_segment(lane, number))
                self._put(lane, begin, (number + 1) * self.rows, rows)
            self._put(lane, max(full * self.rows, self._oldest(lane)), int(self.heads[lane]), tail)
        latents, filled = state["latents"], int(min(self.heads.max(), self.capacity))
        require(set(latents) == set(LATENTS if self.refresh else ()), "StreamReplay: latents of others")
        for name, saved in latents.items():
            column = self.columns[name]
            require_array(
                saved, (self.lanes, filled, *column.shape[2:]), column.dtype, f"StreamReplay.{name}"
            )
            column[:, :filled] = saved

    def _check_counters(self, heads: Any, cut: Any, fresh: Any, segments: Any) -> None:
        """Places in the ring follow from these."""
        for name, array in (("heads", heads), ("cut", cut)):
            require_array(array, (self.lanes,), np.int64, f"StreamReplay.{name}")
        require(
            ((heads >= 0) & (heads < 2**62) & (cut >= 0) & (cut <= heads)).all(), "StreamReplay: no counters"
        )
        full = [
            is_whole(count, high=int(head) // self.rows + 1)
            for count, head in zip(segments, heads, strict=True)
        ]
        require(all(full), "StreamReplay.segments: more than there are rows for")
        require_array(fresh, (len(fresh), 2), np.int64, "StreamReplay.fresh")
        lane, row = fresh.T
        there = ((lane >= 0) & (lane < self.lanes)).all() and (
            (row >= 0) & (row + self.span <= heads[lane])
        ).all()
        require(there, "StreamReplay.fresh: stretches that are not there")

    def _put(self, lane: int, begin: int, end: int, rows: dict[str, np.ndarray]) -> None:
        """Rows that end before `end`, into their places from `begin` on; what is older, the ring has passed."""
        columns = dict(self._lasting())
        if columns.keys() != rows.keys():
            raise ValueError(f"StreamReplay: saved with {', '.join(rows)}, but it holds {', '.join(columns)}")
        count = len(rows["reward"])
        require(
            end - begin <= count <= self.capacity, f"StreamReplay: {count} rows, but {end - begin} are due"
        )
        places = np.arange(begin, end) % self.capacity
        for name, column in columns.items():
            require_array(rows[name], (count, *column.shape[2:]), column.dtype, f"StreamReplay.{name}")
            column[lane, places] = rows[name][count - (end - begin) :]


def one_hot(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Classes [..., S] as the latent [..., K · S]."""
    hot = classes.unsqueeze(-2) == torch.arange(num_classes, dtype=classes.dtype).unsqueeze(-1)
    return hot.float().flatten(-2)


def _segment(lane: int, number: int) -> str:
    return f"stream-{lane:05d}{number:07d}.safetensors"


def _narrow(dtype: np.dtype) -> np.dtype:
    """Networks compute in float32: what is wider is stored so."""
    return np.dtype(np.float32) if dtype == np.float64 else dtype
