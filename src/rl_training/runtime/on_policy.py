"""Base of the on-policy family: from the environments to a flat batch with advantages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from gymnasium import spaces

from rl_training.algorithms.returns import Estimates, explained_variance, gae
from rl_training.data.batch import Rollout, RolloutBatch, flatten_time
from rl_training.data.collector import Collector
from rl_training.data.normalization import RewardScaler
from rl_training.envs.environments import Arguments, Environments
from rl_training.envs.making import make_environments
from rl_training.envs.spaces import ACTIONS, JOINT
from rl_training.networks.encoders import Own, laid_out
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.runtime.controls import Now
from rl_training.runtime.metrics import Metrics, returns_by_agent
from rl_training.runtime.trainer import EVALUATIONS, PYTHON, ROLLOUTS, Trainer
from rl_training.runtime.updates import COMPILED
from rl_training.settings.bc import BCConfig
from rl_training.settings.families import ActorLearnerConfig, OnPolicyConfig
from rl_training.trees import tree_map


def policy_settings(config: OnPolicyConfig | ActorLearnerConfig | BCConfig) -> dict[str, Any]:
    """What an actor-critic policy is built from, besides the spaces."""
    network = (
        "activation",
        "image_encoder",
        "shared_trunk",
        "log_std_init",
        "state_dependent_std",
        "squash_actions",
    )
    names = (*network, "critic_sizes", "hidden_sizes", "normalize_observations", "device", "precision")
    settings = {name: getattr(config, name) for name in names}
    actor_sizes, *own = (
        getattr(config, name) for name in ("actor_sizes", "network", "encoder", "layer_norm")
    )
    if settings["critic_sizes"] is None:
        settings["critic_sizes"] = settings["hidden_sizes"]
    if actor_sizes is not None:
        settings["hidden_sizes"] = actor_sizes
    return settings | {"own": Own(*own)}


OnPolicyT = TypeVar("OnPolicyT", bound=OnPolicyConfig)


class OnPolicyTrainer(Trainer[OnPolicyT]):
    """An actor-critic and its rollouts; what is learned from them is the algorithm's own `iterate`."""

    agent: ActorCriticPolicy
    action_spaces = (*ACTIONS, *JOINT)
    experience = ("collect", "time_batch")
    policy_class: ClassVar[type[ActorCriticPolicy]] = ActorCriticPolicy

    def __init__(self, config: OnPolicyT) -> None:
        environments = make_environments(config, config.num_envs, config.seed, "train")
        super().__init__(config, environments.lanes.observation_space, environments.lanes.action_space)
        self.collector = Collector(environments, self.agent)
        self.reward_scaler = RewardScaler(config.num_envs) if config.normalize_rewards else None

    @classmethod
    def make_agent(
        cls, config: OnPolicyT, observation_space: spaces.Space, action_space: spaces.Space
    ) -> ActorCriticPolicy:
        return cls.policy_class(observation_space, action_space, **cls.network_settings(config))

    @classmethod
    def network_settings(cls, config: OnPolicyT) -> dict[str, Any]:
        """What the policy and its network are built from, besides the spaces."""
        return policy_settings(config)

    def paths(self) -> dict[str, str]:
        whole = self.collector.whole
        rollouts = COMPILED if whole is not None and whole.is_ready else PYTHON
        evaluations = PYTHON if EVALUATIONS in self.as_begun else rollouts
        return super().paths() | {ROLLOUTS: rollouts, EVALUATIONS: evaluations}

    def keep_to(self, paths: Mapping[str, str]) -> None:
        super().keep_to(paths)
        if paths.get(ROLLOUTS) != COMPILED:
            self.collector.whole = None

    def collect(self) -> tuple[Rollout, Metrics]:
        """A rollout [T, B] of the current policy, and the iteration's metrics with the episodes that ended."""
        began = time.perf_counter()
        rollout = self.collector.collect(self.agent, self.config.num_steps)
        environments = self.collector.environments
        metrics = Metrics(self.config.steps_per_iteration, environments.take_finished(), began)
        metrics.add(returns_by_agent(environments.agents, metrics.episodes))
        return rollout, metrics

    def estimate_advantages(self, rollout: Rollout, now: Now, metrics: Metrics) -> Estimates:
        """`advantage` and `return` [T, B] of a rollout, from scaled rewards if they are to be scaled."""
        reward, value = rollout["reward"], rollout["value"]
        terminated, truncated = rollout["terminated"], rollout["truncated"]
        if self.reward_scaler is not None:
            scaled = self.reward_scaler(reward.numpy(), (terminated | truncated).numpy(), now.gamma)
            reward = torch.from_numpy(scaled)
        ends = (terminated, truncated)
        estimates = gae(reward, value, rollout["next_value"], *ends, now.gamma, now.gae_lambda)
        metrics.add({"explained_variance": explained_variance(value, estimates["return"])})
        return estimates

    def time_batch(self, rollout: Rollout, estimates: Estimates) -> RolloutBatch:
        """What losses are made from, [T, B, ...] on the agent's device; `obs` normalised already."""
        device = self.agent.device
        return {
            "obs": self.agent.inputs(rollout["obs"]),
            "action": rollout["action"].to(device),
            "log_prob": rollout["log_prob"].to(device),
            "value": rollout["value"].to(device),
            "advantage": estimates["advantage"].to(device),
            "return": estimates["return"].to(device),
        }

    def flat_batch(self, rollout: Rollout, estimates: Estimates) -> RolloutBatch:
        """The same as rows [T·B, ...]."""
        batch = flatten_time(self.time_batch(rollout, estimates))
        return {**batch, "obs": tree_map(laid_out, batch["obs"])}

    def largest_reward(self) -> float | None:
        reward = self.collector.columns.get("reward")
        return None if reward is None else float(abs(reward).max())

    def begin_with(self, arguments: Arguments) -> None:
        environments = self.collector.environments
        assert isinstance(environments, Environments)  # compiled ones refuse arguments that move
        environments.begin_with(arguments)

    def close(self) -> None:
        self.collector.environments.close()
