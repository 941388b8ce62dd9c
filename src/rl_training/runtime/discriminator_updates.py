"""The update of a discriminator in compiled code: its logits, and a penalty on their slopes, over dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.gail import GAIL_LOSSES, discriminator_slopes, penalty_slopes, row_weights
from rl_training.errors import NonFiniteError
from rl_training.kernels.exact import is_ours
from rl_training.kernels.layers import HEIGHT, Layers
from rl_training.kernels.penalties import Penalty
from rl_training.kernels.reading import discriminator_layers
from rl_training.runtime.controls import Now
from rl_training.runtime.updates import OWN_LOSS, Choice


def fastest_judgement(trainer: Any, *losses: Any) -> Choice:
    """A compiled twin of a trainer's `judge`, where there can be one."""
    own = "" if losses == GAIL_LOSSES else OWN_LOSS
    return Choice(
        own,
        trainer,
        ("discriminator_optimizer",),
        trainer.discriminator,
        lambda _: Judgement.of(trainer),
        replaced=lambda: not is_ours(trainer, "rl_training.runtime.gail_trainer", "judge"),
    )


class Judgement:
    """What a trainer does to its discriminator, compiled; its optimizer moves."""

    def __init__(self, trainer: Any, layers: Layers) -> None:
        self.trainer, self.layers, self.penalty = trainer, layers, Penalty(layers)
        self.along, self.sums = np.zeros((HEIGHT, layers.inputs), np.float32), np.zeros(2)

    @classmethod
    def of(cls, trainer: Any) -> Judgement | None:
        parameters = trainer.discriminator_optimizer.parameters
        layers = discriminator_layers(trainer.discriminator, parameters)
        return None if layers is None else cls(trainer, layers)

    def judge(
        self, rows: Tensor, expert_share: float, agent_share: float, now: Now
    ) -> tuple[Tensor, dict[str, float]]:
        self.sums[:] = 0
        self.layers.pack()
        weights = row_weights(len(rows), expert_share, agent_share).numpy()
        logits = self._add_loss(torch.cat([rows, self.trainer.discriminator.absorbing()]).numpy(), weights)
        numbers = {}
        if now.gradient_penalty_coef:
            self._add_penalty(np.ascontiguousarray(self.trainer.penalized(rows).numpy()), now)
            numbers["gradient_penalty"] = self.sums[1].item()
        if not math.isfinite(self.sums[0]):
            raise NonFiniteError("loss")
        optimizer = self.trainer.discriminator_optimizer
        self.layers.unpack(optimizer.gradient.numpy())
        optimizer.descend(now.discriminator_learning_rate, math.inf)
        return torch.from_numpy(logits[:-1]), numbers

    def _add_loss(self, inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Add up the loss and its gradient; the logits [N]."""
        logits, order = np.empty(len(inputs), np.float32), np.arange(len(inputs))
        for start in range(0, len(inputs), HEIGHT):
            part = slice(start, start + HEIGHT)
            outputs = self.layers.forward(inputs, order[part])
            logits[part], slopes = outputs[:, 0], self.layers.slopes[: len(outputs)]
            discriminator_slopes(outputs, weights[part], slopes, self.sums)
            self.layers.backward(slopes)
        return logits

    def _add_penalty(self, inputs: np.ndarray, now: Now) -> None:
        """Add up the penalty at these inputs and its gradient."""
        order, target, share = np.arange(len(inputs)), float(self.trainer.between), 1 / len(inputs)
        for start in range(0, len(inputs), HEIGHT):
            slopes = self.penalty.slopes(inputs, order[start : start + HEIGHT])
            along = self.along[: len(slopes)]
            penalty_slopes(slopes, target, now.gradient_penalty_coef, share, along, self.sums)
            self.penalty.add(along)
