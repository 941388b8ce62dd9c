"""Soft Actor-Critic: its config, its iteration, and `train_sac`."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.sac import actor_loss, critic_loss, polyak, soft_target, temperature_loss
from rl_training.data.batch import TransitionBatch
from rl_training.data.replay import Replay
from rl_training.envs.spaces import refuse_unbounded
from rl_training.networks.encoders import Own
from rl_training.networks.soft_actor_critic import make_critics
from rl_training.policies.squashed import SquashedPolicy
from rl_training.runtime.controls import AUTO, Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.off_policy import OffPolicyTrainer
from rl_training.runtime.optim import adam_of, rate, target_of
from rl_training.runtime.soft_updates import fastest_soft_updates
from rl_training.runtime.workflows import Result, train
from rl_training.settings.sac import SACConfig


class Temperature(nn.Module):
    """log α, from a start value of α on."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.log_ent_coef = nn.Parameter(torch.tensor(math.log(start)))

    def value(self) -> float:
        """α."""
        return self.log_ent_coef.detach().exp().item()


class SACTrainer(OffPolicyTrainer[SACConfig]):
    """Soft Actor-Critic with a learned temperature (Haarnoja et al. 2018b), Algorithm 1."""

    config_class = SACConfig
    action_spaces = (spaces.Box,)
    agent: SquashedPolicy
    replay: Replay[TransitionBatch]
    transient = ("target_weights", "soft_updates")

    def __init__(self, config: SACConfig) -> None:
        super().__init__(config, n_step=config.n_step)
        layers = _layers(config, config.critic_sizes)
        self.critics = make_critics(self.observation_space, self._num_dimensions(), **layers)
        self.critics.to(self.agent.device)
        self.target_critics, self.target_weights = target_of(self.critics)
        learned = config.ent_coef == AUTO
        self.temperature = Temperature(config.ent_coef_init).to(self.agent.device) if learned else None
        self.actor_optimizer = adam_of(config, self.agent.actor)
        self.critic_optimizer = adam_of(config, self.critics)
        self.temperature_optimizer = (
            adam_of(config, self.temperature) if self.temperature is not None else None
        )
        self.soft_updates = fastest_soft_updates(self, soft_target, critic_loss, actor_loss, temperature_loss)

    @classmethod
    def make_agent(
        cls, config: SACConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> SquashedPolicy:
        assert isinstance(action_space, spaces.Box)
        refuse_unbounded(action_space, config.env_id, "SAC")
        return SquashedPolicy(
            observation_space,
            action_space,
            normalize_observations=config.normalize_observations,
            device=config.device,
            **_layers(config, config.actor_sizes),
        )

    def iterate(self, knobs: Knobs) -> Metrics:
        # Sample actions from the policy, step the environments, and store the transitions.
        metrics = self.gather(knobs)
        now = knobs.after(metrics.steps)
        # Then as many gradient steps as these steps pay for.
        for _ in range(self.updates_due(now.replay_ratio)):
            metrics.add(self.update(now))
        if self.temperature is not None:
            metrics.stand({"ent_coef": self.temperature.value()})
        return metrics

    def update(self, now: Now) -> dict[str, Any]:
        """One gradient step of the critics and, every `policy_delay` of them, of the actor and the temperature."""
        batch = self.on_device(self.replay.sample(self.config.batch_size, now.gamma))
        ent_coef = now.ent_coef if self.temperature is None else self.temperature.value()
        delay = self.config.policy_delay
        # Not every optimizer counts its steps.
        with_actor = delay == 1 or (int(self.critic_optimizer.count) + 1) % delay == 0
        return (self.soft_updates.taken() or self).improve(batch, ent_coef, with_actor, now)

    def improve(self, batch: TransitionBatch, ent_coef: float, with_actor: bool, now: Now) -> dict[str, Any]:
        """Steps on a batch, one after the other."""
        # Update the Q-functions, then the policy.
        numbers = self.improve_critics(batch, ent_coef, now)
        if with_actor:
            about_actor, log_prob = self.improve_actor(batch, ent_coef, now)
            numbers = numbers | about_actor
            self.adjust_temperature(log_prob, now)
        # Update the target networks.
        polyak(self.target_weights, self.critic_optimizer.parameters, now.tau)
        return numbers

    def adjust_temperature(self, log_prob: Tensor, now: Now) -> None:
        """A step of α towards the target entropy, where it is learned."""
        if self.temperature is None or self.temperature_optimizer is None:
            return
        loss = temperature_loss(self.temperature.log_ent_coef, log_prob, self.least_entropy(now))
        self.temperature_optimizer.step(loss, rate(now, "ent_coef"), None)

    def least_entropy(self, now: Now) -> float:
        """H̄, which α holds the policy's entropy at."""
        return -self._num_dimensions() if now.target_entropy is None else now.target_entropy

    def improve_critics(self, batch: TransitionBatch, ent_coef: float, now: Now) -> dict[str, Any]:
        """A step of the Q-functions towards the soft target."""
        with torch.no_grad():
            next_action, next_log_prob = self.agent.sample(batch["next_obs"])
            next_q = self.target_critics(batch["next_obs"], next_action)
            target = soft_target(batch["reward"], batch["discount"], next_q, next_log_prob, ent_coef)
        q = self.critics(batch["obs"], batch["action"])
        loss = critic_loss(q, target)
        self.critic_optimizer.step(loss, rate(now, "critic"), None)
        return {"critic_loss": loss.detach(), "q_value": q.detach().mean()}

    def improve_actor(
        self, batch: TransitionBatch, ent_coef: float, now: Now
    ) -> tuple[dict[str, Any], Tensor]:
        """A step of the policy, and log π; the critics only pass the gradient on to the action."""
        action, log_prob = self.agent.sample(batch["obs"])
        loss = actor_loss(self.critics(batch["obs"], action, frozen=True), log_prob, ent_coef)
        self.actor_optimizer.step(loss, rate(now, "actor"), None)
        log_prob = log_prob.detach()
        return {"actor_loss": loss.detach(), "entropy": -log_prob.mean()}, log_prob

    def _num_dimensions(self) -> int:
        assert isinstance(self.action_space, spaces.Box)
        return math.prod(self.action_space.shape)


def _layers(config: SACConfig, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    return {
        "hidden_sizes": config.hidden_sizes if sizes is None else sizes,
        "activation": config.activation,
        "image_encoder": config.image_encoder,
        "own": Own(config.network, config.encoder, config.layer_norm),
    }


def train_sac(config: SACConfig, **options: Any) -> Result:
    """Train SAC from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
