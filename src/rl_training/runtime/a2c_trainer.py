"""Advantage actor-critic: its config, its iteration, and `train_a2c`."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.a2c import A2C_SLOPES, a2c_loss
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.optim import optimizer_of
from rl_training.runtime.updates import Fastest
from rl_training.runtime.workflows import Result, train
from rl_training.settings.a2c import A2CConfig


class A2CTrainer(OnPolicyTrainer[A2CConfig]):
    """Advantage actor-critic (Mnih et al. 2016), Algorithm S3 with synchronous actors: one update per rollout."""

    config_class = A2CConfig
    transient = ("update",)

    def __init__(self, config: A2CConfig) -> None:
        super().__init__(config)
        self.optimizer = optimizer_of(config, self.agent.network)
        self.update = Fastest(a2c_loss, A2C_SLOPES, self)

    def iterate(self, knobs: Knobs) -> Metrics:
        # Perform a_t according to the policy π(a_t|s_t; θ), for T steps in B environments.
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        # R ← r_i + γR, from the value of the last state, or 0 after a terminal one; A = R - V(s_i).
        estimates = self.estimate_advantages(rollout, now, metrics)
        # One step on the gradients of all transitions.
        update = self.update()
        batch = self.flat_batch(rollout, estimates)
        metrics.extend(update.descend(update.whole(batch), now))
        self.agent.observe(rollout["obs"])
        return metrics


def train_a2c(config: A2CConfig, **options: Any) -> Result:
    """Train A2C from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
