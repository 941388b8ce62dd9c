"""DeepMind's mctx, jitted on the CPU, with two-layer nets, in its own environment.

    python -m benchmarks.peers.mctx_search '{"search": "gumbel", "batches": [64, 256], "seconds": 1, ...}'

The nets are those of `benchmarks.search_nets.PlainModel`. Compiling is not counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mctx

from benchmarks.meter import repeated, report

PACKAGES = ("mctx", "jax", "jaxlib", "numpy")


def recurrent(weights: Any, _key: Any, action: Any, latent: Any) -> Any:
    hidden = jax.nn.relu(latent @ weights["first"] + weights["rows"][action])
    after = jax.nn.relu(hidden @ weights["second"] + weights["second_bias"])
    trunk = jax.nn.relu(after @ weights["third"] + weights["third_bias"])
    heads = trunk @ weights["heads"] + weights["heads_bias"]
    output = mctx.RecurrentFnOutput(
        reward=heads[:, 0],
        discount=jnp.full(action.shape, 0.997),
        prior_logits=heads[:, 2:],
        value=heads[:, 1],
    )
    return output, after


def searcher(settings: dict[str, Any], batch: int) -> Callable[[], Any]:
    latent, actions = settings["latent"], settings["actions"]
    shapes = {
        "first": (latent, latent),
        "rows": (actions, latent),
        "second": (latent, latent),
        "second_bias": (latent,),
        "third": (latent, latent),
        "third_bias": (latent,),
        "heads": (latent, 2 + actions),
        "heads_bias": (2 + actions,),
        "state": (batch, latent),
        "logits": (batch, actions),
        "value": (batch,),
    }
    keys = jax.random.split(jax.random.PRNGKey(settings["seed"]), len(shapes))
    weights = {
        name: jax.random.normal(key, shape) / 8
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    root = mctx.RootFnOutput(
        prior_logits=weights.pop("logits"), value=weights.pop("value"), embedding=weights.pop("state")
    )
    policy = mctx.muzero_policy if settings["search"] == "muzero" else mctx.gumbel_muzero_policy

    @jax.jit
    def search(weights: Any, key: Any, root: Any) -> Any:
        key, mine = jax.random.split(key)
        output = policy(weights, mine, root, recurrent, num_simulations=settings["simulations"])
        summary = output.search_tree.summary()
        return key, output.action, output.action_weights, summary.visit_counts, summary.qvalues, summary.value

    key = jax.random.PRNGKey(settings["seed"])

    def once() -> Any:
        nonlocal key
        key, *found = jax.block_until_ready(search(weights, key, root))
        return found

    return once


def main(settings: dict[str, Any]) -> None:
    costs = repeated(
        lambda batch: searcher(settings, batch),
        settings["batches"],
        settings["simulations"],
        settings["seconds"],
    )
    report(0, {}, PACKAGES, batches=costs)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
