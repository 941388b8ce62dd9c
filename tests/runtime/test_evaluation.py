"""Evaluations in compiled environments: what the Python loop plays there, and only during training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training import evaluate_checkpoint, load_config
from rl_training.envs.compiled import CompiledEnvironments
from rl_training.envs.making import LONGEST_EVALUATION, make_compiled
from rl_training.policies.in_lanes import WholeRollouts
from rl_training.runtime.evaluation import play
from rl_training.runtime.workflows import make_trainer


def settings(env_id: str, **more: Any) -> Any:
    return load_config(
        dict(algo="ppo", env_id=env_id, vectorization="compiled", num_envs=2, hidden_sizes=[8]) | more
    )


@pytest.mark.parametrize(
    ("env_id", "more"),
    [
        ("CartPole-v1", dict(normalize_observations=True)),
        ("Pendulum-v1", {}),
        ("Taxi-v4", dict(max_episode_steps=30)),
    ],
)
@pytest.mark.parametrize("episodes", [3, 37])
def test_the_same_episodes_are_played_as_by_the_python_loop(
    env_id: str, more: dict[str, Any], episodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(env_id, **more)
    agent, how = make_trainer(config).agent, dict(episodes=episodes, seed=5, sample=False, compiled=True)
    in_one_call = play(agent, config, **how)
    with monkeypatch.context() as there:
        there.setattr(WholeRollouts, "__call__", lambda *_: None)
        step_by_step = play(agent, config, **how)
    assert len(in_one_call) == episodes and in_one_call == play(agent, config, **how)
    np.testing.assert_allclose(in_one_call, step_by_step, rtol=1e-4)


def test_sampled_ones_are_others_with_another_seed() -> None:
    config = settings("CartPole-v1")
    agent = make_trainer(config).agent
    one, again, other = (
        play(agent, config, episodes=20, seed=seed, sample=True, compiled=True) for seed in (1, 1, 2)
    )
    greedy = play(agent, config, episodes=20, seed=1, sample=False, compiled=True)
    assert one == again and one != other and one != greedy


def test_an_episode_without_a_limit_ends() -> None:
    config = settings("CliffWalking-v1")
    assert make_compiled(config, 1, 1, "evaluate").state.limit == LONGEST_EVALUATION
    assert make_compiled(config, 1, 1, "train").state.limit > LONGEST_EVALUATION


def test_scores_that_are_published_are_gymnasiums(trained_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no environment of Gymnasium")

    run = trained_run("ppo-compiled")  # whose own evaluations were compiled
    monkeypatch.setattr(CompiledEnvironments, "__init__", refuse)
    assert evaluate_checkpoint(run, episodes=2)["episodes"] == 2
