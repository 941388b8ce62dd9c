"""Tree search: DeepMind's mctx on random models, trees and schedules by hand, and what must hold for any model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.search import Root, SearchResult, gumbel_muzero_search, muzero_search

GOLDEN = np.load(Path(__file__).parent / "golden" / "search_mctx.npz")
CASES = sorted({key.split("/")[0] for key in GOLDEN})


def golden(case: str) -> tuple[dict[str, np.ndarray], Root, Callable[..., Any]]:
    """The numbers of a case, its root, and its model."""
    found = {key.split("/")[1]: GOLDEN[key] for key in GOLDEN if key.startswith(f"{case}/")}
    w, b, wr, wp, wv, start = (
        torch.from_numpy(found[name]) for name in ("w", "b", "wr", "wp", "wv", "embedding")
    )

    def recurrent(latent: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reward = (wr[action] * latent).sum(1)
        after = torch.tanh(torch.einsum("bij,bj->bi", w[action], latent) + b[action])
        return reward, torch.full_like(reward, float(found["discount"])), after @ wp, after @ wv, after

    return found, Root(start @ wp, start @ wv, start), recurrent


def assert_equals_golden(result: SearchResult, found: dict[str, np.ndarray], search: str) -> None:
    visits = found[f"{search}_visits"]
    np.testing.assert_array_equal(result.visit_counts.numpy(), visits)
    seen = visits > 0
    np.testing.assert_allclose(
        result.q_values.numpy()[seen], found[f"{search}_qvalues"][seen], rtol=0, atol=1e-4
    )
    np.testing.assert_allclose(result.value.numpy(), found[f"{search}_value"], rtol=0, atol=1e-4)


def test_there_are_thirty_golden_cases() -> None:
    assert len(CASES) == 30


@pytest.mark.parametrize("case", CASES)
def test_muzero_search_equals_mctx(case: str) -> None:
    found, root, recurrent = golden(case)
    simulations = int(found["num_simulations"])
    result = muzero_search(
        root,
        recurrent,
        num_simulations=simulations,
        value_bounds=(float(found["value_min"]), float(found["value_max"])),
        invalid_actions=found["invalid"],
    )
    assert_equals_golden(result, found, "muzero")
    np.testing.assert_allclose(
        result.action_weights.numpy(), found["muzero_visits"] / simulations, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("case", CASES)
def test_gumbel_muzero_search_equals_mctx(case: str) -> None:
    found, root, recurrent = golden(case)
    result = gumbel_muzero_search(
        root,
        recurrent,
        num_simulations=int(found["num_simulations"]),
        gumbel=found["root_gumbel"],
        max_considered_actions=int(found["max_considered"]),
        invalid_actions=found["invalid"],
    )
    assert_equals_golden(result, found, "gumbel")
    np.testing.assert_allclose(result.action_weights.numpy(), found["gumbel_weights"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(result.action.numpy(), found["gumbel_action"])
