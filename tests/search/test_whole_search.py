"""A search that is one compiled call finds bit for bit what one of single calls of the same model finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies.search import Recurrent
from rl_training.search import Root, SearchResult, gumbel_muzero_search, muzero_search

ACTIONS = 3


def network(**settings: Any) -> MuZeroNetwork:
    torch.manual_seed(5)
    small: dict[str, Any] = dict(latent_size=8, hidden_sizes=[16], activation="relu", support_size=5)
    made = MuZeroNetwork(
        spaces.Box(-1, 1, (4,), np.float32),
        ACTIONS,
        image_encoder="nature",
        residual_blocks=1,
        **small | settings,
    )
    heads = list(made.prediction.children())[-1]
    assert isinstance(heads, torch.nn.Linear)
    torch.nn.init.normal_(heads.weight)  # from zeros all values would be equal
    return made


def searched(kind: str, recurrent: Any, root: Root, **more: Any) -> SearchResult:
    noise = np.random.default_rng(1).gumbel(size=tuple(root.prior_logits.shape))
    if kind == "gumbel":
        return gumbel_muzero_search(root, recurrent, gumbel=noise, **more)
    return muzero_search(root, recurrent, root_noise=np.abs(noise), **more)


@pytest.mark.parametrize("kind", ["muzero", "gumbel"])
@pytest.mark.parametrize(
    ("settings", "roots", "simulations", "more"),
    [
        ({}, 1, 1, {}),
        ({}, 3, 12, {"max_depth": 2}),
        ({}, 17, 40, {}),
        ({}, 40, 25, {"invalid_actions": np.eye(40, ACTIONS)}),
        (dict(activation="tanh", latent_size=5, hidden_sizes=[24, 9], support_size=1), 9, 16, {}),
        (dict(latent_size=33, hidden_sizes=[7], support_size=20), 2, 30, {}),
    ],
)
def test_one_call_finds_what_single_calls_find(
    kind: str, settings: dict[str, Any], roots: int, simulations: int, more: dict[str, Any]
) -> None:
    model = network(**settings)
    with torch.inference_mode():
        root = Root(*model.initial(torch.randn(roots, 4)))
        whole = Recurrent(model, torch.full((roots,), 0.97))
        assert whole.small is not None
        found = searched(kind, whole, root, num_simulations=simulations, **more)
        singly = searched(kind, lambda *edge: whole(*edge), root, num_simulations=simulations, **more)
    for name, value in vars(found).items():
        assert torch.equal(value, getattr(singly, name)), name


def test_what_is_not_finite_is_named_and_other_models_are_asked_by_single_calls() -> None:
    model, discount = network(), torch.full((2,), 0.97)
    with torch.inference_mode():
        root = Root(*model.initial(torch.randn(2, 4)))
    heads = list(model.prediction.children())[-1]
    assert isinstance(heads, torch.nn.Linear)
    with torch.no_grad():
        heads.bias[ACTIONS] = torch.nan  # of the values
    for kind in ("muzero", "gumbel"):
        with pytest.raises(ValueError, match="recurrent's value is not finite in simulation 1"):
            searched(kind, Recurrent(model, discount), root, num_simulations=4)
    hooked = network()
    hooked.dynamics.register_forward_hook(lambda *given: None)
    assert Recurrent(hooked, discount).small is None
    assert Recurrent(network(), discount.double()).small is None


def test_planning_of_a_small_network_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(MuZeroNetwork, "recurrent", lambda *edge: asked.append(edge))
    model = network()
    with torch.inference_mode():
        root = Root(*model.initial(torch.randn(2, 4)))
        searched("muzero", Recurrent(model, torch.ones(2)), root, num_simulations=3)
    assert not asked
