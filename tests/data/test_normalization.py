"""The running statistics of observations and rewards, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.data.normalization import ObservationNormalizer, RewardScaler, RunningMoments

PRIOR = 1e-4  # how much the N(0, 1) weighs that all statistics begin with


def with_prior(rows: list[float]) -> tuple[float, float]:
    """Mean and variance of rows and of a prior with mean 0 and mean square 1."""
    total = len(rows) + PRIOR
    mean = sum(rows) / total
    return mean, (sum(row * row for row in rows) + PRIOR) / total - mean**2


def test_statistics_of_a_mask_that_an_earlier_version_saved_are_left_out() -> None:
    numbers = spaces.Box(-1, 1, (3,), np.float32)
    saved = ObservationNormalizer(spaces.Dict(action_mask=numbers, obs=numbers)).state_dict()
    saved["parts"]["action_mask"] = ObservationNormalizer(numbers).state_dict()
    assert saved["parts"]["action_mask"]["moments"] is not None
    normalizer = ObservationNormalizer(spaces.Dict(action_mask=numbers, obs=numbers))
    normalizer.load_state_dict(saved)
    mask = np.array([[0, 1, 0]], np.float32)
    np.testing.assert_array_equal(normalizer({"action_mask": mask, "obs": mask})["action_mask"], mask)


def test_the_first_batch_by_hand() -> None:
    """Rows 1 and 3: mean 4 / 2.0001, mean square (1 + 9 + 0.0001) / 2.0001."""
    moments = RunningMoments(())
    assert (moments.mean, moments.variance, moments.count) == (0.0, 1.0, PRIOR)
    moments.update(np.array([1.0, 3.0]))
    assert moments.mean == pytest.approx(4 / 2.0001, rel=1e-12)
    assert moments.variance == pytest.approx(10.0001 / 2.0001 - (4 / 2.0001) ** 2, rel=1e-9)
    assert moments.count == 2 + PRIOR


def test_batches_of_any_size_merge_to_the_statistics_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal([5.0, -2.0, 0.0], [0.1, 3.0, 100.0], (600, 3))
    merged, at_once = RunningMoments((3,)), RunningMoments((3,))
    at_once.update(rows)
    for part in np.split(rows, [1, 2, 50, 52, 400]):
        merged.update(part.astype(np.float64))
    expected = [with_prior(column) for column in rows.T.tolist()]
    for moments in (merged, at_once):
        np.testing.assert_allclose(moments.mean, [mean for mean, _ in expected], rtol=1e-9)
        np.testing.assert_allclose(moments.variance, [spread for _, spread in expected], rtol=1e-6)
        assert moments.count == pytest.approx(600 + PRIOR)


def test_single_precision_does_not_lose_the_spread_of_a_large_mean() -> None:
    moments = RunningMoments(())
    for _ in range(2):
        moments.update(np.array([1e6, 1e6 + 1] * 5000, np.float32))
    # The prior's distance to the mean, (10⁶)², weighs its 10⁻⁴ of 2·10⁴ rows: 5000 more.
    assert moments.variance == pytest.approx(0.25 + PRIOR * (1e6 + 0.5) ** 2 / 20_000, rel=1e-4)


def test_observations_by_hand() -> None:
    """Of [T, B] = [2, 2] rows: 0 2 4 6 has mean 3 and variance 5, and 8 8 8 8 next to none."""
    normalizer = ObservationNormalizer(spaces.Box(-100, 100, (2,), np.float32))
    rollout = np.array([[[0, 8], [2, 8]], [[4, 8], [6, 8]]], np.float32)
    same = normalizer(rollout)
    np.testing.assert_array_equal(same, rollout)  # mean 0, deviation 1
    normalizer.update(rollout)
    assert normalizer.moments is not None
    (mean, spread), (_, little) = with_prior([0, 2, 4, 6]), with_prior([8, 8, 8, 8])
    np.testing.assert_allclose(normalizer.moments.variance, [spread, little], rtol=1e-9)
    found = normalizer(np.array([[5.0, 8.0], [-99.0, 9.0], [99.0, -9.0]], np.float32))
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(
        [(5 - mean) / math.sqrt(spread), 8 * PRIOR / 4 / math.sqrt(little)], rel=1e-4
    )
    assert found[1:].tolist() == [[-10.0, 10.0], [10.0, -10.0]]  # clipped


def test_constant_observations_stay_finite_however_long_they_last() -> None:
    """10⁶ zeros leave the variance at 10⁻¹⁰: what is added to it decides, √(10⁻¹⁰ + 10⁻⁸) = 1.005 · 10⁻⁴."""
    normalizer = ObservationNormalizer(spaces.Box(-1, 1, (1,), np.float32))
    for _ in range(10):
        normalizer.update(np.zeros((1000, 100, 1), np.float32))
    assert normalizer.moments is not None
    assert normalizer.moments.variance.item() == pytest.approx(1e-10, rel=1e-6)
    found = normalizer(np.array([[0.0], [1e-4], [-1.0]], np.float32))
    assert found.flatten().tolist() == pytest.approx([0.0, 1 / 1.004988, -10.0], rel=1e-5)


def test_parts_of_a_dict_have_statistics_of_their_own_and_pictures_and_choices_pass() -> None:
    space = spaces.Dict(
        {
            "place": spaces.Box(-9, 9, (2,), np.float32),
            "picture": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "card": spaces.Discrete(5),
        }
    )
    normalizer = ObservationNormalizer(space)
    obs = {
        "place": np.array([[[1.0, 5.0]], [[3.0, 5.0]]], np.float32),
        "picture": np.full((2, 1, 2, 2, 3), 200, np.uint8),
        "card": np.array([[4], [1]]),
    }
    normalizer.update(obs)
    found = normalizer({key: column[0] for key, column in obs.items()})
    mean, spread = with_prior([1.0, 3.0])
    assert found["place"][0, 0] == pytest.approx((1 - mean) / math.sqrt(spread), rel=1e-6)
    np.testing.assert_array_equal(found["picture"], obs["picture"][0])
    assert found["picture"].dtype == np.uint8 and found["card"].tolist() == [4]


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    """γ = ½. Lane a earns 1 1 1: G = 1, 1.5, 1.75. Lane b earns 2 | 4 1, an episode ends: G = 2 | 4, 3."""
    scaler = RewardScaler(2)
    reward = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 1.0]], np.float32)
    done = np.array([[False, True], [False, False], [False, False]])
    found = scaler(reward, done, 0.5)
    _, spread = with_prior([1.0, 2.0, 1.5, 4.0, 1.75, 3.0])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reward / math.sqrt(spread), rtol=1e-6)  # no mean is subtracted
    assert scaler.discounted.tolist() == [1.75, 3.0]
    # The next rollout goes on where this one ended, with the γ of then; its last step ends both episodes.
    found = scaler(np.array([[1.0, 0.0]], np.float32), np.array([[True, True]]), 0.2)
    _, spread = with_prior([1.0, 2.0, 1.5, 4.0, 1.75, 3.0, 1.35, 0.6])
    np.testing.assert_allclose(found, np.array([[1.0, 0.0]]) / math.sqrt(spread), rtol=1e-6)
    assert scaler.discounted.tolist() == [0.0, 0.0]


def test_some_lanes_can_come_alone() -> None:
    scaler = RewardScaler(3)
    never = np.zeros((1, 2), np.bool_)
    scaler(np.array([[1.0, 2.0]], np.float32), never, 0.5, slice(0, 2))
    scaler(np.array([[4.0, 8.0]], np.float32), never, 0.5, slice(1, 3))
    assert scaler.discounted.tolist() == [1.0, 5.0, 8.0]
    assert scaler.moments.variance == pytest.approx(with_prior([1.0, 2.0, 5.0, 8.0])[1])


def test_scaled_rewards_are_clipped_and_constant_ones_stay_finite() -> None:
    """10⁶ returns of 0 leave the variance at 10⁻¹⁰; one of -1 among them makes it 10⁻⁶, a deviation of 10⁻³."""
    scaler = RewardScaler(100)
    nothing, ends = np.zeros((2000, 100), np.float32), np.ones((2000, 100), np.bool_)
    for _ in range(5):
        assert not scaler(nothing, ends, 0.99).any()
    assert scaler.moments.variance == pytest.approx(1e-10, rel=1e-6)
    last = nothing[:1].copy()
    last[0, :2] = 1e-5, -1.0
    found = scaler(last, ends[:1], 0.99)
    assert found[0, 0] == pytest.approx(1e-5 / math.sqrt(1.01e-6), rel=1e-3) and found[0, 1] == -10.0


def test_moments_with_a_memory_are_an_exponential_average() -> None:
    """Memory of 4 rows, new batches of 4: each time half of what was known and half of what is new."""
    moments = RunningMoments((), memory=4.0)
    moments.update(np.array([0.0, 0.0, 2.0, 2.0]))
    assert moments.mean == pytest.approx(1.0, rel=1e-3) and moments.count == 4
    for _ in range(3):
        before = moments.mean
        moments.update(np.full(4, 9.0))
        assert moments.mean == pytest.approx((before + 9.0) / 2) and moments.count == 4
    for _ in range(60):
        moments.update(np.array([8.0, 8.0, 10.0, 10.0]))
    assert moments.mean == pytest.approx(9.0) and moments.variance == pytest.approx(1.0), "it forgets"
