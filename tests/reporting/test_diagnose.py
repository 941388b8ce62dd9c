"""What is wrong with a run: planted faults are named, healthy runs are left alone, and changes are proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import Command
from sick_runs import HEALTHY, LOGS, PAGE, SICK, page, seen, trained

from rl_training.reporting.diagnosis import RULES, Seen, diagnose, unseen
from rl_training.tools.proving import prove

# The planted faults that no rule names, as the page says.
MISSED = {"ppo, learning rate 0.03, 20 epochs", "a2c, learning rate 0.3", "sac, no target network"}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return json.loads(LOGS.read_text())


@pytest.mark.parametrize("name", SICK)
def test_a_planted_fault_is_named(name: str, runs: dict[str, Any]) -> None:
    named = [finding.rule for finding in diagnose(seen(runs[name]))]
    assert (SICK[name].rule in named) == (name not in MISSED)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_left_alone(name: str, runs: dict[str, Any]) -> None:
    assert diagnose(seen(runs[name])) == []


def test_every_rule_has_a_fault_that_is_planted_for_it() -> None:
    assert {planted.rule for planted in SICK.values()} == {rule.name for rule in RULES} - {"returns fell"}
    assert len(SICK) >= 20


def test_what_is_not_logged_is_not_spoken_of() -> None:
    nothing = Seen({"total_timesteps": 1000}, {})
    assert diagnose(nothing) == [] and unseen(nothing) == [rule.name for rule in RULES]
    steps = np.arange(1.0, 31) * 100
    falling = Seen({}, {"episode_return": (steps, -steps), "episode_return_std": (steps, np.ones(30))})
    assert [finding.rule for finding in diagnose(falling)] == ["returns fell"]
    few = Seen({}, {name: (step[:3], values[:3]) for name, (step, values) in falling.curves.items()})
    assert diagnose(few) == []


def test_the_page_has_the_tables() -> None:
    assert page() == PAGE.read_text("utf-8")


def test_a_sick_run_is_named_by_the_command_and_the_change_is_proven(tmp_path: Path) -> None:
    name = "ppo, learning rate 1e-7"
    small = SICK[name]._replace(settings={**SICK[name].settings, "total_timesteps": 10_000})
    trained(small, tmp_path / "run", seed=12)
    told = Command("diagnose", tmp_path / "run", "--json")
    out, _ = told.communicate()
    (finding,) = json.loads(out.splitlines()[-1])["findings"]
    assert finding["rule"] == "updates without effect" and finding["changes"]["learning_rate"] == 1e-4
    proof = prove(tmp_path / "run", {"learning_rate": 1e-3}, step=8_000, seeds=2, steps=2_000, episodes=2)
    # The fork begins at a step between checkpoints, one line before the given one.
    assert proof.step == 8_000 - 512 and proof.steps == 2_000
    assert len(proof.without) == len(proof.with_change) == 2
    assert 0 <= proof.improvement.low <= proof.improvement.value <= proof.improvement.high <= 1
    again = prove(tmp_path / "run", {"learning_rate": 1e-3}, step=8_000, seeds=2, steps=2_000, episodes=2)
    assert (again.without, again.with_change) == (proof.without, proof.with_change)
