"""Gymnasium's environments and compiled ones draw other numbers, so results may differ, but not their distribution.

Seeds are fixed; each comparison has a false-positive rate of 0.1 %.
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


def driving(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Push the car the way it rolls, up to the goal."""
    return (np.where(obs[:, 1:] < 0, -1, 1) * rng.uniform(0.5, 1, (len(obs), 1))).astype(np.float32)


def pumping(velocity: int) -> Act:
    """Push the way that this part of an observation moves, of the actions back, nothing and forth."""
    return lambda obs, rng: np.where(obs[:, velocity] < 0, 0, 2)


POLICIES: dict[str, tuple[Act, dict[str, Any]]] = {
    "CartPole-v1": (leaning, {}),
    "Pendulum-v1": (swinging, {"max_episode_steps": 30}),
    "MountainCar-v0": (pumping(1), {}),
    "MountainCarContinuous-v0": (driving, {}),
    "Acrobot-v1": (pumping(5), {}),
    "FrozenLake-v1": (choosing(4), {}),
    "CliffWalkingSlippery-v1": (choosing(4), {"max_episode_steps": 30}),
    "Taxi-v4": (choosing(6), {"max_episode_steps": 30}),
}


def played(
    vectorization: str, env_id: str, seed: int = 1, act: Act | None = None, **more: Any
) -> dict[str, np.ndarray]:
    """Of a policy that does not learn: what its episodes come to and where they end, [LANES · EPISODES] each."""
    usual, settings = POLICIES[env_id]
    act, rng = act or usual, np.random.default_rng(seed)
    config = load_config(dict(algo="ppo", env_id=env_id, vectorization=vectorization) | settings | more)
    environments = make_environments(config, LANES, seed, "train")
    ended: list[list[tuple[float, ...]]] = [[] for _ in range(LANES)]
    while min(map(len, ended)) < EPISODES:
        last = seen(environments.step(act(seen(environments.obs), rng)).next_obs)
        for lane, *episode in environments.take_finished():
            ended[lane].append((*episode[:2], *np.ravel(last[lane]).tolist()))
    environments.close()
    columns = np.array([episode for lane in ended for episode in lane[:EPISODES]]).T
    names = ("return", "length", *(f"final observation {number}" for number in range(len(columns) - 2)))
    return dict(zip(names, columns, strict=True))


def seen(obs: Any) -> np.ndarray:
    """Observations without the masks beside them."""
    return np.asarray(obs["observation"] if isinstance(obs, dict) else obs)


def are_alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Kolmogorov and Smirnov: sup |F₁(x) - F₂(x)| < c √((n + m) / nm). With ties it rejects more rarely still."""
    at = np.union1d(one, other)
    below = [np.searchsorted(np.sort(each), at, side="right") / len(each) for each in (one, other)]
    bound = CRITICAL * np.sqrt(1 / len(one) + 1 / len(other))
    return bool(np.abs(below[0] - below[1]).max() < bound)


@pytest.mark.parametrize("env_id", POLICIES)
def test_episodes_of_a_fixed_policy_come_to_the_same_and_end_alike(env_id: str) -> None:
    sync, compiled = played("sync", env_id), played("compiled", env_id, seed=2)
    for name in sync:
        assert are_alike(sync[name], compiled[name]), name


def test_a_pendulum_of_other_gravity_is_told_apart() -> None:
    """So that the test above could fail where all episodes are of one length."""
    usual, heavier = (played("sync", "Pendulum-v1", env_kwargs={"g": g}) for g in (10.0, 12.0))
    assert not are_alike(usual["final observation 0"], heavier["final observation 0"])


def test_a_policy_that_is_a_little_worse_is_told_apart() -> None:

    def clumsy(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(len(obs)) < 0.1, 0, leaning(obs, rng))

    usual, worse = (played("compiled", "CartPole-v1", act=act) for act in (leaning, clumsy))
    assert not are_alike(usual["return"], worse["return"])


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
