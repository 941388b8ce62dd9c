"""Replay buffer for planners: transitions, search results, and the rest of each position's episode.

The ring, its files and its priorities are those of data/replay.py; open episodes lie in it like all others. A position
can be drawn as soon as all is there that it is learned from: K unrolled steps and the n rewards after each, or the
episode's end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.efficientzero import td_horizons
from rl_training.compiling import njit
from rl_training.data.batch import PositionBatch
from rl_training.data.replay import TAKEN, TERMINATED, TRUNCATED, Replay
from rl_training.trees import Arrays, tree_map


class EpisodeReplay(Replay[PositionBatch]):
    """Positions with the K = `unroll_steps` steps that follow them, drawn by priority.

    `td_steps` is n, after how many rewards a value target bootstraps; it is one less for every `steps_per_cut` steps
    that a position is old, and at least 1. Where actions are vectors of D = `dimensions` numbers, `num_actions` is how
    many of them a search looks at, and they are kept beside its policy.
    """

    acted = (*Replay.acted, "policy", "samples")

    def __init__(
        self,
        capacity: int,
        obs: Arrays,
        *,
        num_actions: int,
        dimensions: int | None = None,
        unroll_steps: int,
        td_steps: int,
        steps_per_cut: float = math.inf,
        stack: int = 1,
    ) -> None:
        super().__init__(capacity, obs, n_step=unroll_steps + td_steps, stack=stack, prioritized=True)
        self.unroll_steps, self.td_steps, self.steps_per_cut = unroll_steps, td_steps, steps_per_cut
        self.policy = np.zeros((capacity, num_actions), np.float32)
        self.samples = (
            None if dimensions is None else np.zeros((capacity, num_actions, dimensions), np.float32)
        )

    def add(  # type: ignore[override]
        self,
        action: np.ndarray,
        *step: Any,
        policy: np.ndarray,
        samples: np.ndarray | None = None,
        **more: Any,
    ) -> None:
        """One step of every lane, as `Replay.add` has it, with the policy [B, A] that the search found.

        samples: [B, A, D], the actions that it is about, where they are vectors
        """
        self.policy[self.open % self.capacity] = policy
        if self.samples is not None:
            self.samples[self.open % self.capacity] = samples
        super().add(action, *step, **more)

    def seen_at(self, places: np.ndarray) -> Any:
        """The observations [N, ...] at places of the ring, as arrays."""
        if self.stack > 1:
            places = _windows(places, self.behind, self.stack)
        return tree_map(lambda column: column.take(places, 0, mode="clip"), self.observations)

    def ages(self, index: np.ndarray) -> np.ndarray:
        """How many observations have come since those of a batch [B], drawn just now."""
        return self.head - self.ready[index % self.capacity]

    def before(self, places: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What led to places [N] within their episodes, as far as it is still there, at most so many steps.

        Places [N, steps + 1], in row i those of past[i] steps before and then its own, which fills the rest; the
        actions [N, steps] taken there, the rest zeros; and past [N].
        """
        assert self.action is not None
        slots = self.head - 1 - (self.head - 1 - places) % self.capacity
        oldest = self.head - self.capacity
        return _look_back(slots, steps, oldest, self.behind, self.happened, self.action)

    def _columns(self) -> list[tuple[str, np.ndarray]]:
        columns = [*super()._columns(), ("policy", self.policy)]
        return columns if self.samples is None else [*columns, ("samples", self.samples)]

    def _gather(self, counter: np.ndarray, gamma: float) -> PositionBatch:
        """Positions and what followed, time-major; what lies beyond an episode's end is absorbing.

        `action`, `reward` [K, B]     taken, or random beyond the end, and earned by it, or 0
        `policy` [K + 1, B, A]        of the search, zeros where there was none
        `samples` [K + 1, B, A, D]    the vectors that it is about, where actions are vectors
        `returns`, `discount`         [K + 1, B]: the value target is returns + discount · V(bootstrap)

            Rₜ = Σ_{i<m} γⁱ rₜ₊ᵢ      discount = γᵐ, or 0 where the episode terminated; m is n, or less (see above)

        `acted` [K + 1, B]            whether an action was taken there: only then there is a policy
        `known` [K + 1, B]            whether the value is: not from where a time limit cut the episode
        `places`, `bootstrap`         [K + 1, B] places of the observations, as arrays for `seen_at`

        A negative γ changes sides with every step, for games of two.
        """
        batch = self._trace(self.ready[counter % self.capacity], gamma)
        assert self.action is not None
        before = batch["places"][:-1]
        action, acted = self.action.take(before, 0, mode="clip"), batch["acted"][:-1] > 0
        if self.samples is None:
            random = np.random.randint(self.policy.shape[1], size=before.shape)
        else:
            random, acted = np.random.uniform(-1, 1, action.shape).astype(np.float32), acted[..., None]
            batch["samples"] = self.samples.take(batch["places"], 0, mode="clip")
        batch["action"] = np.where(acted, action, random)
        batch["policy"] = self.policy.take(batch["places"], 0, mode="clip") * batch["acted"][..., None]
        where = {name: batch.pop(name) for name in ("places", "bootstrap")}
        return tree_map(torch.from_numpy, batch) | where

    def _trace(self, slots: np.ndarray, gamma: float) -> dict[str, np.ndarray]:
        steps, size = self.unroll_steps, len(slots)
        batch: dict[str, np.ndarray] = {
            "places": np.empty((steps + 1, size), np.int64),
            "bootstrap": np.empty((steps + 1, size), np.int64),
            "reward": np.empty((steps, size), np.float32),
            "returns": np.empty((steps + 1, size), np.float32),
            "discount": np.empty((steps + 1, size), np.float32),
            "acted": np.empty((steps + 1, size), np.float32),
            "known": np.empty((steps + 1, size), np.float32),
        }
        # Observations that came since count as steps: nearly all were acted on.
        horizons = td_horizons(self.head - slots, self.td_steps, self.steps_per_cut)
        _unroll(
            slots, horizons, self.td_steps, self.ahead, self.reward, self.happened, gamma, *batch.values()
        )
        return batch


