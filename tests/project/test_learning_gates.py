"""The gates of `make learn` themselves: what they let pass, without training anything."""

from __future__ import annotations

import json

import pytest
from learning import connect_four, gates
from learning.gates import GATES, KEPT, Gate, Outcome, keep, passed, table

from rl_training import load_config
from rl_training.kernels.compiled import REVISION
from rl_training.runtime.ppo_trainer import PPOTrainer
from rl_training.state.formats import SHARED_REVISION


def outcomes(*trained: float) -> list[Outcome]:
    return [Outcome(seed, 10.0, score, 1000, 500.0) for seed, score in enumerate(trained, 1)]


def test_every_seed_counts() -> None:
    gate = Gate("dqn/cartpole", 475)
    assert passed(gate, outcomes(475, 500, 500, 500, 500))
    assert not passed(gate, outcomes(474.9, 500, 500, 500, 500))  # however good the median is
    two = Gate("dqn/cartpole", 475, may_fail=2, why="it is not steady")
    assert passed(two, outcomes(281, 500, 388, 500, 500)) and not passed(
        two, outcomes(281, 400, 388, 500, 500)
    )
    assert "missed" not in table(gate, outcomes(500)) and "passed" in table(gate, outcomes(500))
    report = table(two, outcomes(281, 500, 388, 474, 500))
    assert "failed; seeds that miss it: 1 (281.0), 3 (388.0), 4 (474.0); 2 may: it is not steady" in report


def test_a_control_must_stay_below_with_every_seed() -> None:
    control = Gate("ppo/cartpole_no_velocity", 200, control=True)
    assert passed(control, outcomes(40, 41, 199.9)) and not passed(control, outcomes(40, 41, 200))


@pytest.mark.parametrize("name", GATES)
def test_few_seeds_may_fail_and_the_gate_says_why(name: str) -> None:
    gate = GATES[name]
    assert gate.may_fail < len(gate.seeds) / 2 and bool(gate.why) == bool(gate.may_fail)
    assert not (gate.control and gate.may_fail)


def test_kept_outcomes_are_those_of_all_seeds_of_todays_gates() -> None:
    for name, kept in json.loads(KEPT.read_text("utf-8")).items():
        gate = GATES[name]
        asked = (gate.config, list(gate.overrides), gate.score, gate.control, gate.may_fail, gate.episodes)
        assert asked == tuple(
            kept[part] for part in ("config", "overrides", "score", "control", "may_fail", "episodes")
        )
        outcomes = [Outcome(**seed) for seed in kept["seeds"]]
        assert tuple(outcome.seed for outcome in outcomes) == gate.seeds
        steps = load_config(gate.config, gate.overrides).total_timesteps
        assert all(0 <= outcome.steps - steps < 0.1 * steps for outcome in outcomes), name


def test_outcomes_are_kept_in_the_order_of_the_gates(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gates, "KEPT", tmp_path / "gates.json")
    last, first = GATES["dqn/cartpole"], GATES["ppo/cartpole"]
    keep(last, outcomes(1, 2, 3, 4, 5))
    keep(first, outcomes(500, 500, 500, 500, 500))
    keep(last, outcomes(6, 7, 8, 9, 10))
    kept = json.loads((tmp_path / "gates.json").read_text("utf-8"))
    assert list(kept) == ["ppo/cartpole", "dqn/cartpole"]
    assert [seed["trained"] for seed in kept["dqn/cartpole"]["seeds"]] == [6, 7, 8, 9, 10]
    assert not passed(last, [Outcome(**seed) for seed in kept["dqn/cartpole"]["seeds"]])
    assert kept["dqn/cartpole"]["config_sha256"] != kept["ppo/cartpole"]["config_sha256"]


def test_an_outcome_says_how_it_was_computed_and_is_kept_with_that(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gates, "KEPT", tmp_path / "gates.json")
    small = ("total_timesteps=256", "num_envs=2", "num_steps=64", "eval_episodes=1")
    found = []
    for more in ((), ("vectorization=sync", "compiled_updates=false")):
        outcome = gates.train_and_evaluate(Gate("ppo/cartpole", 475, episodes=1, overrides=small + more), 1)
        keep(GATES["ppo/cartpole"], [outcome])
        (seed,) = json.loads(gates.KEPT.read_text("utf-8"))["ppo/cartpole"]["seeds"]
        found.append(Outcome(**seed).how)
    here, torchs = found
    assert here["vectorization"] == here["paths"]["rollouts"] == here["paths"]["surrogate"] == "compiled"
    assert torchs["vectorization"] == "sync" and "compiled" not in torchs["paths"].values()
    assert here["paths"]["kernels"] == {"shared": REVISION}
    assert here["results"] == {"shared": SHARED_REVISION, "ppo": PPOTrainer.revision}


def connect_four_run(
    lost: int = 0, kept: float = 0.93, untrained: float = 0.6, settings: str = "these"
) -> dict[str, object]:
    games = {f"{outcome}_as_{side}": 0 for outcome in ("won", "lost") for side in ("first", "second")}
    judged = {"positions": 1000, "kept": kept, "untrained": untrained}
    return {
        "seed": 11,
        "config_sha256": settings,
        "random": games,
        "minimax:4": games | {"lost_as_second": lost},
        "kept": {"400": judged},
    }


def test_connect_four_is_mastered_without_a_lost_game_and_with_moves_that_keep_its_value(
    tmp_path, monkeypatch
) -> None:
    assert connect_four.passed(connect_four_run())
    for wrong in (dict(lost=1), dict(kept=0.89), dict(untrained=0.74)):
        assert not connect_four.passed(connect_four_run(**wrong)), wrong
    monkeypatch.setattr(connect_four, "KEPT", tmp_path / "connect_four.json")
    shipped = {}
    for seed, kept, settings in (
        (13, 0.91, "others"),
        (12, 0.92, "these"),
        (11, 0.95, "these"),
        (14, 0.9, "these"),
    ):
        shipped[seed] = connect_four.keep(connect_four_run(kept=kept, settings=settings) | {"seed": seed})
    # A policy is shipped that keeps fewer moves than all others of the same settings.
    assert shipped == {13: True, 12: True, 11: False, 14: True}
    assert list(json.loads((tmp_path / "connect_four.json").read_text("utf-8"))) == ["11", "12", "13", "14"]
