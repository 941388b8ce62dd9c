"""Replay buffer of transitions.

Observations lie in a ring, in the order in which they arrived, each once: where an action led is the next
observation of its lane. Of stacked frames only the newest is kept, and the first observation of an episode
brings all of its frames, so that a stack rebuilt here is the stack the agent saw. The last observation of an
episode has a place of its own that no action was taken in, so a time limit bootstraps from the true one.

    slot      0    1    2    3    4    5            two lanes, a and b; b's episode ends with its first action
    lane      a    b    a    b    b    a            3 is b's final observation, 4 the first of its next episode
    behind    0    0    2    2    0    3            how far back the lane's observation before this one is

On disk the ring is a row of immutable segments that are written once (see state/segments.py); a checkpoint
lists them, and holds itself only what no segment is full of yet.
"""

from __future__ import annotations

from typing import Any, Generic

import numpy as np
import torch

from rl_training.compiling import njit
from rl_training.data.batch import Batch, BatchT
from rl_training.data.sum_tree import SumTree, put_leaf
from rl_training.errors import ConfigError, RunError
from rl_training.state.leaves import is_whole, require, require_array
from rl_training.state.segments import PartOfStore, SegmentStore
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, put_rows, tree_leaves, tree_map

# What happened at a slot, as bits.
TAKEN, TERMINATED, TRUNCATED = 1, 2, 4
HALF = "e"  # what numpy calls float16, which numba does not compile for
SEGMENTS = 64  # into which a full ring is cut on disk


