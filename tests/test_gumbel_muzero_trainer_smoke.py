"""Gumbel MuZero: its schedules, what really ran, what its temperature does, and the probes it must solve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import BOARD_GAME, iterated
from test_muzero_trainer_smoke import (
    CONTINUOUS,
    PROBED,
    SCHEDULES,
    TINY,
    check_budgets,
    check_schedules,
    counted,
    finds_the_best_action,
    finds_the_target,
)

from rl_training import load_config
from rl_training.errors import ConfigError
from rl_training.policies import search as search_policy
from rl_training.runtime.controls import Controls
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.gumbel_muzero_trainer import (
    GumbelMuZeroConfig,
    GumbelMuZeroTrainer,
    train_gumbel_muzero,
)
from rl_training.state.seeding import seed_everything


def test_scheduled_values_are_used_and_logged_exactly(tmp_path: Any) -> None:
    metrics = check_schedules(train_gumbel_muzero, GumbelMuZeroConfig(**TINY | SCHEDULES), tmp_path)
    assert metrics["num_simulations"] == 6 and metrics["temperature"] == 0.25


def test_as_many_simulations_run_as_the_schedule_says_at_every_step(monkeypatch: Any) -> None:
    check_budgets(GumbelMuZeroTrainer, TINY, counted(monkeypatch, "gumbel_muzero_search"))


def test_the_temperature_is_the_loudness_of_the_noise() -> None:
    """At 0 all equal roots choose alike; the louder the noise, the nearer the choices are to even."""
    seed_everything(0)
    trainer = GumbelMuZeroTrainer(GumbelMuZeroConfig(**TINY))
    torch.nn.init.normal_(
        trainer.agent.network.prediction[-1].weight
    )  # from zeros all actions would be alike
    obs = np.repeat(np.random.standard_normal((1, 4)).astype(np.float32), 1000, 0)
    settings = dict(num_simulations=4, root_exploration_fraction=0.0, gamma=0.99)
    shares = {t: trainer.agent.plan(obs, temperature=t, **settings).action.mean() for t in (0.0, 0.1, 100.0)}
    assert shares[0.0] in (0.0, 1.0)
    assert shares[100.0] == pytest.approx(0.5, abs=0.06)
    assert abs(shares[0.1] - 0.5) > abs(shares[100.0] - 0.5) + 0.1
    quiet = trainer.agent.plan(obs, temperature=0.0, **settings)
    mixed = trainer.agent.plan(obs, temperature=0.0, **settings | dict(root_exploration_fraction=0.9))
    assert len(np.unique(quiet.policy, axis=0)) == 1 < len(np.unique(mixed.policy, axis=0))


def test_schedules_reach_every_search_of_connect_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a search is and how loud its noise: those of play at each step, and of positions searched anew."""
    searches: list[tuple[int, list[float]]] = []
    real = search_policy.gumbel_muzero_search

    def search(root: Any, recurrent: Any, *, num_simulations: int, gumbel: Any, **more: Any) -> Any:
        result = real(root, recurrent, num_simulations=num_simulations, gumbel=gumbel, **more)
        assert (result.visit_counts.sum(-1) == num_simulations).all()
        assert (gumbel == gumbel[:, :1]).all()
        searches.append((num_simulations, gumbel[:, 0].tolist()))
        return result

    monkeypatch.setattr(search_policy, "gumbel_muzero_search", search)
    monkeypatch.setattr(np.random, "gumbel", lambda size: np.ones(size))  # so that noise is its temperature
    changes: dict[str, Any] = dict(
        algo="gumbel_muzero",
        env_id="rl_training/ConnectFour-v0",
        num_simulations_schedule={"type": "step", "points": [[0, 2], [24, 5], [48, 3]]},
        temperature_schedule={"type": "linear", "start": 1.0, "end": 0.5},
        temperature_moves=8,
        reanalyse_ratio=1.0,
        replay_ratio=0.25,  # an update in each iteration
    )
    config = load_config(BOARD_GAME, **changes)
    trainer, knobs = GumbelMuZeroTrainer(config), Controls.of(config)
    longest = {step: 2 if step < 24 else 5 if step < 48 else 3 for step in range(0, 68, 4)}
    for step in range(0, 64, 4):
        searches.clear()
        early = trainer.environments.lengths < 8
        trainer.iterate(knobs.at(step))
        played, *anew = searches
        assert played == (longest[step], [(1 - 0.5 * step / 64) * each for each in early])
        assert all(asked == longest[step + 4] and not any(noise) for asked, noise in anew)
        assert len(anew) == (step + 4 >= config.learning_starts)
    trainer.close()


def trained(env_id: str, steps: int = 500, learned: Any = None, **changes: Any) -> GumbelMuZeroTrainer:
    settings: dict[str, Any] = dict(num_simulations=4, unroll_steps=2, td_steps=2)
    config = GumbelMuZeroConfig(env_id=f"probe/{env_id}-v0", **PROBED | settings | changes)
    return iterated(GumbelMuZeroTrainer, config, steps, learned)


def test_the_best_action_is_found() -> None:
    trained("RewardByBoth", learned=finds_the_best_action)
    trained("Target", 800, finds_the_target, **CONTINUOUS)


def test_forbidden_actions_are_never_taken() -> None:
    """The probe raises when one is; Dirichlet noise does not bring them back."""
    trainer = trained("Masked", 100, root_exploration_fraction=0.5)
    evaluate(trainer.agent, trainer.config, episodes=10, seed=5, sample=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_id="probe/TwoChoices-v0"), "actions must be Discrete, Box"),
        (dict(max_considered_actions=0), "at least 1"),
        (dict(temperature=-1.0), "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GumbelMuZeroTrainer(GumbelMuZeroConfig(**TINY | changes))
