"""The statistics of comparisons against answers worked out by hand, counted out, or known from theory."""

import itertools

import numpy as np
import pytest

from rl_training.reporting.statistics import (
    bootstrap,
    improvement_interval,
    interquartile_mean,
    iqm_interval,
    performance_profile,
    probability_of_improvement,
    profile_interval,
)


def mean(tasks):
    return np.mean(np.concatenate(tasks, axis=-1), axis=-1)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 1.0, 2.0, 100.0], 1.5),  # one of four is cut at each end
        ([5.0, 1.0, 100.0, 2.0, 3.0], 10 / 3),  # of five too
        ([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0], 4.5),
        ([-1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e9], 3.5),
    ],
)
def test_the_interquartile_mean_by_hand(scores, expected):
    assert interquartile_mean([np.array(scores)]) == pytest.approx(expected)


def test_the_interquartile_mean_pools_the_runs_of_all_tasks():
    # 0 1 2 3 | 10 20 30 40: two cut at each end leave 2 3 10 20
    tasks = [np.array([0.0, 10.0, 2.0, 30.0]), np.array([1.0, 20.0, 3.0, 40.0])]
    assert interquartile_mean(tasks) == pytest.approx(35 / 4)


def test_statistics_keep_the_dimensions_before_the_runs():
    scores = np.arange(24.0).reshape(2, 3, 4)
    assert interquartile_mean([scores]).shape == (2, 3)
    assert performance_profile([scores], np.array([1.0, 2.0])).shape == (2, 3, 2)
    assert probability_of_improvement([scores], [scores[..., :2]]).shape == (2, 3)
    assert np.allclose(interquartile_mean([scores]), scores[..., 1:3].mean(-1))


def test_the_performance_profile_by_hand():
    tasks = [np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.0, 2.0])]
    profile = performance_profile(tasks, np.array([-1.0, 0.0, 1.5, 2.0, 3.0]))
    assert profile.tolist() == [1.0, (3 / 4 + 1) / 2, (1 / 2 + 1) / 2, (1 / 4 + 0) / 2, 0.0]


def test_the_area_under_the_profile_of_scores_in_0_1_is_their_mean():
    """∫ P(X > τ) dτ = E[X], which holds for the empirical distribution as well."""
    scores = np.random.default_rng(3).random(17)
    thresholds = (np.arange(20_000) + 0.5) / 20_000
    area = performance_profile([scores], thresholds).mean()
    assert area == pytest.approx(scores.mean(), abs=1e-3)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.0),
        ([0.0, 1.0], [2.0, 3.0], 0.0),
        ([1.0, 2.0], [1.0, 2.0], 0.5),
        ([1.0, 3.0, 5.0], [2.0, 4.0], 3 / 6),  # U = 0 + 1 + 2
        ([1.0, 2.0, 2.0], [2.0], 1 / 3),  # one below, two ties of a half each
    ],
)
def test_the_probability_of_improvement_by_hand(x, y, expected):
    x, y = np.array(x), np.array(y)
    assert probability_of_improvement([x], [y]) == pytest.approx(expected)
    assert probability_of_improvement([y], [x]) == pytest.approx(1 - expected)


def test_the_probability_of_improvement_is_a_mean_over_tasks_whatever_their_number_of_runs():
    better, worse = np.ones(7), np.zeros(3)
    assert probability_of_improvement([better, worse], [worse, better]) == pytest.approx(0.5)


def test_the_bootstrap_agrees_with_all_resamples_counted_out():
    scores = np.array([1.0, 2.0, 4.0, 8.0])
    every = [np.mean(draw) for draw in itertools.product(scores, repeat=4)]
    low, high = np.quantile(every, [0.025, 0.975])
    found = bootstrap([scores], mean, draws=20_000)
    assert found.value == pytest.approx(3.75)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.26), pytest.approx(high, abs=0.26))
    # Not only the two bounds: the bootstrap's mean and deviation are those of all 256 resamples.
    draws = []
    bootstrap([scores], lambda tasks: draws.append(mean(tasks)) or mean(tasks), draws=20_000)
    assert draws[0].mean() == pytest.approx(np.mean(every), abs=0.03)
    assert draws[0].std() == pytest.approx(np.std(every), abs=0.03)


def test_the_bootstrap_is_stratified():
    """Runs are never moved between tasks: with constant scores in each task nothing can vary."""
    tasks = [np.full(5, 1.0), np.full(5, 100.0)]
    found = bootstrap(tasks, mean)
    assert (found.low, found.value, found.high) == (50.5, 50.5, 50.5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = bootstrap([random.normal(10.0, 2.0, 40)], mean, draws=500)
        hits += bool(found.low <= 10.0 <= found.high)
    assert 178 <= hits <= 199  # 95 % of 200 is 190; percentile intervals are a little short


def test_intervals_of_one_run_and_of_equal_runs_are_points():
    for scores in (np.array([3.0]), np.full(5, 3.0)):
        assert [float(part) for part in iqm_interval([scores])] == [3.0, 3.0, 3.0]


def test_intervals_hold_their_value_and_are_the_same_each_time():
    random = np.random.default_rng(0)
    x, y = random.normal(1.0, 1.0, 8), random.normal(0.0, 1.0, 6)
    thresholds = np.linspace(-2, 3, 11)
    for make in (
        lambda: iqm_interval([x]),
        lambda: profile_interval([x, y], thresholds),
        lambda: improvement_interval([x], [y]),
    ):
        found, again = make(), make()
        assert np.all(found.low <= found.value) and np.all(found.value <= found.high)
        assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
    assert profile_interval([x, y], thresholds).low.shape == (11,)
    assert iqm_interval([np.stack([x, x + 1])]).low.shape == (2,)
