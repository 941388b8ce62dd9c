"""The updates of soft actor-critics in compiled code: gradients of critics and actor, written out over dense layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.sac import (
    SAC_LOSSES,
    critic_slopes,
    least_slopes,
    squash_rows,
    squash_slopes,
    temperature_slope,
)
from rl_training.data.batch import TransitionBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.branches import Branches
from rl_training.kernels.layers import HEIGHT, Layers
from rl_training.kernels.reading import gaussian_layers, twin_layers
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS
from rl_training.policies.squashed import SquashedPolicy
from rl_training.runtime.controls import Now
from rl_training.runtime.optim import rate
from rl_training.runtime.updates import OWN_LOSS, Choice, is_ours

SAMPLE = SquashedPolicy.sample  # which compiled code stands in for


def fastest_soft_updates(trainer: Any, *losses: Any) -> Choice:
    """Compiled twins of a trainer's three steps, of critics, actor and temperature, where there can be some."""
    home = "rl_training.runtime.sac_trainer"
    methods = ("improve_critics", "improve_actor", "adjust_temperature")
    ours = all(is_ours(trainer, name, home) for name in methods) and type(trainer.agent).sample is SAMPLE
    own = "" if losses == SAC_LOSSES and ours else OWN_LOSS
    optimizers = ("critic_optimizer", "actor_optimizer", "temperature_optimizer")
    networks = nn.ModuleList([trainer.agent.actor, trainer.critics, trainer.target_critics])
    return Choice(own, trainer, optimizers, networks, lambda _: SoftUpdates.of(trainer))


class SoftUpdates:
    """What a trainer does to its critics and its actor, compiled; its optimizers move."""

    def __init__(self, trainer: Any, actor: Layers, critics: Layers, targets: Layers) -> None:
        self.trainer, self.actor, self.critics, self.targets = trainer, actor, critics, targets
        self.branches = Branches(critics)
        self.size, self.sums = actor.outputs // 2, np.zeros(2)
        self.action = np.zeros((HEIGHT, self.size), np.float32)
        self.log_prob = np.zeros(HEIGHT, np.float32)

    @classmethod
    def of(cls, trainer: Any) -> SoftUpdates | None:
        actor = gaussian_layers(trainer.agent.actor, trainer.actor_optimizer.parameters)
        critics = twin_layers(trainer.critics, trainer.critic_optimizer.parameters)
        targets = twin_layers(trainer.target_critics, trainer.target_weights)
        if actor is None or critics is None or targets is None:
            return None
        return cls(trainer, actor, critics, targets)

    def improve_critics(self, batch: TransitionBatch, ent_coef: float, now: Now) -> dict[str, float]:
        next_obs, obs = self._features(batch["next_obs"]), self._features(batch["obs"])
        action, noise = batch["action"].numpy(), self._noise(len(obs))
        reward, discount = batch["reward"].numpy(), batch["discount"].numpy()
        # One network after the other, so that its weights stay in the cache.
        next_q, log_prob = self._ahead(next_obs, noise)
        self._begin(self.critics)
        for rows in _blocks(len(obs)):
            q = self._forward(self.critics, np.concatenate([obs[rows], action[rows]], 1))
            slopes = self.critics.slopes[: len(q)]
            shares = (ent_coef, 1 / len(obs), slopes, self.sums)
            critic_slopes((reward[rows], discount[rows]), next_q[rows], log_prob[rows], q, *shares)
            self.critics.backward(slopes)
        self._step(self.critics, self.trainer.critic_optimizer, rate(now, "critic"))
        return {"critic_loss": self.sums[0], "q_value": self.sums[1]}

    def _ahead(self, next_obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Q [N, 2] of the target critics for actions of the policy, and log π [N]."""
        count = len(next_obs)
        pairs = np.empty((count, self.targets.inputs), np.float32)
        next_q, log_probs = np.empty((count, 2), np.float32), np.empty(count, np.float32)
        pairs[:, : -self.size] = next_obs
        self.actor.pack_forward()
        for rows in _blocks(count):
            pairs[rows, -self.size :], log_probs[rows], _ = self._draw(next_obs[rows], noise[rows])
        self.targets.pack_forward()
        for rows in _blocks(count):
            next_q[rows] = self._forward(self.targets, pairs[rows])
        return next_q, log_probs

    def improve_actor(
        self, batch: TransitionBatch, ent_coef: float, now: Now
    ) -> tuple[dict[str, float], Tensor]:
        obs = self._features(batch["obs"])
        noise, share = self._noise(len(obs)), 1 / len(obs)
        self._begin(self.actor)
        self.critics.pack(learns=False)
        for rows in _blocks(len(obs)):
            drawn, log_prob, outputs = self._draw(obs[rows], noise[rows])
            q = self._forward(self.critics, np.concatenate([obs[rows], drawn], 1))
            to_q, slopes = self.critics.slopes[: len(q)], self.actor.slopes[: len(q)]
            least_slopes(q, log_prob, ent_coef, share, to_q, self.sums)
            to_action = self.branches.to_inputs(to_q)[:, -self.size :]
            squash_slopes(outputs, noise[rows], LOG_STD_BOUNDS, drawn, to_action, ent_coef * share, slopes)
            self.actor.backward(slopes)
        self._step(self.actor, self.trainer.actor_optimizer, rate(now, "actor"))
        mean = self.sums[1]
        return {"actor_loss": self.sums[0], "entropy": -mean}, torch.tensor(mean, dtype=torch.float32)

    def adjust_temperature(self, log_prob: Tensor, now: Now) -> None:
        optimizer = self.trainer.temperature_optimizer
        if optimizer is not None:
            optimizer.gradient[0] = temperature_slope(log_prob.item(), self.trainer.least_entropy(now))
            optimizer.descend(rate(now, "ent_coef"), math.inf)

    def _features(self, obs: Any) -> np.ndarray:
        with torch.no_grad():
            return np.ascontiguousarray(self.trainer.critics.inputs(obs).numpy())

    def _noise(self, count: int) -> np.ndarray:
        return torch.randn(count, self.size).numpy()

    def _begin(self, learner: Layers) -> None:
        self.sums[:] = 0
        learner.pack()

    def _forward(self, layers: Layers, inputs: np.ndarray) -> np.ndarray:
        return layers.forward(inputs, np.arange(len(inputs)))

    def _draw(self, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions, their log-densities, and what the actor put out."""
        outputs = self._forward(self.actor, obs)
        action, log_prob = self.action[: len(obs)], self.log_prob[: len(obs)]
        squash_rows(outputs, noise, LOG_STD_BOUNDS, action, log_prob)
        return action, log_prob, outputs

    def _step(self, layers: Layers, optimizer: Any, learning_rate: float) -> None:
        if not math.isfinite(self.sums[0]):
            raise NonFiniteError("loss")
        layers.unpack(optimizer.gradient.numpy())
        optimizer.descend(learning_rate, math.inf)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + HEIGHT) for start in range(0, count, HEIGHT))
