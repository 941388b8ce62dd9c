"""The update of a Q-network in compiled code: targets, slopes and gradients over dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import nn

from rl_training.algorithms.dqn import DQN_LOSSES, dueling_rows, dueling_slopes, q_slopes
from rl_training.algorithms.masking import mask_of
from rl_training.data.batch import TransitionBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.families import UNMASKED
from rl_training.kernels.layers import HEIGHT, Layers
from rl_training.kernels.reading import features, head_layers
from rl_training.networks.q_network import QNetwork
from rl_training.runtime.controls import Now
from rl_training.runtime.updates import OWN_LOSS, Choice, is_ours, limit


def fastest_q_update(trainer: Any, *losses: Any) -> Choice:
    """A compiled twin of a trainer's `improve`, where there can be one."""
    ours = is_ours(trainer, "improve", "rl_training.runtime.dqn_trainer")
    own = "" if losses == DQN_LOSSES and ours else OWN_LOSS
    networks = nn.ModuleList([trainer.agent.network, trainer.target])
    return Choice(own, trainer, ("optimizer",), networks, lambda _: QUpdate.of(trainer))


class QUpdate:
    """What a trainer does to its Q-network, compiled; its optimizer moves."""

    def __init__(self, trainer: Any, online: Layers, target: Layers) -> None:
        self.trainer, self.online, self.target, self.sums = trainer, online, target, np.zeros(2)
        self.dueling = trainer.agent.network.dueling
        self.double, size = trainer.config.double, (HEIGHT, online.outputs - self.dueling)
        self.q, self.next_q, self.chooser, self.slopes = (np.zeros(size, np.float32) for _ in range(4))

    @classmethod
    def of(cls, trainer: Any) -> QUpdate | None:
        online = head_layers(trainer.agent.network, QNetwork, trainer.optimizer.parameters)
        target = head_layers(trainer.target, QNetwork, trainer.target_weights)
        return None if online is None or target is None else cls(trainer, online, target)

    def improve(self, batch: TransitionBatch, now: Now) -> tuple[dict[str, float], np.ndarray]:
        obs, next_obs, mask = (
            self._features(batch["obs"]),
            self._features(batch["next_obs"]),
            mask_of(batch["next_obs"]),
        )
        count = len(obs)
        masks = UNMASKED if mask is None else np.ascontiguousarray(mask.numpy() != 0)
        weight = batch["weight"].numpy() if "weight" in batch else np.ones(count, np.float32)
        columns = (*(batch[name].numpy() for name in ("action", "reward", "discount")), weight)
        errors, order = np.empty(count, np.float32), np.arange(count)
        delta = limit(now.huber_delta)
        self.sums[:] = 0
        self.online.pack()
        self.target.pack(learns=False)
        for start in range(0, count, HEIGHT):
            rows = order[start : start + HEIGHT]
            part = slice(start, start + HEIGHT)
            next_q = self._values(self.target, next_obs, rows, self.next_q)
            chooser = self._values(self.online, next_obs, rows, self.chooser) if self.double else next_q
            q, slopes = self._values(self.online, obs, rows, self.q), self.slopes[: len(rows)]
            known = tuple(column[part] for column in columns)
            q_slopes(
                known, next_q, chooser, masks[part], q, 1 / count, delta, slopes, errors[part], self.sums
            )
            self._backward(slopes)
        return self._step(now) | {"loss": self.sums[0].item(), "q_value": self.sums[1].item()}, errors

    def _features(self, obs: Any) -> np.ndarray:
        return features(self.trainer.agent.network.encoder[0], obs)

    def _values(self, layers: Layers, inputs: np.ndarray, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Q of some rows, in an array that the next pass does not write over."""
        output, values = layers.forward(inputs, rows), out[: len(rows)]
        if self.dueling:
            dueling_rows(output, values)
        else:
            values[:] = output
        return values

    def _backward(self, slopes: np.ndarray) -> None:
        if self.dueling:
            streams = self.online.slopes[: len(slopes)]
            dueling_slopes(slopes, streams)
            slopes = streams
        self.online.backward(slopes)

    def _step(self, now: Now) -> dict[str, float]:
        if not math.isfinite(self.sums[0]):
            raise NonFiniteError("loss")
        optimizer = self.trainer.optimizer
        self.online.unpack(optimizer.gradient.numpy())
        return {"grad_norm": optimizer.descend(now.learning_rate, limit(now.max_grad_norm))}
