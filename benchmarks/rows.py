"""The rows of the benchmark. A new algorithm adds a `Comparison` here, and nothing else."""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks.comparison import Comparison, Options, Peer
from benchmarks.report import Report


class Row(Protocol):
    """Anything with a name that can be measured."""

    @property
    def name(self) -> str: ...

    def run(self, options: Options) -> Report: ...


SMALL_NETS = {"net_arch": [64, 64], "activation_fn": "Tanh"}

ALL: list[Row] = [
    Comparison(
        name="ppo-cartpole",
        title="PPO on CartPole-v1: 4 environments × 128 steps, 4 minibatches, 4 epochs, two nets of 64-64 tanh units.",
        steps=100_000,
        required=2.7,
        goal=3.5,
        config=dict(
            algo="ppo",
            env_id="CartPole-v1",
            num_envs=4,
            num_steps=128,
            num_minibatches=4,
            update_epochs=4,
            hidden_sizes=[64, 64],
            activation="tanh",
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            gamma=0.99,
            gae_lambda=0.95,
            clip_coef=0.2,
            ent_coef=0.0,
            vf_coef=0.5,
            max_grad_norm=0.5,
        ),
        peer=Peer(
            "stable-baselines3",
            dict(
                algorithm="PPO",
                env_id="CartPole-v1",
                num_envs=4,
                arguments=dict(
                    n_steps=128,
                    batch_size=128,
                    n_epochs=4,
                    learning_rate=2.5e-4,
                    gamma=0.99,
                    gae_lambda=0.95,
                    clip_range=0.2,
                    ent_coef=0.0,
                    vf_coef=0.5,
                    max_grad_norm=0.5,
                ),
                linear=["learning_rate"],
                policy_kwargs=SMALL_NETS,
            ),
        ),
    ),
]

ROWS: dict[str, Any] = {row.name: row for row in ALL}
