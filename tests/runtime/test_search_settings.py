"""`evaluate --set`: a search with other settings than training had last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training import evaluate_checkpoint
from rl_training.errors import ConfigError
from rl_training.policies.scalezero import ScaleZeroPolicy
from rl_training.policies.search import SearchPolicy

KEPT = Path(__file__).parents[1] / "golden" / "runs" / "2"


def searched(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, **options: Any) -> list[dict[str, Any]]:
    """The settings of every search of one evaluation."""
    seen: list[dict[str, Any]] = []
    real = kind.plan  # type: ignore[attr-defined]

    def plan(self: Any, *args: Any, **settings: Any) -> Any:
        seen.append(self.settings | settings)
        return real(self, *args, **settings)

    monkeypatch.setattr(kind, "plan", plan)
    evaluate_checkpoint(KEPT / name, episodes=1, **options)
    return seen


@pytest.mark.parametrize(
    ("name", "kind"),
    [("muzero", SearchPolicy), ("gumbel_muzero", SearchPolicy), ("scalezero", ScaleZeroPolicy)],
)
def test_every_search_of_an_evaluation_has_the_settings(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = searched(monkeypatch, kind, name)
    monkeypatch.undo()
    after = searched(monkeypatch, kind, name, settings=["num_simulations=11"])
    assert {each["num_simulations"] for each in before} == {3}
    assert {each["num_simulations"] for each in after} == {11}
    assert {each["temperature"] for each in after} == {0.0}, "greedy all the same"
    for name in after[0].keys() - {"num_simulations", "noise"}:
        assert after[0][name] == before[0][name]


def test_sampled_actions_have_a_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = searched(monkeypatch, SearchPolicy, "muzero", settings={"temperature": 0.5}, sample=True)
    assert {each["temperature"] for each in seen} == {0.5}


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("ppo", ["num_simulations=3"], "ppo acts without a search, so it has no num_simulations"),
        ("bc", ["num_simulations=5"], "bc acts without a search, so it has no num_simulations"),
        ("muzero", ["algo=gumbel_muzero"], "algo is none of a search's settings"),
        ("muzero", ["num_simulations=5", "env_id=Acrobot-v1"], "env_id is none of a search's settings"),
        ("scalezero", {"env_ids": ["Acrobot-v1"]}, "env_ids is none of a search's settings"),
        ("ppo", ["learning_rate=0.1"], "ppo acts without a search, so it has no learning_rate"),
        ("muzero", ["num_simulations=0"], "num_simulations"),
        ("muzero", ["num_simulation=9"], "did you mean num_simulations"),
        ("muzero", ["learning_rate=0.1"], "learning_rate is none of a search's settings: num_simulations, "),
        ("muzero", ["temperature=1"], "temperature has no effect on greedy actions; add --sample"),
    ],
)
def test_what_no_search_has_is_refused(name: str, settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        evaluate_checkpoint(KEPT / name, episodes=1, settings=settings)
