"""Metrics: the report of an iteration, and averages between two log lines."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.environments import Finished
from rl_training.state.leaves import are_finite, is_whole, require
from rl_training.state.stateful import Stateful


class Metrics:
    """What one iteration reports: its environment steps, the episodes that ended, and numbers of two kinds.

    What is added is averaged over the iterations since the last log line; what stands is written as it is.

    It is made as soon as experience has been gathered: the time until then is `collect_seconds` of timing.jsonl,
    and the rest of the iteration is `learn_seconds`.
    """

    def __init__(self, steps: int, episodes: list[Finished], began: float | None = None) -> None:
        self.steps = steps
        self.episodes = episodes  # (lane, return, length)
        self.values: dict[str, list[Tensor | float]] = {}
        self.standing: dict[str, float] = {}
        # When gathering began by `time.perf_counter`; None: with the iteration.
        self.began = began
        self.gathered = time.perf_counter()

    def add(self, values: Mapping[str, Tensor | float]) -> None:
        """Take in one value for each name; names added several times are averaged."""
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def extend(self, columns: Mapping[str, Sequence[Tensor | float]]) -> None:
        """Take in several values for each name."""
        for name, values in columns.items():
            self.values.setdefault(name, []).extend(values)

    def stand(self, values: Mapping[str, float]) -> None:
        """Numbers as they stand after the iteration, such as a temperature that is learned."""
        self.standing |= values

    def means(self) -> dict[str, float]:
        alike: dict[int, list[str]] = {}  # names of as many plain numbers, whose means are one operation
        for name, values in self.values.items():
            if len(values) > 1 and set(map(type, values)) == {float}:
                alike.setdefault(len(values), []).append(name)
        means: dict[str, float] = {}
        for count, names in alike.items():
            rows = np.array([self.values[name] for name in names], np.float32)
            found = np.add.reduce(rows, axis=1, dtype=np.float64) / count
            means.update(zip(names, found.tolist(), strict=True))
        return {
            name: means[name] if name in means else _mean(values)
            for name, values in self.values.items()
            if values
        }


def _mean(values: list[Tensor | float]) -> float:
    # Iterations of a few steps are many, and to make tensors of numbers is most of their cost here.
    return float(values[0]) if len(values) == 1 else float(torch.as_tensor(values).double().mean())


def returns_by_agent(agents: Sequence[str], episodes: Sequence[tuple[Any, ...]]) -> dict[str, float]:
    """The mean return of each of several agents, whose lanes stand side by side, where episodes of it ended."""
    found: dict[str, list[float]] = {}
    for lane, returned, *_ in episodes if agents else ():
        found.setdefault(f"episode_return/{agents[lane % len(agents)]}", []).append(returned)
    return {name: float(np.mean(returns)) for name, returns in found.items()}


class MetricsWindow(Stateful):
    """Averages over the iterations since the last log line, and the episodes that ended lately.

    It is part of the state: a run that was killed between two lines must print the line it would have printed.
    """

    # By name the last 100 values of each of `info_metrics`; no state where there are none.
    reported: Mapping[str, deque[float]] = MappingProxyType({})

    def __init__(self, info_metrics: Sequence[str] = ()) -> None:
        self.totals: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.episodes = 0
        self.recent: deque[tuple[float, int]] = deque(
            maxlen=100
        )  # (return, length), as the field's curves show

        if info_metrics:
            self.reported = {name: deque(maxlen=100) for name in info_metrics}

    def check_state(self) -> None:
        require(all(map(are_finite, self.reported.values())), "reported numbers that are none")
        counts = self.counts.keys() == self.totals.keys()
        require(counts and all(is_whole(count, low=1) for count in self.counts.values()), "counts of nothing")
        require(are_finite(self.totals.values()) and is_whole(self.episodes), "totals that are none")
        pairs = all(type(pair) is tuple and len(pair) == 2 and are_finite(pair) for pair in self.recent)
        require(pairs, "recent episodes without return and length")

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.means().items():
            self.totals[name] = self.totals.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        self.episodes += len(metrics.episodes)
        self.recent.extend((returned, length) for _, returned, length, *_ in metrics.episodes)
        for name, value in (
            pair for _, _, _, *told in metrics.episodes for each in told for pair in each.items()
        ):
            self.reported[name].append(value)

    def take(self) -> dict[str, Any]:
        """The line's values; the averages begin anew."""
        line: dict[str, Any] = {"episodes": self.episodes}
        if self.recent:
            numbers = np.fromiter(chain.from_iterable(self.recent), np.float64, 2 * len(self.recent))
            returns, lengths = numbers.reshape(-1, 2).T.copy()
            # As np.mean and np.std compute them, whose own checks cost several times the arithmetic.
            count, mean = len(returns), np.add.reduce(returns) / len(returns)
            away = returns - mean
            line["episode_return"] = float(mean)
            line["episode_return_std"] = math.sqrt(np.add.reduce(away * away) / count)
            line["episode_length"] = float(np.add.reduce(lengths)) / count
        line |= {f"info/{name}": float(np.mean(values)) for name, values in self.reported.items() if values}
        line |= {name: total / self.counts[name] for name, total in self.totals.items()}
        self.totals, self.counts = {}, {}
        return line
