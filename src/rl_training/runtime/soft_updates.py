"""The updates of soft actor-critics in compiled code: gradients of critics and actor, written out over dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.sac import (
    SAC_LOSSES,
    critic_slopes,
    critic_sums,
    least_slopes,
    soft_targets,
    squash_rows,
    squash_slopes,
    temperature_slope,
)
from rl_training.compiling import njit
from rl_training.data.batch import TransitionBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.branches import add_to_inputs
from rl_training.kernels.descent import Descent, descend
from rl_training.kernels.layers import HEIGHT, Layers, Network, begin, hand_over, put_out, read, take_back
from rl_training.kernels.reading import features, gaussian_layers, twin_layers
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS
from rl_training.policies.squashed import SquashedPolicy
from rl_training.runtime.controls import Now
from rl_training.runtime.optim import Optimizer, rate
from rl_training.runtime.updates import OWN_LOSS, Choice, is_ours

Twins = tuple[Layers, Layers]
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

    def __init__(self, trainer: Any, actor: Layers, critics: Twins, targets: Twins) -> None:
        self.trainer, self.size, self.sums = trainer, actor.outputs // 2, np.zeros(2)
        # As plain tuples: of each named one, numba asks Python for its class.
        self.actor = tuple(actor.network)
        self.critics, self.targets = (
            tuple(tuple(twin.network) for twin in twins) for twins in (critics, targets)
        )
        self.steps = {
            name: getattr(trainer, f"{name}_optimizer").descent()
            for name in ("critic", "actor", "temperature")
            if getattr(trainer, f"{name}_optimizer") is not None
        }

    @classmethod
    def of(cls, trainer: Any) -> SoftUpdates | None:
        actor = gaussian_layers(trainer.agent.actor, trainer.actor_optimizer.parameters)
        critics = twin_layers(trainer.critics, trainer.critic_optimizer.parameters)
        targets = twin_layers(trainer.target_critics, trainer.target_weights)
        if actor is None or critics is None or targets is None:
            return None
        return cls(trainer, actor, critics, targets)

    def improve_critics(self, batch: TransitionBatch, ent_coef: float, now: Now) -> dict[str, float]:
        columns = (batch[name].numpy() for name in ("action", "reward", "discount"))
        rows = (self._features(batch["obs"]), self._features(batch["next_obs"]), *columns)
        networks, noise = (self.actor, self.targets, self.critics), self._noise(len(rows[0]))
        step = (tuple(self.steps["critic"]), rate(now, "critic"))
        norm = improve_critics(networks, rows, noise, LOG_STD_BOUNDS, ent_coef, *step, self.sums)
        self._check(norm, self.trainer.critic_optimizer)
        return {"critic_loss": self.sums[0], "q_value": self.sums[1]}

    def improve_actor(
        self, batch: TransitionBatch, ent_coef: float, now: Now
    ) -> tuple[dict[str, float], np.float32]:
        obs = self._features(batch["obs"])
        networks, noise = (self.actor, self.critics), self._noise(len(obs))
        step = (tuple(self.steps["actor"]), rate(now, "actor"))
        norm = improve_actor(networks, obs, noise, LOG_STD_BOUNDS, ent_coef, *step, self.sums)
        self._check(norm, self.trainer.actor_optimizer)
        loss, mean = self.sums
        return {"actor_loss": loss, "entropy": -mean}, np.float32(mean)

    def adjust_temperature(self, log_prob: np.float32, now: Now) -> None:
        optimizer = self.trainer.temperature_optimizer
        if optimizer is not None:
            step = self.steps["temperature"]
            step.gradient[0] = temperature_slope(float(log_prob), self.trainer.least_entropy(now))
            norm = type(optimizer).compiled_step(*step[1:], rate(now, "ent_coef"), math.inf)
            self._check(norm, optimizer)

    def _features(self, obs: Any) -> np.ndarray:
        return features(self.trainer.critics.inputs, obs)

    def _noise(self, count: int) -> np.ndarray:
        return torch.randn(count, self.size).numpy()

    def _check(self, norm: float, optimizer: Optimizer) -> None:
        """Refuse what is not finite: no step was taken."""
        if not math.isfinite(self.sums[0]):
            raise NonFiniteError("loss")
        if not math.isfinite(norm):
            raise NonFiniteError(optimizer.first_not_finite())


@njit(nogil=True, inline="always")
def twins_of(networks):  # type: ignore[no-untyped-def]
    return Network(*networks[0]), Network(*networks[1])


@njit(nogil=True, error_model="numpy")
def improve_critics(networks, batch, noise, bounds, ent_coef, descent, rate, sums):  # type: ignore[no-untyped-def]
    """A step of both critics towards `soft_targets`; sums: the loss, mean Q. → the gradient's norm.

    networks, descent: the fields of some `Network` and of a `Descent`
    One network after the other, so that its weights stay in the cache.
    """
    actor, targets, critics = Network(*networks[0]), twins_of(networks[1]), twins_of(networks[2])
    descent = Descent(*descent)
    obs, next_obs, action, reward, discount = batch
    count, features = obs.shape
    order, share = np.arange(count), 1 / count
    pairs, log_prob = np.empty((count, features + noise.shape[1]), np.float32), np.empty(count, np.float32)
    q = np.empty((2, count), np.float32)
    read(actor)
    for first in range(0, count, HEIGHT):
        rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
        outputs = put_out(actor, next_obs, rows)
        squash_rows(outputs, noise[part], bounds, pairs[part, features:], log_prob[part])
    pairs[:, :features] = next_obs
    for twin in range(2):
        read(targets[twin])
        for first in range(0, count, HEIGHT):
            rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
            q[twin, part] = put_out(targets[twin], pairs, rows)[:, 0]
    target = soft_targets(reward, discount, q, log_prob, ent_coef)
    pairs[:, :features], pairs[:, features:] = obs, action
    for twin in range(2):
        critic = critics[twin]
        begin(critic, True)
        for first in range(0, count, HEIGHT):
            rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
            outputs, slopes = put_out(critic, pairs, rows), critic.slopes[: len(rows)]
            q[twin, part] = outputs[:, 0]
            critic_slopes(outputs, target[part], share, slopes)
            take_back(critic, slopes)
        hand_over(critic, descent.gradient)
    sums[:] = 0
    critic_sums(q, target, sums)
    return descend(descent, rate, math.inf) if math.isfinite(sums[0]) else math.inf


@njit(nogil=True, error_model="numpy")
def improve_actor(networks, obs, noise, bounds, ent_coef, descent, rate, sums):  # type: ignore[no-untyped-def]
    """A step of the actor towards what the critics think best; sums: the loss, mean log π. → the gradient's norm."""
    actor, critics, descent = Network(*networks[0]), twins_of(networks[1]), Descent(*descent)
    count, features = obs.shape
    size, order, share = noise.shape[1], np.arange(count), 1 / count
    pairs, log_prob = np.empty((count, features + size), np.float32), np.empty(HEIGHT, np.float32)
    q, to_q = np.empty((2, HEIGHT), np.float32), np.empty((2, HEIGHT), np.float32)
    to_pair = np.empty((HEIGHT, features + size), np.float32)
    pairs[:, :features] = obs
    sums[:] = 0
    begin(actor, True)
    for twin in range(2):
        begin(critics[twin], False)
    for first in range(0, count, HEIGHT):
        rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
        height, drawn = len(rows), pairs[part, features:]
        outputs, slopes = put_out(actor, obs, rows), actor.slopes[: len(rows)]
        squash_rows(outputs, noise[part], bounds, drawn, log_prob)
        for twin in range(2):
            q[twin, :height] = put_out(critics[twin], pairs, rows)[:, 0]
        least_slopes(q, log_prob[:height], ent_coef, share, to_q, sums)
        to_pair[:] = 0
        for twin in range(2):
            add_to_inputs(critics[twin], to_q[twin, :height], to_pair)
        to_action = to_pair[:height, features:]
        squash_slopes(outputs, noise[part], bounds, drawn, to_action, ent_coef * share, slopes)
        take_back(actor, slopes)
    hand_over(actor, descent.gradient)
    return descend(descent, rate, math.inf) if math.isfinite(sums[0]) else math.inf