class Replay(Stateful, Generic[BatchT]):
    """A ring of `capacity` observations with what was done at them, sampled uniformly or by priority.

    `stack` is how many of an observation's leading frames slide: 1 for observations that are kept whole.
    """

    # The columns that mean something only where an action was taken.
    acted: tuple[str, ...] = ("action", "reward")

    def __init__(
        self,
        capacity: int,
        obs: Arrays,
        *,
        n_step: int = 1,
        stack: int = 1,
        prioritized: bool = False,
    ) -> None:
        self.lanes = len(next(tree_leaves(obs, ""))[1])
        self.capacity, self.n_step, self.stack = capacity, n_step, stack
        # So near to the oldest slot, the frames before an observation may be overwritten already, and
        # transitions that became complete in another order than they began may be gone.
        self.margin = (n_step + stack) * self.lanes * (stack + 1)
        if capacity < 4 * self.margin:
            raise ConfigError(
                f"{self.lanes} environments and targets of {n_step} step{'s' * (n_step != 1)} need a buffer_size "
                f"of at least {4 * self.margin}, not {capacity}",
                ("buffer_size",),
            )
        self.head = 0  # the slot that is written next; slots are counted from the start of the run
        self.open = np.zeros(self.lanes, np.int64)  # each lane's newest slot, where its next action belongs
        self.observations = tree_map(self._column, obs)
        self.action: np.ndarray | None = None  # its type is known with the first one
        self.reward = np.empty(capacity, np.float32)
        self.happened = np.zeros(capacity, np.uint8)
        self.behind = np.zeros(capacity, np.int32)
        self.ahead = np.zeros(capacity, np.int32)
        # The transitions that can be sampled are ready[first:last], both counted from the start of the run.
        self.ready = np.empty(capacity, np.int64)
        self.first = self.last = 0
        self.priorities = SumTree(capacity) if prioritized else None
        self.rows = max(1, capacity // SEGMENTS)  # slots in a segment
        self.store: SegmentStore | PartOfStore | None = None
        self.drawn: dict[int, Batch] = {}
        self._begin(np.arange(self.lanes), obs)

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return self.last - self.first

    def largest_reward(self) -> float | None:
        """Of all that it holds, without its sign."""
        held = self.reward[self.happened > 0]
        return float(np.abs(held).max()) if len(held) else None

    def add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_obs: Arrays,
        obs: Arrays,
    ) -> None:
        """One step of every lane [B, ...]: what was done, and where it led.

        `next_obs` is where the action led, also at the end of an episode; `obs` is what the lane acts on next,
        which differs from it only where an episode ended.
        """
        if self.action is None:
            self.action = np.empty((self.capacity, *action.shape[1:]), _narrow(action.dtype))
        plain = self.stack == 1 and action.dtype.char != HALF
        if plain and isinstance(next_obs, np.ndarray) and next_obs.dtype.char in "fd":
            self._put_steps(action, reward[None], terminated[None], truncated[None], next_obs, obs)
            return
        here = self.open % self.capacity
        self.action[here] = action
        if self.stack > 1 and isinstance(next_obs, np.ndarray):
            self._check_that_frames_slide(here, next_obs)
        self._append(tree_map(self._newest_frame, next_obs), self.lanes)
        _record(self.open, self.head, reward, terminated, truncated, *self._links())
        self._complete(self.head - self.lanes)
        if terminated.any() or truncated.any():
            ended = (terminated | truncated).nonzero()[0]
            self._begin(ended, tree_map(lambda column: column[ended], obs))
        self._forget()

    def extend(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_obs: np.ndarray,
        obs: np.ndarray,
    ) -> None:
        """T steps of every lane [T, B, ...]: what `add` does with them one by one."""
        steps = len(reward)
        overlap = 2 * reward.size > self.capacity  # some would be overwritten by others of them
        if self.stack > 1 or overlap or HALF in (next_obs.dtype.char, action.dtype.char):
            for t in range(steps):
                self.add(action[t], reward[t], terminated[t], truncated[t], next_obs[t], obs[t])
            return
        if self.action is None:
            self.action = np.empty((self.capacity, *action.shape[2:]), _narrow(action.dtype))
        self._put_steps(action, reward, terminated, truncated, next_obs, obs)

    def _put_steps(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_obs: np.ndarray,
        obs: Arrays,
    ) -> None:
        """Steps [T, B] of which none overwrites another, stored in one call; T is left out where it is 1."""
        assert isinstance(self.observations, np.ndarray) and isinstance(obs, np.ndarray)
        assert self.action is not None
        size = reward.size
        rows = (action.reshape(size, -1), next_obs.reshape(size, -1), obs.reshape(size, -1))
        stored = (self.action.reshape(self.capacity, -1), self.observations.reshape(self.capacity, -1))
        nodes, maxima = NO_PRIORITIES
        if self.priorities is not None:
            nodes, maxima = self.priorities.nodes, self.priorities.maxima
        ring = (self.reward, self.happened, self.behind, self.ahead, self.ready)
        counters, how = (self.head, self.first, self.last), (np.empty(self.n_step, np.int64), self.margin)
        steps = (reward, terminated, truncated)
        self.head, self.first, self.last = _put_steps(
            self.open, counters, steps, ring, how, nodes, maxima, rows, stored
        )

    def sample(self, batch_size: int, gamma: float) -> BatchT:
        """Transitions drawn with the same probability each: `obs`, `action`, `reward`, `next_obs`, `discount`.

        `reward` is the discounted sum of up to n rewards and `discount` what the value of `next_obs` is worth:

            Rₜ = Σ_{k<m} γᵏ rₜ₊ₖ        discount = γᵐ, or 0 where the episode terminated

        with m = n, or less where an episode ended before. The batch is valid until the next one is drawn.
        """
        count = self.last - self.first
        counter = self.first + (np.random.random(batch_size) * count).astype(np.int64)
        return self._gather(counter, gamma)

    def sample_by_priority(self, batch_size: int, gamma: float, importance_exponent: float) -> BatchT:
        """Transitions drawn with probability P(i) ∝ pᵢ, one from each equal share of the total (Schaul et al. 2016).

        Adds `index` for `set_priorities`, and `weight` = (N P(i))^-β, divided by the largest of the batch.
        """
        assert self.priorities is not None
        place, probability = self.priorities.draw(np.random.random(batch_size))
        weight = (len(self) * probability) ** -importance_exponent
        share = torch.from_numpy((weight / weight.max()).astype(np.float32))
        drawn: Any = {**self._gather(place, gamma), "index": place, "weight": share}
        return drawn

    def set_priorities(
        self,
        index: np.ndarray,
        error: np.ndarray,
        priority_exponent: float,
        factor: np.ndarray | float = 1.0,
    ) -> None:
        """pᵢ = fᵢ (|δᵢ| + ε)^α for the transitions of a batch just drawn."""
        assert self.priorities is not None
        surprise = (np.abs(error).astype(np.float64) + 1e-6) ** priority_exponent
        self.priorities.put(index, factor * surprise)

    def taken(self) -> np.ndarray | None:
        """The actions that the ring holds, zeros where none was taken; None before the first."""
        if self.action is None:
            return None
        return np.where(self.happened > 0, self.action.T, 0).T[: self.head]

    @property
    def nbytes(self) -> int:
        """Memory that the columns take when the ring is full."""
        columns = [column for _, column in self._columns()]
        return sum(column.nbytes for column in (*columns, self.ahead, self.ready))

    def _column(self, obs: np.ndarray) -> np.ndarray:
        shape = obs.shape[1:] if self.stack == 1 else obs.shape[2:]
        return np.empty((self.capacity, *shape), _narrow(obs.dtype))

    def _newest_frame(self, obs: np.ndarray) -> np.ndarray:
        return obs if self.stack == 1 else obs[:, -1]

    def _append(self, frames: Arrays, count: int) -> None:
        """Frames [count, ...] into the next slots."""
        begin = self.head % self.capacity
        if begin + count <= self.capacity:
            put_rows(self.observations, frames, slice(begin, begin + count))
        else:
            put_rows(self.observations, frames, np.arange(begin, begin + count) % self.capacity)
        self.head += count

    def _begin(self, lanes: np.ndarray, obs: Arrays) -> None:
        """The first observations of episodes, with all their frames."""
        for row, lane in enumerate(lanes):
            frames = tree_map(lambda column, row=row: column[row : row + 1], obs)
            slots = np.arange(self.head, self.head + self.stack) % self.capacity
            self.happened[slots] = 0
            self.behind[slots] = np.arange(self.stack) > 0
            self._append(frames if self.stack == 1 else frames[0], self.stack)
            self.open[lane] = self.head - 1

    def _links(self) -> tuple[np.ndarray, ...]:
        return self.reward, self.happened, self.behind, self.ahead

    def _check_that_frames_slide(self, here: np.ndarray, next_obs: np.ndarray) -> None:
        if not np.array_equal(self.observations[here], next_obs[:, -2]):
            raise RunError("the frame stack of this environment does not shift by one frame per step")

    def _complete(self, begin: int) -> None:
        """Find what the slots from `begin` on complete."""
        oldest, before = self.head - self.capacity, self.last
        self.last = _complete(begin, self.head, oldest, *self._chains(), before)
        if self.priorities is not None:
            self.priorities.put_largest(np.arange(before, self.last) % self.capacity)

    def _chains(self) -> tuple[np.ndarray, ...]:
        return self.behind, self.happened, np.empty(self.n_step, np.int64), self.ready

    def _forget(self) -> None:
        """Let go of what is overwritten, or may be soon."""
        lowest = self.head - self.capacity + self.margin
        while self.first < self.last and self.ready[self.first % self.capacity] < lowest:
            if self.priorities is not None:
                self.priorities.put(np.array([self.first % self.capacity]), np.zeros(1))
            self.first += 1

    def _gather(self, counter: np.ndarray, gamma: float) -> BatchT:
        size = len(counter)
        if size not in self.drawn:
            self.drawn[size] = self._allocate(size)
        batch = self.drawn[size]
        arrays = batch["arrays"]
        _trace(
            counter,
            (self.ready, self.ahead, self.behind, self.reward, self.happened),
            gamma,
            self.n_step,
            arrays["here"],
            arrays["there"],
            arrays["reward"],
            arrays["discount"],
        )
        # "clip" spares a check; no place is out of range.
        assert self.action is not None
        self.action.take(arrays["here"][:, -1], 0, arrays["action"], "clip")
        for name, places in (("obs", arrays["here"]), ("next_obs", arrays["there"])):
            places = places if self.stack > 1 else places[:, 0]
            tree_map(
                lambda column, out, places=places: column.take(places, 0, out, "clip"),
                self.observations,
                arrays[name],
            )
        return batch["tensors"].copy()

    def _allocate(self, size: int) -> Batch:
        """The arrays that batches of one size are written to, and the same memory as tensors."""
        assert self.action is not None

        def rows(column: np.ndarray) -> np.ndarray:
            stacked = () if self.stack == 1 else (self.stack,)
            return np.empty((size, *stacked, *column.shape[1:]), column.dtype)

        batch = {
            "obs": tree_map(rows, self.observations),
            "next_obs": tree_map(rows, self.observations),
            "action": np.empty((size, *self.action.shape[1:]), self.action.dtype),
            "reward": np.empty(size, np.float32),
            "discount": np.empty(size, np.float32),
        }
        places = {name: np.empty((size, self.stack), np.int64) for name in ("here", "there")}
        return {"arrays": batch | places, "tensors": tree_map(torch.from_numpy, batch)}

    def _columns(self) -> list[tuple[str, np.ndarray]]:
        """Everything from which a ring can be rebuilt, by name."""
        columns = [*tree_leaves(self.observations, "obs"), ("reward", self.reward)]
        columns += [("happened", self.happened), ("behind", self.behind)]
        return columns if self.action is None else [*columns, ("action", self.action)]

    def _slots(self, begin: int, end: int) -> dict[str, np.ndarray]:
        """What is in these slots; where no action was taken, zeros in place of what the memory held before."""
        place = np.arange(begin, end) % self.capacity
        rows = {name: column[place] for name, column in self._columns()}
        idle = rows["happened"] == 0
        for name in rows.keys() & set(self.acted):
            rows[name][idle] = 0
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Counters, priorities, and the slots that are in no segment; full segments are written to the store."""
        written = self._write_segments() if self.store is not None else 0
        begin = max(written * self.rows, self.head - self.capacity, 0)
        state = {
            "head": self.head,
            "open": self.open.copy(),
            "first": self.first,
            "last": self.last,
            "segments": written,
            "slots": self._slots(begin, self.head),
            "priorities": None,
        }
        if self.priorities is not None:
            places = np.arange(self.first, self.last) % self.capacity
            state["priorities"] = {"leaves": self.priorities.get(places)}
        return state

    def _write_segments(self) -> int:
        """Write what is complete and not written yet; how many segments are full since the start of the run."""
        assert self.store is not None
        oldest = max(self.head - self.capacity, 0)
        full = int(self.open.min()) // self.rows
        wanted = {_segment(number) for number in range(oldest // self.rows, full)}
        self.store.keep(wanted)
        for number in range(oldest // self.rows, full):
            if _segment(number) not in self.store:
                begin, end = max(number * self.rows, oldest), (number + 1) * self.rows
                self.store.write(_segment(number), self._slots(begin, end))
        return full

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_counters(**{name: state[name] for name in ("head", "open", "first", "last", "segments")})
        self.head, self.open = state["head"], state["open"].copy()
        oldest = max(self.head - self.capacity, 0)
        written = state["segments"]
        if written:
            if self.store is None:
                raise ValueError("Replay: segments were saved, but there is no folder to read them from")
            for number in range(oldest // self.rows, written):
                rows, end = self.store.read(_segment(number)), (number + 1) * self.rows
                self._put(max(number * self.rows, oldest), end, rows)
        self._put(max(written * self.rows, oldest), self.head, state["slots"])
        slots = np.arange(oldest, self.head)
        behind = self.behind[slots % self.capacity]
        before = slots - behind
        linked = (behind > 0) & (before >= oldest)
        self.ahead[before[linked] % self.capacity] = behind[linked]
        self._find_ready(oldest, state["first"], state["last"])
        if self.priorities is not None:
            places = np.arange(self.first, self.last) % self.capacity
            self.priorities.load(places, state["priorities"]["leaves"])

    def _check_counters(self, head: Any, open: Any, first: Any, last: Any, segments: Any) -> None:
        """Compiled code follows these through the ring and looks at no bounds."""
        require(all(map(is_whole, (head, first, last, segments))), "Replay: a counter that is none")
        require(first <= last <= head and last - first <= self.capacity, "Replay: no transitions in order")
        require(segments * self.rows <= head, "Replay: more segments than slots")
        require_array(open, (self.lanes,), np.int64, "Replay.open")
        inside = (open >= max(head - self.capacity, 0)) & (open < head)
        require(inside.all() and len(np.unique(open)) == self.lanes, "Replay.open: slots that are not there")

    def _put(self, begin: int, end: int, rows: dict[str, np.ndarray]) -> None:
        """Slots that end before `end`, into their places from `begin` on; what is older, the ring has passed."""
        if self.action is None and "action" in rows:
            action = rows["action"]
            self.action = np.empty((self.capacity, *action.shape[1:]), _narrow(action.dtype))
        columns = dict(self._columns())
        if columns.keys() != rows.keys():
            raise ValueError(f"Replay: saved with {', '.join(rows)}, but it holds {', '.join(columns)} here")
        count = len(rows["happened"])
        require(end - begin <= count <= self.capacity, f"Replay: {count} slots, but {end - begin} are due")
        for name, column in columns.items():
            require_array(rows[name], (count, *column.shape[1:]), column.dtype, f"Replay.{name}")
        behind, happened = rows["behind"], rows["happened"]
        require((behind >= 0).all() and (behind <= self.capacity).all(), "Replay.behind: outside the ring")
        require((happened <= TAKEN | TERMINATED | TRUNCATED).all(), "Replay.happened: what cannot happen")
        place = np.arange(begin, end) % self.capacity
        for name, column in columns.items():
            column[place] = rows[name][count - (end - begin) :]

    def _find_ready(self, oldest: int, first: int, last: int) -> None:
        """Which transitions can be sampled follows from the slots, and in the order in which they became complete."""
        found = _complete(oldest, self.head, oldest, *self._chains(), 0)
        if found < last - first:
            raise ValueError(f"Replay: {last - first} transitions were saved, but only {found} are there")
        entries = self.ready[found - (last - first) : found].copy()
        self.ready[np.arange(first, last) % self.capacity] = entries
        self.first, self.last = first, last


NO_PRIORITIES = np.empty(0), np.empty(0, np.float32)


def _segment(number: int) -> str:
    return f"replay-{number:012d}.safetensors"


def _narrow(dtype: np.dtype) -> np.dtype:
    """Networks compute in float32: what is wider is stored so."""
    return np.dtype(np.float32) if dtype == np.float64 else dtype


@njit(borrows=True)
def _record(open_, head, rewards, terminated, truncated, reward, happened, behind, ahead):  # type: ignore[no-untyped-def]
    """Write down what was done at the open slots, and move them to the newest slots, which end before `head`."""
    size = len(reward)
    for lane in range(len(open_)):
        slot = head - len(open_) + lane
        here, there, step = open_[lane] % size, slot % size, slot - open_[lane]
        reward[here] = rewards[lane]
        happened[here] = TAKEN + TERMINATED * terminated[lane] + TRUNCATED * truncated[lane]
        happened[there] = 0
        ahead[here] = behind[there] = step
        open_[lane] = slot


@njit(borrows=True)
def _complete(begin, end, oldest, behind, happened, chain, ready, last):  # type: ignore[no-untyped-def]
    """Append to `ready` the transitions that the slots [begin, end) complete; the new end of `ready`.

    A slot completes the one n steps before it, or where it is an episode's last, all that are still open.
    `chain` [n] is room for them.
    """
    size, n_step = len(ready), len(chain)
    for slot in range(begin, end):
        count, at = 0, slot
        while count < n_step:
            step = behind[at % size]
            if step == 0 or at - step < oldest or not happened[(at - step) % size] & TAKEN:
                break
            at -= step
            chain[count] = at
            count += 1
        if count == 0:
            continue
        over = happened[chain[0] % size] & (TERMINATED | TRUNCATED)
        if count == n_step or over:
            for k in range(count - 1, -1 if over else count - 2, -1):
                ready[last % size] = chain[k]
                last += 1
    return last


@njit(calls=True, borrows=True)
def _put_steps(open_, counters, steps, ring, how, nodes, maxima, rows, stored):  # type: ignore[no-untyped-def]
    """`Replay.add` for steps [T, B] in a row.

    counters: the next slot to write, and the first and the last transition that can be drawn; → what they are then
    how: room [n] for the slots of an n-step return, and how many of the oldest slots are left alone
    steps: rewards, and where episodes terminated and were truncated
    rows: actions, next observations and observations [T · B, ...]; stored: actions and observations of all slots
    """
    reward, happened, behind, ahead, ready = ring
    rewards, terminated, truncated = steps
    actions, next_obs, obs = rows
    taken, seen = stored
    (chain, margin), (head, first, last) = how, counters
    size, lanes = len(reward), len(open_)
    for t in range(len(rewards)):
        for lane in range(lanes):
            _put_row(taken[open_[lane] % size], actions[t * lanes + lane])
            _put_row(seen[(head + lane) % size], next_obs[t * lanes + lane])
        head += lanes
        _record(open_, head, rewards[t], terminated[t], truncated[t], reward, happened, behind, ahead)
        before = last
        last = _complete(head - lanes, head, head - size, behind, happened, chain, ready, before)
        for number in range(before, last if len(nodes) else before):
            largest = maxima[1] if maxima[1] > 0 else np.float32(1)
            put_leaf(nodes, maxima, number % size, largest)
        for lane in range(lanes):
            if terminated[t, lane] or truncated[t, lane]:
                _put_row(seen[head % size], obs[t * lanes + lane])
                happened[head % size] = behind[head % size] = 0
                open_[lane] = head
                head += 1
        while first < last and ready[first % size] < head - size + margin:
            if len(nodes):
                put_leaf(nodes, maxima, first % size, np.float32(0))
            first += 1
    return head, first, last


@njit(borrows=True)
def _put_row(to, row):  # type: ignore[no-untyped-def]
    for j in range(len(row)):
        to[j] = row[j]


@njit(borrows=True)
def _trace(counters, ring, gamma, n_step, here, there, returns, discounts):  # type: ignore[no-untyped-def]
    """Follow transitions by their numbers: rewards, discounts, and the places of the frames at both ends."""
    ready, ahead, behind, reward, happened = ring
    size = len(happened)
    for i in range(len(counters)):
        at = ready[counters[i] % size] % size
        _window(at, behind, here[i])
        total, factor = 0.0, 1.0
        for _ in range(n_step):
            total += factor * reward[at]
            factor *= gamma
            what = happened[at]
            at = (at + ahead[at]) % size
            if what & TERMINATED:
                factor = 0.0
            if what & (TERMINATED | TRUNCATED):
                break
        _window(at, behind, there[i])
        returns[i] = total
        discounts[i] = factor


@njit(borrows=True)
def _window(at, behind, places):  # type: ignore[no-untyped-def]
    """The places of the frames that end at `at`, oldest first."""
    for k in range(len(places) - 1, -1, -1):
        places[k] = at
        at = (at - behind[at]) % len(behind)