@njit()
def _unroll(  # type: ignore[no-untyped-def]
    slots,
    horizons,
    td_steps,
    ahead,
    reward,
    happened,
    gamma,
    places,
    bootstrap,
    rewards,
    returns,
    discounts,
    acted,
    known,
):
    """Follow episodes from their slots for K + n steps, and sum up the rewards after each of the first K + 1.

    `horizons` [N] says how many: at most n = `td_steps`.
    """
    size, unroll_steps = len(happened), len(rewards)
    path = np.empty(unroll_steps + td_steps + 1, np.int64)
    earned = np.empty(unroll_steps + td_steps)
    for i in range(len(slots)):
        path[0] = slots[i] % size
        length, what = 0, 0
        while length < unroll_steps + td_steps and not what & (TERMINATED | TRUNCATED):
            at = path[length]
            earned[length], what = reward[at], happened[at]
            length += 1
            path[length] = (at + ahead[at]) % size
        terminated = what & TERMINATED != 0
        for k in range(unroll_steps + 1):
            end = min(k + horizons[i], length)
            total, factor = 0.0, 1.0
            for j in range(k, end):
                total += factor * earned[j]
                factor *= gamma
            over = k >= length
            places[k, i] = path[min(k, length)]
            bootstrap[k, i] = path[end]
            returns[k, i] = total
            discounts[k, i] = 0.0 if over or (terminated and end == length) else factor
            acted[k, i] = not over
            known[k, i] = terminated or not over
            if k > 0:
                rewards[k - 1, i] = earned[k - 1] if k <= length else 0.0


@njit()
def _windows(places, behind, stack):  # type: ignore[no-untyped-def]
    """The places [N, stack] of the frames that end at each place, oldest first."""
    windows = np.empty((len(places), stack), np.int64)
    for i in range(len(places)):
        at = places[i]
        for k in range(stack - 1, -1, -1):
            windows[i, k] = at
            at = (at - behind[at]) % len(behind)
    return windows


@njit()
def _look_back(slots, steps, oldest, behind, happened, action):  # type: ignore[no-untyped-def]
    count, size = len(slots), len(behind)
    places = np.empty((count, steps + 1), np.int64)
    actions = np.zeros((count, steps), np.int64)
    past = np.zeros(count, np.int64)
    chain = np.empty(steps + 1, np.int64)
    for i in range(count):
        chain[0] = slots[i]
        length = 0
        while length < steps:
            step = behind[chain[length] % size]
            earlier = chain[length] - step
            if step == 0 or earlier < oldest or not happened[earlier % size] & TAKEN:
                break
            length += 1
            chain[length] = earlier
        past[i] = length
        for k in range(steps + 1):
            places[i, k] = chain[max(length - k, 0)] % size
            if k < length:
                actions[i, k] = action[places[i, k]]
    return places, actions, past
