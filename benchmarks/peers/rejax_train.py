"""One training run of rejax's PPO or SAC, the whole loop jitted, in its environment.

    python -m benchmarks.peers.rejax_train '{"algorithm": "ppo", "env_id": "CartPole-v1", "num_envs": 4, ...}'

Settings: `algorithm`, `env_id`, `num_envs`, its `arguments`, `learning_rate`, `linear` (whether that falls to 0 over
the run), `gains` (those of orthogonal initial weights: `hidden`, `actor` and `critic`; without them they are flax's),
`warm_up`, `steps`, `seed`, `episodes`. The training is compiled before it is measured; what that takes is
`compile_seconds`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import gymnasium
import jax
import numpy as np
import optax
import rejax
from jax import numpy as jnp
from jax.nn.initializers import orthogonal

from benchmarks.meter import measured, report

PACKAGES = ("jax", "rejax", "gymnax", "flax", "optax", "numpy")


def make(settings: dict[str, Any], steps: int) -> Any:
    """The algorithm, with as many whole iterations as the steps ask for, and without evaluations."""
    arguments, count = dict(settings["arguments"]), settings["num_envs"]
    per_iteration = count * arguments.get("num_steps", 1)
    iterations = -(-steps // per_iteration)
    updates = iterations * arguments.get("num_epochs", 1) * arguments.get("num_minibatches", 1)
    start = settings["learning_rate"]
    algorithm = rejax.get_algo(settings["algorithm"]).create(
        env=settings["env_id"],
        num_envs=count,
        total_timesteps=iterations * per_iteration,
        eval_freq=iterations * per_iteration,
        skip_initial_evaluation=True,
        learning_rate=optax.linear_schedule(start, 0.0, updates) if settings.get("linear") else start,
        **arguments,
    )
    return algorithm.replace(eval_callback=lambda algorithm, state, key: jnp.zeros(()))


def first_state(algorithm: Any, key: Any, gains: dict[str, float] | None) -> Any:
    """The state that training begins with; where `gains` are given, its weights are drawn anew, orthogonal."""
    state = algorithm.init_state(key)
    if gains is None:
        return state

    def redraw(params: Any, head: float) -> Any:
        leaves, kind = jax.tree_util.tree_flatten(params)
        size = min(leaf.shape[-1] for leaf in leaves)  # of the head, whose outputs are fewest
        keys = jax.random.split(jax.random.fold_in(key, size), len(leaves))
        drawn = [
            leaf  # a bias: 0 on both sides
            if leaf.ndim == 1
            else orthogonal(head if leaf.shape[-1] == size else gains["hidden"])(chance, leaf.shape)
            for leaf, chance in zip(leaves, keys, strict=True)
        ]
        return jax.tree_util.tree_unflatten(kind, drawn)

    actor, critic = state.actor_ts, state.critic_ts
    return state.replace(
        actor_ts=actor.replace(params=redraw(actor.params, gains["actor"])),
        critic_ts=critic.replace(params=redraw(critic.params, gains["critic"])),
    )


def choose(algorithm: Any, state: Any, obs: Any) -> Any:
    """The best of some actions, or the mean through the tanh."""
    actor = algorithm.actor
    found = actor.apply(state.actor_ts.params, obs, method="_action_dist")
    if hasattr(found, "logits"):
        return found.logits.argmax(-1)
    low, high = actor.action_range
    return (low + high) / 2 + jnp.tanh(found.mean()) * (high - low) / 2


def score(algorithm: Any, state: Any, settings: dict[str, Any]) -> float:
    """The mean return of greedy episodes in Gymnasium's environment."""
    count = settings["episodes"]
    act = jax.jit(lambda obs: choose(algorithm, state, obs))
    envs = gymnasium.make_vec(settings["env_id"], num_envs=count, vectorization_mode="sync")
    obs, _ = envs.reset(seed=1000 + settings["seed"])
    returns, going = np.zeros(count), np.ones(count, bool)
    while going.any():
        obs, reward, terminated, truncated, _ = envs.step(np.asarray(act(jnp.asarray(obs))))
        returns += reward * going
        going &= ~(terminated | truncated)
    return float(returns.mean())


def main(settings: dict[str, Any]) -> None:
    algorithm = make(settings, settings["steps"])
    key = jax.random.PRNGKey(settings["seed"])
    began = time.process_time()

    def trained(key: Any) -> Any:
        return algorithm.train(train_state=first_state(algorithm, key, settings.get("gains")))

    train = jax.jit(trained).lower(key).compile()
    compiling = time.process_time() - began
    (state, _), cost = measured(lambda: jax.block_until_ready(train(key)))
    found = score(algorithm, state, settings) if settings["episodes"] else None
    report(algorithm.total_timesteps, cost, PACKAGES, score=found, compile_seconds=compiling)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
