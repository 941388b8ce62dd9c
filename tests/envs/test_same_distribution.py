"""Gymnasium's environments and compiled ones draw other numbers, so results may differ, but not their distribution.

All seeds are fixed. A test that rejects rejects always; one that is right would have done so once in a thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from learning.pong import welch

from rl_training import load_config
from rl_training.envs.making import make_environments
from rl_training.runtime.controls import Controls
from rl_training.runtime.workflows import make_trainer
from rl_training.state.seeding import fold, seed_everything

LANES, EPISODES = 16, 80  # of each lane, as many as that: those that end first would be the short ones
CRITICAL = 1.95  # of Kolmogorov's distribution: exceeded with a probability of 0.001
SIGNIFICANT = 0.001

Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def leaning(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Push the cart under the pole, three times of four."""
    pushes = (obs[:, 2] + obs[:, 3] > 0).astype(np.int64)
    return np.where(rng.random(len(obs)) < 0.25, rng.integers(2, size=len(obs)), pushes)


def choosing(actions: int) -> Act:
    return lambda obs, rng: rng.integers(actions, size=len(obs))


def swinging(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-1, 1, (len(obs), 1)).astype(np.float32)


POLICIES: dict[str, tuple[Act, dict[str, Any]]] = {
    "CartPole-v1": (leaning, {}),
    "Pendulum-v1": (swinging, {"max_episode_steps": 30}),
    "MountainCarContinuous-v0": (swinging, {"max_episode_steps": 30}),
    "FrozenLake-v1": (choosing(4), {}),
    "CliffWalkingSlippery-v1": (choosing(4), {"max_episode_steps": 30}),
    "Taxi-v4": (choosing(6), {"max_episode_steps": 30}),
}


def played(vectorization: str, env_id: str, seed: int = 1, act: Act | None = None) -> np.ndarray:
    """Returns and lengths [LANES · EPISODES, 2] of a policy that does not learn."""
    usual, settings = POLICIES[env_id]
    act, rng = act or usual, np.random.default_rng(seed)
    config = load_config(dict(algo="ppo", env_id=env_id, vectorization=vectorization) | settings)
    environments = make_environments(config, LANES, seed, "train")
    ended: list[list[tuple[float, int]]] = [[] for _ in range(LANES)]
    while min(map(len, ended)) < EPISODES:
        obs = environments.obs
        environments.step(act(obs if isinstance(obs, np.ndarray) else obs["observation"], rng))
        for lane, *episode in environments.take_finished():
            ended[lane].append((episode[0], episode[1]))
    environments.close()
    return np.array([episode for lane in ended for episode in lane[:EPISODES]])


def are_alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Kolmogorov and Smirnov: sup |F₁(x) - F₂(x)| < c √((n + m) / nm). With ties it rejects more rarely still."""
    at = np.union1d(one, other)
    below = [np.searchsorted(np.sort(each), at, side="right") / len(each) for each in (one, other)]
    bound = CRITICAL * np.sqrt(1 / len(one) + 1 / len(other))
    return bool(np.abs(below[0] - below[1]).max() < bound)


@pytest.mark.parametrize("env_id", POLICIES)
def test_episodes_of_a_fixed_policy_have_the_same_returns_and_lengths(env_id: str) -> None:
    sync, compiled = played("sync", env_id), played("compiled", env_id, seed=2)
    for column, name in enumerate(("returns", "lengths")):
        assert are_alike(sync[:, column], compiled[:, column]), name


def test_a_policy_that_is_a_little_worse_is_told_apart() -> None:
    """So that the test above could fail."""

    def clumsy(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(len(obs)) < 0.1, 0, leaning(obs, rng))

    usual, worse = (played("compiled", "CartPole-v1", act=act) for act in (leaning, clumsy))
    assert not are_alike(usual[:, 0], worse[:, 0])


SEEDS, STEPS = 30, 4096


def learned(vectorization: str, **more: Any) -> np.ndarray:
    """For each seed, the mean return of the episodes that ended in the last quarter of a short run."""
    means = []
    for seed in range(SEEDS):
        config = load_config(
            dict(algo="ppo", env_id="CartPole-v1", vectorization=vectorization, seed=seed)
            | dict(total_timesteps=STEPS, num_envs=8, num_steps=64, update_epochs=4, learning_rate=2e-3)
            | more
        )
        trainer, controls, returns = make_trainer(config), Controls.of(config), []
        for step in range(0, STEPS, config.steps_per_iteration):
            seed_everything(fold(seed, "iteration", step))
            metrics = trainer.iterate(controls.at(step))
            returns += [episode[1] for episode in metrics.episodes] if 4 * step >= 3 * STEPS else []
        trainer.close()
        means.append(float(np.mean(returns)))
    return np.array(means)


def is_significant(one: np.ndarray, other: np.ndarray) -> bool:
    """Welch's test, two-sided."""
    p = welch(one, other)[1]
    return 2 * min(p, 1 - p) < SIGNIFICANT


def test_short_runs_of_ppo_come_as_far() -> None:
    sync, compiled = learned("sync"), learned("compiled")
    assert not is_significant(sync, compiled), (sync, compiled)
    still = learned("compiled", learning_rate=0.0)
    assert is_significant(compiled, still), "so that this test could fail"
