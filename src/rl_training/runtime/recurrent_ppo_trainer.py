"""PPO with a memory: its config, its iteration, and `train_recurrent_ppo`."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.ppo import PPO_SLOPES, ppo_loss
from rl_training.data.batch import RolloutBatch
from rl_training.data.sequences import sequence_minibatches
from rl_training.policies.recurrent import RecurrentPolicy
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.optim import actor_critic_adam
from rl_training.runtime.ppo_trainer import optimize_surrogate
from rl_training.runtime.updates import Evaluated, TorchUpdate
from rl_training.runtime.workflows import Result, train
from rl_training.settings.recurrent_ppo import RecurrentPPOConfig


class RecurrentPPOTrainer(OnPolicyTrainer[RecurrentPPOConfig]):
    """Proximal Policy Optimization (Schulman et al. 2017) with an LSTM (Huang et al. 2022, LSTM details)."""

    config_class = RecurrentPPOConfig
    policy_class = RecurrentPolicy
    agent: RecurrentPolicy
    transient = ("surrogate",)

    def __init__(self, config: RecurrentPPOConfig) -> None:
        super().__init__(config)
        self.optimizer = actor_critic_adam(config, self.agent.network)
        self.surrogate = TorchUpdate(
            ppo_loss, PPO_SLOPES, self.evaluate, self.optimizer, config.normalize_advantages
        )

    @classmethod
    def network_settings(cls, config: RecurrentPPOConfig) -> dict[str, Any]:
        names = ("cell", "recurrent_size", "recurrent_layers", "critic_memory")
        return super().network_settings(config) | {name: getattr(config, name) for name in names}

    def iterate(self, knobs: Knobs) -> Metrics:
        # Run the old policy, from the memories that the last rollout ended with.
        carry = self.collector.carry
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        # Compute advantage estimates.
        estimates = self.estimate_advantages(rollout, now, metrics)
        # Optimise the surrogate over whole sequences, which begin with those memories or with an episode.
        ended = rollout["terminated"] | rollout["truncated"]
        batch = self.time_batch(rollout, estimates)
        parts = sequence_minibatches(batch, ended, carry, now.update_epochs, self.config.num_minibatches)
        self.surrogate.optimizer = self.optimizer  # which a subclass may have replaced
        optimize_surrogate(self.surrogate, parts, now, metrics)
        self.agent.observe(rollout["obs"])
        return metrics

    def evaluate(self, minibatch: RolloutBatch) -> Evaluated:
        return self.agent.evaluate_sequences(
            minibatch["obs"], minibatch["action"], minibatch["sequences"], minibatch["carry"]
        )


def train_recurrent_ppo(config: RecurrentPPOConfig, **options: Any) -> Result:
    """Train recurrent PPO from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
