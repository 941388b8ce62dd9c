"""Dreamer on environments whose right answers are known.

    PYTHONPATH=tests python tests/runtime/test_dreamer_probes.py Recall refresh_latents=true

trains on one probe and prints the result.

One probe is in the fast suite; the others take minutes (`pytest -m slow`).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import probes  # noqa: F401, registers them
import pytest
import torch
from runs import iterated

from rl_training import load_config
from rl_training.runtime.controls import Controls
from rl_training.runtime.dreamer_trainer import DreamerTrainer
from rl_training.runtime.evaluation import evaluate
from rl_training.state.seeding import fold, seed_everything

SETTINGS: dict[str, Any] = dict(
    algo="dreamer",
    total_timesteps=10**6,
    num_envs=4,
    learning_starts=100,
    train_ratio=32,  # an update every two steps
    batch_size=8,
    batch_length=8,
    imagination_horizon=4,
    buffer_size=20_000,
    learning_rate=3e-3,
    entropy_coef=3e-3,
    gamma=0.9,
    deter_size=32,
    rssm_hidden=32,
    num_latents=4,
    num_classes=4,
    units=32,
    cnn_depth=2,
    blocks=4,
    mlp_layers=1,
)
# How many steps each probe is given, and what it needs otherwise.
PROBES: dict[str, tuple[int, dict[str, Any]]] = {
    "ConstantReward": (1000, {}),
    "RewardByObservation": (1500, {}),
    "DelayedReward": (1500, {}),
    "RewardByAction": (500, {}),
    "RewardByBoth": (2000, {}),
    "TwoChoices": (1000, {}),
    "Coins": (1000, {}),
    "Target": (3000, {"learning_rate": 1e-3}),
    "DictAndPicture": (1600, {}),
    "DiscreteEnding": (1600, {}),
    "DiscreteCutOff": (1600, {}),
    # The cue is twenty steps before the action that must name it; a sequence holds an episode and a part of another.
    "Recall": (
        10_000,
        dict(
            batch_length=32,
            train_ratio=64,
            imagination_horizon=3,
            learning_rate=2e-3,
            reward_scale=10.0,
            blocks=2,  # of 16 units, so that it is compiled
            torch_threads=1,
        ),
    ),
}


def config_of(name: str, **changes: Any) -> Any:
    return load_config(SETTINGS | {"env_id": f"probe/{name}-v0"} | PROBES[name][1] | changes)


def trained(name: str, **changes: Any) -> DreamerTrainer:
    steps, config = PROBES[name][0], config_of(name, **changes)
    seed_everything(fold(config.seed, "init"))
    trainer, knobs = DreamerTrainer(config), Controls.of(config)
    for step in range(0, steps, config.steps_per_iteration):
        seed_everything(fold(config.seed, step))
        trainer.iterate(knobs.at(step))
    return trainer


def score(trainer: DreamerTrainer) -> float:
    return evaluate(trainer.agent, trainer.config, episodes=50, seed=5)["mean_return"]


def values(trainer: DreamerTrainer, *observations: float) -> np.ndarray:
    """Of first observations: the mean over a few draws of the latent."""
    rows = np.array(observations, np.float32).reshape(len(observations), -1)
    agent = trainer.agent
    return np.mean([agent.value(rows, agent.initial(len(rows))) for _ in range(20)], 0)


def test_the_best_action_is_found() -> None:
    def learned(trainer: DreamerTrainer) -> None:
        assert score(trainer) == 1.0

    iterated(DreamerTrainer, config_of("RewardByAction"), PROBES["RewardByAction"][0], learned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [("RewardByBoth", 0.9), ("TwoChoices", 2.0), ("Coins", 3.0), ("Target", -0.05), ("DictAndPicture", 0.95)],
)
def test_the_best_actions_of_other_spaces_are_found(name: str, least: float) -> None:
    assert score(trained(name)) >= least


@pytest.mark.slow
def test_what_was_seen_twenty_steps_ago_is_remembered() -> None:
    """Within a minute of CPU time, for its networks are compiled."""
    torch.set_num_threads(1)
    began, trainer = time.process_time(), trained("Recall")
    assert score(trainer) >= 0.95
    assert trainer.paths()["fast_networks"] == "compiled" and time.process_time() - began < 60


@pytest.mark.slow
def test_values() -> None:
    np.testing.assert_allclose(values(trained("ConstantReward"), 0.0), [1.0], atol=0.1)
    np.testing.assert_allclose(values(trained("RewardByObservation"), -1.0, 1.0), [-1, 1], atol=0.2)
    np.testing.assert_allclose(values(trained("DelayedReward"), 0.0), [0.9], atol=0.1)


@pytest.mark.slow
def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    """Reward 1 a step, γ 0.9: cut off, the first of five steps is worth 10; ended, 1 + 0.9 + … = 4.1."""
    np.testing.assert_allclose(values(trained("DiscreteEnding"), 0.0), [4.1], atol=0.3)
    np.testing.assert_allclose(values(trained("DiscreteCutOff"), 0.0), [10.0], atol=1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = load_config(SETTINGS | {"env_id": "CartPole-v1"}, sys.argv[2:])
    changed = {key.split("=")[0]: getattr(given, key.split("=")[0]) for key in sys.argv[2:]}
    began = time.process_time()
    found = trained(sys.argv[1], **changed)
    first = values(found, 0.0) if found.observation_space.shape == (1,) else []
    print(
        f"{sys.argv[1]} {changed}: {time.process_time() - began:.0f} CPU-seconds, 50 greedy episodes {score(found)}"
    )
    print(f"value of a first observation of 0: {first}")
