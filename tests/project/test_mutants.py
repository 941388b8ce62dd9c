"""The mutation run itself: what it changes, and that a change planted in a fork is what tests there see."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from runs import in_child

from rl_training.algorithms import returns
from rl_training.data import normalization

sys.path.insert(0, str(Path(__file__).parents[1] / "mutants"))

from mutations import mutations
from planting import NotPlanted, live_functions, plant

SOURCE = '''
"""A page."""
LIMIT = 10.0

class Trainer:
    field: int = 3

    def __init__(self):
        self.target = self.network

    def update(self, now, size: int = 4):
        """A sentence."""
        assert size > 0, "no size"
        pairs = zip(now, self, strict=True)
        if size < 8:
            self.count += 1
        loss = max(self.target(size), -1) * now.vf_coef
        self.step(loss.detach())
        return loss
'''
CHANGES = {
    ("constant", "10.0", "20.0"),
    ("dropped", "self.target = self.network", "pass"),
    ("condition", "if size < 8:\n    self.count += 1", "if not size < 8:\n    self.count += 1"),
    ("operator", "size < 8", "size <= 8"),
    ("constant", "8", "9"),
    ("operator", "self.count += 1", "self.count -= 1"),
    ("dropped", "self.count += 1", "pass"),
    ("constant", "1", "2"),
    (
        "operator",
        "max(self.target(size), -1) * now.vf_coef",
        "max(self.target(size), -1) / now.vf_coef",
    ),
    ("operator", "max(self.target(size), -1)", "min(self.target(size), -1)"),
    ("target", "self.target", "self.agent.network"),
    ("operator", "-1", "1"),
    ("knob", "now.vf_coef", "self.config.vf_coef"),
    ("dropped", "self.step(loss.detach())", "pass"),
    ("dropped", "loss.detach()", "loss"),
}


def test_every_kind_of_change_is_found_and_text_types_and_refusals_are_left_alone() -> None:
    found = [(each.kind, each.before, each.after) for each in mutations(ast.parse(SOURCE))]
    assert set(found) == CHANGES
    assert found.count(("constant", "1", "2")) == 2


def test_a_change_is_made_in_the_tree_it_was_found_in() -> None:
    tree = ast.parse(SOURCE)
    next(each for each in mutations(tree) if each.kind == "knob").make()
    assert "self.config.vf_coef" in ast.unparse(tree) and "now.vf_coef" not in ast.unparse(tree)


def planted(module: object, old: str, new: str) -> None:
    path = Path(module.__file__)  # type: ignore[attr-defined]
    source = path.read_text()
    assert source.count(old) == 1
    plant(path, ast.parse(source.replace(old, new)))


def see_planted_code() -> None:
    """In a fork: a method, a constant where it is used, and a function that numba compiled."""
    import numpy as np
    import torch

    moments = normalization.RunningMoments(())
    planted(normalization, "self.count = min(total, self.memory)", "self.count = -total")
    moments.update(np.ones(2))
    assert moments.count == -2.0001
    planted(normalization, "CLIP = 10.0", "CLIP = 3.0")
    scaler = normalization.RewardScaler(1)
    assert scaler(np.full((1, 1), 1e9, np.float32), np.ones((1, 1), bool), 0.9).item() <= 3.0

    def estimate() -> float:
        columns = (torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
        never = torch.zeros(1, 1, dtype=torch.bool)
        return returns.gae(*columns, never, never, 0.9, 0.9)["advantage"].item()

    assert estimate() == 1.0
    planted(
        returns, "delta = reward[t, lane] - value[t, lane]", "delta = 7 * reward[t, lane] - value[t, lane]"
    )
    assert estimate() == 7.0
    with pytest.raises(NotPlanted):
        planted(normalization, "lanes: slice = slice(None)", "lanes: slice = slice(1)")
    os._exit(0)


def test_planted_changes_are_what_callers_see() -> None:
    live_functions()  # in the fork, which counts as one thing all that was there before, none would be found
    assert in_child(see_planted_code) == 0
