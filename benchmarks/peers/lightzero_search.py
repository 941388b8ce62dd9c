"""LightZero's C++ tree search with its own vector model, in its own environment.

    python -m benchmarks.peers.lightzero_search '{"search": "muzero", "batches": [1, 64], "seconds": 1, ...}'

The calls are those of its policies when they collect: roots with Dirichlet noise, `search`, and what is read from
the roots afterwards. Its representation network is not run; our side has none either.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from easydict import EasyDict
from lzero.mcts.tree_search.mcts_ctree import GumbelMuZeroMCTSCtree, MuZeroMCTSCtree
from lzero.model.muzero_model_mlp import MuZeroModelMLP

from benchmarks.meter import repeated, report

PACKAGES = ("lightzero", "DI-engine", "torch", "numpy")


def searcher(settings: dict[str, Any], batch: int) -> Callable[[], Any]:
    torch.manual_seed(settings["seed"])
    latent, actions, atoms = settings["latent"], settings["actions"], settings["atoms"]
    gumbel = settings["search"] == "gumbel"
    model = MuZeroModelMLP(
        observation_shape=4,
        action_space_size=actions,
        latent_state_dim=latent,
        reward_support_size=atoms,
        value_support_size=atoms,
        categorical_distribution=atoms > 1,
        last_linear_layer_init_zero=False,  # or all values would be equal
    ).eval()
    kind = GumbelMuZeroMCTSCtree if gumbel else MuZeroMCTSCtree
    config = EasyDict(
        num_simulations=settings["simulations"],
        max_num_considered_actions=16,
        discount_factor=0.997,
        env_type="not_board_games",
        device="cpu",
        model=dict(support_scale=max(1, atoms // 2), categorical_distribution=atoms > 1),
    )
    search = kind(config)
    chance = np.random.default_rng(settings["seed"])
    with torch.no_grad():
        states = torch.rand(batch, latent)
        logits, value = model._prediction(states)
        values = search.inverse_scalar_transform_handle(value).numpy().reshape(-1).tolist()
    roots_latent, roots_logits = states.numpy(), logits.numpy().tolist()
    legal = [list(range(actions)) for _ in range(batch)]

    def once() -> Any:
        roots = kind.roots(batch, legal)
        noise = [row.tolist() for row in chance.dirichlet([0.3] * actions, size=batch).astype(np.float32)]
        rewards, side = [0.0] * batch, [-1] * batch
        if gumbel:
            roots.prepare(0.25, noise, rewards, values, roots_logits, side)
        else:
            roots.prepare(0.25, noise, rewards, roots_logits, side)
        search.search(roots, model, roots_latent, side)
        return roots.get_distributions(), roots.get_values()

    return once


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    costs = repeated(
        lambda batch: searcher(settings, batch),
        settings["batches"],
        settings["simulations"],
        settings["seconds"],
    )
    report(0, {}, PACKAGES, batches=costs)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
