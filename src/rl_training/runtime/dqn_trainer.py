"""Deep Q-Networks: config, iteration, and `train_dqn`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rl_training.algorithms.dqn import q_loss, q_target
from rl_training.algorithms.masking import mask_logits
from rl_training.algorithms.sac import polyak
from rl_training.data.batch import TransitionBatch
from rl_training.data.replay import Replay
from rl_training.networks.encoders import Own
from rl_training.policies.q_values import QPolicy
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.off_policy import OffPolicyTrainer
from rl_training.runtime.optim import adam_of, target_of
from rl_training.runtime.q_updates import fastest_q_update
from rl_training.runtime.workflows import Result, train
from rl_training.settings.dqn import DQNConfig
from rl_training.trees import Arrays


class DQNTrainer(OffPolicyTrainer[DQNConfig]):
    """Deep Q-learning with experience replay (Mnih et al. 2015), Algorithm 1."""

    config_class = DQNConfig
    action_spaces = (spaces.Discrete,)
    agent: QPolicy
    replay: Replay[TransitionBatch]
    transient = ("target_weights", "q_update")
    revision = 2  # new transitions get the largest priority of the replay, not of the run

    def __init__(self, config: DQNConfig) -> None:
        super().__init__(config, n_step=config.n_step, prioritized=config.prioritized)
        self.target, self.target_weights = target_of(self.agent.network)
        self.optimizer = adam_of(config, self.agent.network)
        self.updates = 0
        self.q_update = fastest_q_update(self, q_target, q_loss)

    @classmethod
    def make_agent(
        cls, config: DQNConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> QPolicy:
        assert isinstance(action_space, spaces.Discrete)
        return QPolicy(
            observation_space,
            action_space,
            normalize_observations=config.normalize_observations,
            device=config.device,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            image_encoder=config.image_encoder,
            dueling=config.dueling,
            dueling_sizes=config.dueling_sizes,
            own=Own(config.network, config.encoder, config.layer_norm),
        )

    def explore(self, obs: Arrays, now: Now) -> np.ndarray:
        self.random_share(now)
        return super().explore(obs, now)

    def random_share(self, now: Now) -> float:
        self.agent.epsilon = now.epsilon
        return self.agent.epsilon

    def iterate(self, knobs: Knobs) -> Metrics:
        # With probability ε select a random action, otherwise the best; store the transitions.
        metrics = self.gather(knobs)
        now = knobs.after(metrics.steps)
        for _ in range(self.updates_due(now.replay_ratio)):
            metrics.add(self.update(now))
        return metrics

    def update(self, now: Now) -> dict[str, Any]:
        """One gradient step on one batch, and a step of the target network when it is due."""
        # Sample a random minibatch of transitions.
        batch = self.draw(now)
        # Perform a gradient descent step on the error.
        numbers, error = (self.q_update.taken() or self).improve(batch, now)
        if self.config.prioritized:
            self.replay.set_priorities(batch["index"], error, now.priority_exponent)
        # Every C updates the target network becomes the network.
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            polyak(self.target_weights, self.optimizer.parameters, now.tau)
        return numbers

    def improve(self, batch: TransitionBatch, now: Now) -> tuple[dict[str, float], np.ndarray]:
        """A step of the network towards its targets, and the errors [N]."""
        network = self.agent.network
        # y = r, or r + γ max Q̄(s', a') over the allowed actions where the episode goes on.
        with torch.no_grad():
            next_q = self.target(batch["next_obs"])
            chooser = network(batch["next_obs"]) if self.config.double else next_q
            allowed = mask_logits(chooser, batch["next_obs"])
            target = q_target(batch["reward"], batch["discount"], next_q, allowed)
        # Beyond huber_delta the slope of the error is clipped.
        q, backward = network.with_backward(batch["obs"])
        loss, slope, error = q_loss(q, batch["action"], target, batch.get("weight"), now.huber_delta)
        step = partial(backward, slope)
        numbers = self.optimizer.step(loss, now.learning_rate, now.max_grad_norm, step)
        return numbers | {"loss": loss.item(), "q_value": q.mean().item()}, error.cpu().numpy()

    def draw(self, now: Now) -> TransitionBatch:
        size = self.config.batch_size
        if not self.config.prioritized:
            return self.on_device(self.replay.sample(size, now.gamma))
        return self.on_device(self.replay.sample_by_priority(size, now.gamma, now.importance_exponent))


def train_dqn(config: DQNConfig, **options: Any) -> Result:
    """Train DQN from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
