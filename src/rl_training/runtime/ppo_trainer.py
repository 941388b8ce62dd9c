"""Proximal Policy Optimization: its config, its iteration, and `train_ppo`."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from rl_training.algorithms.ppo import PPO_SLOPES, ppo_loss
from rl_training.data.batch import Rollout
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.optim import actor_critic_adam, set_critic_rate
from rl_training.runtime.updates import Far, Fastest, Update
from rl_training.runtime.workflows import Result, train
from rl_training.settings.families import OnPolicyConfig
from rl_training.settings.gail import GAILConfig
from rl_training.settings.ppo import PPOConfig

PPOConfigT = TypeVar("PPOConfigT", bound=PPOConfig | GAILConfig)


class PPOTrainer(OnPolicyTrainer[PPOConfigT]):
    """Proximal Policy Optimization (Schulman et al. 2017), Algorithm 1."""

    config_class: ClassVar[type[OnPolicyConfig]] = PPOConfig
    transient: tuple[str, ...] = ("surrogate",)

    def __init__(self, config: PPOConfigT) -> None:
        super().__init__(config)
        self.optimizer = actor_critic_adam(config, self.agent.network)
        self.surrogate = Fastest(ppo_loss, PPO_SLOPES, self)

    def iterate(self, knobs: Knobs) -> Metrics:
        # Run the old policy for T steps in B environments.
        rollout, metrics = self.collect()
        self.improve_policy(rollout, knobs.after(metrics.steps), metrics)
        return metrics

    def improve_policy(self, rollout: Rollout, now: Now, metrics: Metrics) -> None:
        # Compute advantage estimates A_1, ..., A_T.
        estimates = self.estimate_advantages(rollout, now, metrics)
        # Optimise the surrogate, with K epochs and minibatches of size M ≤ T·B.
        update = self.surrogate()
        batch = self.flat_batch(rollout, estimates)
        parts = update.parts(batch, now.update_epochs, self.config.num_minibatches)
        optimize_surrogate(update, parts, now, metrics)
        self.agent.observe(rollout["obs"])


def optimize_surrogate(update: Update, parts: Any, now: Now, metrics: Metrics) -> None:
    """A step of the clipped surrogate on each minibatch, until the policy is far from the one that acted."""
    set_critic_rate(update.optimizer, now)
    far = None if now.target_kl is None else Far("approx_kl", 1.5 * now.target_kl)
    metrics.extend(update.descend(parts, now, far))


def train_ppo(config: PPOConfig, **options: Any) -> Result:
    """Train PPO from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
