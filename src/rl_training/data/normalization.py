"""Running statistics that normalise observations and scale rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK
from rl_training.networks.encoders import brightest, is_image
from rl_training.state.leaves import require
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays

CLIP = 10.0
EPSILON = 1e-8


class RunningMoments(Stateful):
    """Mean and variance of all rows seen, merged batch by batch (Chan et al. 1979), in float64.

    With a `memory`, what was seen counts as no more than so many rows: an exponential average, in which m new rows have
    the share m / (memory + m).
    """

    transient = ("memory",)

    def __init__(self, shape: tuple[int, ...], memory: float = math.inf) -> None:
        self.memory = memory
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)
        self.count = 1e-4  # a trace of the prior N(0, 1), so that the variance is defined from the start

    def check_state(self) -> None:
        finite = np.isfinite(self.mean).all() and np.isfinite(self.variance).all() and np.isfinite(self.count)
        require(
            finite and (self.variance >= 0).all() and self.count > 0, "RunningMoments: no mean and variance"
        )

    def update(self, rows: np.ndarray) -> None:
        """Take in rows [N, *shape].

        With n rows so far, m new ones and d the difference of their means:
            mean ← mean + d m / (n + m)
            n·var ← n·var + m·var_new + d² n m / (n + m)
        """
        rows = rows.astype(np.float64)
        new, total = len(rows), self.count + len(rows)
        difference = rows.mean(0) - self.mean
        squares = self.variance * self.count + rows.var(0) * new + difference**2 * self.count * new / total
        self.mean = self.mean + difference * new / total
        self.variance = squares / total
        self.count = min(total, self.memory)


class ObservationNormalizer(Stateful):
    """(obs - mean) / std, clipped to ±10, for every array of numbers; bits, choices, masks and pixels of 0 to 255 pass.

    The statistics move only in `update`, which a trainer calls once an iteration, after the weights have
    moved: acting and learning see one rollout through the same statistics, and evaluation sees them frozen.
    """

    def __init__(self, space: spaces.Space) -> None:
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        self.parts = {
            key: ObservationNormalizer(part) if key != MASK else UntouchedMask()
            for key, part in parts.items()
        }
        self.moments: RunningMoments | None = None
        if isinstance(space, spaces.Box) and space.dtype.kind in "fiu":
            scaled_by_its_encoder = is_image(space) and brightest(space) != 1
            self.moments = None if scaled_by_its_encoder else RunningMoments(space.shape)

    @property
    def does_something(self) -> bool:
        """Whether any part of an observation is normalised."""
        return self.moments is not None or any(part.does_something for part in self.parts.values())

    def load_state_dict(self, state: Any) -> None:
        if state.get("moments", self.moments) is None:  # whole numbers passed unchanged when this was saved
            self.moments = None
        super().load_state_dict(state)

    def __call__(self, obs: Arrays) -> Arrays:
        if isinstance(obs, dict):
            return {key: part(obs[key]) for key, part in self.parts.items()}
        if self.moments is None:
            return obs
        scaled = (obs - self.moments.mean) / np.sqrt(self.moments.variance + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def update(self, obs: Arrays) -> None:
        """Take in a rollout's raw observations [T, B, ...]."""
        if isinstance(obs, dict):
            for key, part in self.parts.items():
                part.update(obs[key])
        elif self.moments is not None:
            self.moments.update(obs.reshape(-1, *self.moments.mean.shape))


class UntouchedMask(ObservationNormalizer):
    """An action mask, which is no number; statistics of one, which earlier versions saved, are left out."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(1))

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({**state, "moments": None})


class RewardScaler(Stateful):
    """Divides rewards by the running standard deviation of the discounted return, clipped to ±10.

        Gₜ = γ Gₜ₋₁ (1 - doneₜ₋₁) + rₜ,    r̂ₜ = rₜ / std(G)

    The mean is not subtracted: that would change which policy is best in episodic tasks.
    """

    def __init__(self, count: int, memory: float = math.inf) -> None:
        self.moments = RunningMoments((), memory)
        self.discounted = np.zeros(count)

    def check_state(self) -> None:
        require(np.isfinite(self.discounted).all(), "RewardScaler.discounted: not finite")

    def __call__(
        self, reward: np.ndarray, done: np.ndarray, gamma: float, lanes: slice = slice(None)
    ) -> np.ndarray:
        """Take in a rollout's rewards [T, B] and return them scaled; `lanes` says whose they are, if not all's."""
        returns = np.empty(reward.shape)
        discounted = self.discounted[lanes]
        for t in range(len(reward)):
            discounted = gamma * discounted + reward[t]
            returns[t] = discounted
            discounted = discounted * ~done[t]
        self.discounted[lanes] = discounted
        self.moments.update(returns.reshape(-1))
        scaled = reward / np.sqrt(self.moments.variance + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)
