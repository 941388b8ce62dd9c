"""Our tree search with a random model: the other side of `benchmarks.peers.lightzero_search` and `mctx_search`.

python -m benchmarks.our_search '{"model": "supports", "search": "muzero", "batches": [1, 64], "seconds": 1, ...}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.meter import repeated, report
from benchmarks.search_nets import Model, PackageModel, PlainModel, SupportModel
from rl_training.search import Root, gumbel_muzero_search, muzero_search

PACKAGES = ("rl-training", "torch", "numpy", "numba")


def searcher(settings: dict[str, Any], batch: int) -> Callable[[], Any]:
    """One search from `batch` roots, noise included."""
    latent, actions, seed = settings["latent"], settings["actions"], settings["seed"]
    simulations = settings["simulations"]
    model: Model
    if settings["model"] == "plain":
        model = PlainModel(latent, actions, seed)
    else:
        kinds = {"supports": SupportModel, "package": PackageModel}
        model = kinds[settings["model"]](latent, actions, settings["atoms"], seed)
    root = Root(*model.root(batch, seed))
    chance = np.random.default_rng(seed)

    def muzero() -> Any:
        noise = chance.dirichlet([0.3] * actions, size=batch)
        return muzero_search(root, model, num_simulations=simulations, root_noise=noise)

    def gumbel() -> Any:
        noise = chance.gumbel(size=(batch, actions))
        return gumbel_muzero_search(root, model, num_simulations=simulations, gumbel=noise)

    return muzero if settings["search"] == "muzero" else gumbel


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        costs = repeated(
            lambda batch: searcher(settings, batch),
            settings["batches"],
            settings["simulations"],
            settings["seconds"],
        )
    report(0, {}, PACKAGES, batches=costs)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
