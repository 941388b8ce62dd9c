"""Proximal Policy Optimization: its config, its iteration, and `train_ppo`."""

from __future__ import annotations

from typing import Any, Literal

import torch
from gymnasium import spaces
from pydantic import model_validator

from rl_training.algorithms.ppo import normalize_advantage, ppo_loss
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.config import Config, field, schedulable
from rl_training.data.batch import flatten_time, minibatches
from rl_training.data.collector import Collector
from rl_training.data.normalization import RewardScaler
from rl_training.envs.making import make_environments
from rl_training.runtime.actor_critic_policy import ActorCriticPolicy
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import Adam
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.workflows import Result, train


@schedulable
class PPOConfig(Config):
    """Proximal Policy Optimization, for discrete and continuous actions."""

    algo: Literal["ppo"] = field("ppo", "The algorithm.")
    num_envs: int = field(4, "Environments stepped side by side.", ge=1)
    num_steps: int = field(128, "Steps in each environment per rollout.", ge=1)
    num_minibatches: int = field(4, "Parts into which each epoch cuts the rollout.", ge=1)
    update_epochs: int = field(4, "Passes over each rollout.")
    learning_rate: float = field(2.5e-4, "Adam's step size.")
    gamma: float = field(0.99, "Discount per step.")
    gae_lambda: float = field(
        0.95, "Decay per step of the advantage estimate: 0 trusts the critic, 1 the returns."
    )
    clip_coef: float = field(0.2, "How far the probability ratio may leave 1 before its gradient stops.")
    value_clip_coef: float | None = field(
        None, "How far a value may leave the old one, in returns; none: no clip."
    )
    ent_coef: float = field(0.0, "Weight of the entropy bonus in the loss.")
    vf_coef: float = field(0.5, "Weight of the value loss in the loss.")
    max_grad_norm: float | None = field(0.5, "Norm to which gradients are scaled down; none: no limit.")
    target_kl: float | None = field(
        None, "The update ends once 1.5 times this KL, in nats, is passed; none: never."
    )
    normalize_advantages: bool = field(
        True, "Whether each minibatch's advantages get mean 0 and deviation 1."
    )
    shared_trunk: bool = field(False, "Whether actor and critic share their encoder.")
    log_std_init: float = field(0.0, "First log standard deviation of continuous actions, in model space.")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps

    @model_validator(mode="after")
    def _every_minibatch_has_a_row(self) -> PPOConfig:
        if self.num_minibatches > self.steps_per_iteration:
            raise ValueError(
                f"num_minibatches must be at most num_envs * num_steps = {self.steps_per_iteration}"
            )
        return self


class PPOTrainer(Trainer):
    """Proximal Policy Optimization (Schulman et al. 2017), Algorithm 1."""

    config_class = PPOConfig
    config: PPOConfig
    agent: ActorCriticPolicy

    def __init__(self, config: PPOConfig) -> None:
        environments = make_environments(config, config.num_envs, config.seed, "train")
        super().__init__(config, environments.lanes.observation_space, environments.lanes.action_space)
        self.collector = Collector(environments, self.agent)
        self.optimizer = Adam([self.agent.network], epsilon=1e-5)
        self.reward_scaler = RewardScaler(config.num_envs) if config.normalize_rewards else None

    @classmethod
    def make_agent(
        cls, config: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> ActorCriticPolicy:
        return ActorCriticPolicy(
            observation_space,
            action_space,
            normalize_observations=config.normalize_observations,
            device=config.device,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            shared_trunk=config.shared_trunk,
            log_std_init=config.log_std_init,
        )

    def iterate(self, knobs: Knobs) -> Metrics:
        config, agent = self.config, self.agent
        # Run the old policy for T steps in B environments.
        rollout = self.collector.collect(agent, config.num_steps)
        metrics = Metrics(config.steps_per_iteration, self.collector.environments.take_finished())
        now = knobs.after(metrics.steps)

        # Compute advantage estimates A_1, ..., A_T.
        observations = rollout["obs"]
        terminated, truncated = rollout["terminated"], rollout["truncated"]
        if self.reward_scaler is not None:
            scaled = self.reward_scaler(
                rollout["reward"].numpy(), (terminated | truncated).numpy(), now.gamma
            )
            rollout["reward"] = torch.from_numpy(scaled)
        rollout |= gae(
            rollout["reward"],
            rollout["value"],
            rollout["next_value"],
            terminated,
            truncated,
            gamma=now.gamma,
            gae_lambda=now.gae_lambda,
        )
        metrics.add({"explained_variance": explained_variance(rollout["value"], rollout["return"])})

        # Optimise the surrogate, with K epochs and minibatches of size M ≤ T·B.
        batch = flatten_time(
            {name: rollout[name] for name in ("action", "log_prob", "value", "advantage", "return")}
        )
        batch = {name: column.to(agent.device) for name, column in batch.items()}
        batch["obs"] = agent.inputs(flatten_time(observations))
        for minibatch in minibatches(batch, now.update_epochs, config.num_minibatches):
            if config.normalize_advantages:
                minibatch["advantage"] = normalize_advantage(minibatch["advantage"])
            loss, parts = ppo_loss(
                *agent.evaluate(minibatch["obs"], minibatch["action"]),
                minibatch,
                clip_coef=now.clip_coef,
                ent_coef=now.ent_coef,
                vf_coef=now.vf_coef,
                value_clip_coef=now.value_clip_coef,
            )
            metrics.add(parts)
            if now.target_kl is not None and parts["approx_kl"] > 1.5 * now.target_kl:
                break  # the policy is far enough from the one that collected the data
            metrics.add(self.optimizer.step(loss, now.learning_rate, now.max_grad_norm))

        agent.observe(observations)
        return metrics

    def close(self) -> None:
        self.collector.environments.close()


def train_ppo(config: PPOConfig, **options: Any) -> Result:
    """Train PPO from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
