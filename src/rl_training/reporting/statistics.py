"""Statistics over few seeds: interquartile means, intervals, performance profiles, probability of improvement.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021
(arXiv:2108.13264). Scores come as one array per task, with the runs along its last axis; the number of runs may
differ between tasks. All statistics work on whatever stands before that axis, so that points of a curve and draws of a
bootstrap are just more dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Tasks = Sequence[np.ndarray]  # [..., runs] each
DRAWS = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """A statistic and between which bounds it lies."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(tasks: Tasks) -> np.ndarray:
    """The mean of the middle half of all runs of all tasks: a quarter of them, rounded down, is cut at each end."""
    pooled = np.sort(np.concatenate(tasks, axis=-1), axis=-1)
    count = pooled.shape[-1]
    return pooled[..., count // 4 : count - count // 4].mean(-1)


def performance_profile(tasks: Tasks, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs whose score is above each threshold τ, a mean over tasks: [..., thresholds].

    F(τ) = 1/M Σₘ 1/Nₘ Σₙ 1[xₘₙ > τ]
    """
    shares = [(task[..., None, :] > thresholds[:, None]).mean(-1) for task in tasks]
    return np.mean(shares, axis=0)


def probability_of_improvement(tasks: Tasks, others: Tasks) -> np.ndarray:
    """How likely a run of one method scores above a run of the other on a task drawn at random; ties count half.

    P(X > Y) = 1/M Σₘ 1/(N K) Σᵢ Σⱼ (1[xᵢ > yⱼ] + 1/2 1[xᵢ = yⱼ]), of each task the Mann-Whitney U over N K
    """
    shares = []
    for x, y in zip(tasks, others, strict=True):
        pairs = np.sign(x[..., :, None] - y[..., None, :])
        shares.append((pairs.mean((-2, -1)) + 1) / 2)
    return np.mean(shares, axis=0)


def bootstrap(tasks: Tasks, statistic: Callable[[Tasks], np.ndarray], draws: int = DRAWS) -> Interval:
    """The statistic with its 95 % percentile interval, where runs are drawn anew within each task (stratified).

    `statistic` maps arrays [..., runs] to [...]. The draws come from a generator of their own with a fixed seed: the
    same runs give the same interval.
    """
    random = np.random.default_rng(0)
    drawn = []
    for task in tasks:
        runs = task.shape[-1]
        drawn.append(task[..., random.integers(runs, size=(draws, runs))])  # [..., draws, runs]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(statistic(drawn), [tail, 1 - tail], axis=-1)
    return Interval(statistic(tasks), low, high)


def iqm_interval(tasks: Tasks) -> Interval:
    return bootstrap(tasks, interquartile_mean)


def profile_interval(tasks: Tasks, thresholds: np.ndarray) -> Interval:
    """The profile with a pointwise interval, [thresholds]."""

    def profile(drawn: Tasks) -> np.ndarray:
        return np.moveaxis(performance_profile(drawn, thresholds), -1, 0)

    return bootstrap(tasks, profile, draws=500)


def improvement_interval(tasks: Tasks, others: Tasks) -> Interval:
    """P(X > Y) with its interval: both methods' runs are drawn anew."""
    count = len(tasks)
    return bootstrap(
        [*tasks, *others], lambda drawn: probability_of_improvement(drawn[:count], drawn[count:])
    )
