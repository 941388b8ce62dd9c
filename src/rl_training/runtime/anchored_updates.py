"""Compiled updates of a loss with KL(old ‖ π) in it: of a policy that an older one holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.masking import mask_of
from rl_training.algorithms.slopes import Loss, Slopes, gather
from rl_training.errors import NonFiniteError
from rl_training.kernels.divergences import divergence_slopes, measure_divergence, normalize_anchors
from rl_training.kernels.families import (
    ACTION,
    FAMILIES,
    SIZE,
    UNMASKED,
    action_slopes,
    evaluate_actions,
    family_table,
)
from rl_training.kernels.layers import HEIGHT, Layers
from rl_training.kernels.reading import actor_critic_layers
from rl_training.runtime.controls import Now
from rl_training.runtime.optim import Optimizer
from rl_training.runtime.updates import OWN_LOSS, Choice, Far, is_ours, limit


class AnchoredRows(NamedTuple):
    """Rows of a batch, as compiled code reads them."""

    inputs: np.ndarray  # [N, features]
    actions: np.ndarray  # [N, K] float32
    masks: np.ndarray  # [N, P], or empty
    anchors: np.ndarray  # [N, P], of the older policy: log-probabilities, logits of coins, or means and log σ
    columns: np.ndarray  # [N, C] of the loss
    rows: np.ndarray  # [n] which of them


class AnchoredUpdate:
    """By compiled passes over blocks of rows, for an actor-critic of dense layers; the optimizer moves."""

    def __init__(
        self, of: Slopes, layers: Layers, family: np.ndarray, encode: nn.Module, optimizer: Optimizer
    ) -> None:
        self.of, self.layers, self.family, self.encode, self.optimizer = of, layers, family, encode, optimizer
        self.said, self.known = (np.zeros((HEIGHT, 4), np.float32) for _ in range(2))
        self.gradient, self.sums = optimizer.gradient.numpy(), np.zeros(1 + len(of.numbers))

    def anchors(self, obs: Any) -> Tensor:
        """The parameters [N, P] of the policy as it is now, from which its KL is exactly 0."""
        with torch.no_grad():
            inputs = np.ascontiguousarray(self.encode(obs).numpy())
        masks, every = _masks(obs), np.arange(len(inputs))
        actions, found = (
            self._actions(None, len(inputs)),
            np.empty((len(inputs), self.layers.outputs - 1), np.float32),
        )
        self.layers.pack()
        for start in range(0, len(inputs), HEIGHT):
            block = every[start : start + HEIGHT]
            outputs = self.layers.forward(inputs, block)
            evaluate_actions(self.family, outputs, actions, masks, block, self.said[: len(block)])
            found[start : start + HEIGHT] = outputs[:, :-1]
        return torch.from_numpy(found)

    def rows(self, batch: Mapping[str, Any]) -> AnchoredRows:
        """Of `obs`, the older policy's `parameters`, the columns of the loss and, if it is about any, `action`."""
        with torch.no_grad():
            inputs = np.ascontiguousarray(self.encode(batch["obs"]).numpy())
        count = len(inputs)
        return AnchoredRows(
            inputs,
            self._actions(batch.get("action"), count),
            _masks(batch["obs"]),
            np.ascontiguousarray(batch["parameters"].numpy()),
            np.stack([batch[name].numpy() for name in self.of.columns], 1),
            np.arange(count),
        )

    def _actions(self, action: Tensor | None, count: int) -> np.ndarray:
        if action is not None:
            return np.ascontiguousarray(action.numpy().reshape(count, -1), np.float32)
        return np.zeros((count, int((self.family[:, ACTION] + self.family[:, SIZE]).max())), np.float32)

    def differentiate(self, part: AnchoredRows, now: Now) -> dict[str, float]:
        """Find the gradient on a minibatch; what is worth logging of the loss."""
        inputs, actions, masks, anchors, columns, rows = part
        knobs = np.array([limit(getattr(now, name)) for name in self.of.knobs])
        old = np.empty((len(rows), columns.shape[1]), np.float32)
        gather(columns, rows, -1, old)
        self.sums[:] = 0
        self.layers.pack()
        for start in range(0, len(rows), HEIGHT):
            block = rows[start : start + HEIGHT]
            said, known, slopes = (
                array[: len(block)] for array in (self.said, self.known, self.layers.slopes)
            )
            outputs = self.layers.forward(inputs, block)
            evaluate_actions(self.family, outputs, actions, masks, block, said)
            measure_divergence(self.family, outputs, anchors, block, said)
            self.of.function(said, old[start : start + HEIGHT], 1 / len(rows), knobs, known, self.sums)
            action_slopes(self.family, outputs, actions, masks, block, known, slopes)
            divergence_slopes(self.family, outputs, anchors, block, known, slopes)
            self.layers.backward(slopes)
        self.layers.unpack(self.gradient)
        return dict(zip(self.of.numbers, self.sums[1:].tolist(), strict=True))

    def step(self, learning_rate: float, max_grad_norm: float | None) -> dict[str, float]:
        """Move the parameters down that gradient."""
        if not math.isfinite(self.sums[0]):
            raise NonFiniteError("loss")
        return {"grad_norm": self.optimizer.descend(learning_rate, limit(max_grad_norm))}


def _masks(obs: Any) -> np.ndarray:
    mask = mask_of(obs)
    return UNMASKED if mask is None else np.ascontiguousarray(mask.numpy() != 0)


class AnchoredLearner:
    """What `Learners` do with the minibatches of an actor-learner, for a learner alone, compiled."""

    def __init__(self, update: AnchoredUpdate) -> None:
        self.update = update

    def step(
        self, shares: Sequence[Mapping[str, Any]], now: Now, far: Far | None = None
    ) -> tuple[dict[str, float], bool]:
        """A step on the only share; what is worth logging, and whether it was taken."""
        rows = self.update.rows(shares[0])
        anchors = rows.anchors.copy()
        normalize_anchors(self.update.family, anchors)
        numbers = self.update.differentiate(rows._replace(anchors=anchors), now)
        if far is not None and numbers[far.name] > far.limit:
            return numbers, False
        return numbers | self.update.step(now.learning_rate, now.max_grad_norm), True


def fastest_anchored(loss: Loss, slopes: Slopes, trainer: Any) -> Choice:
    """A compiled twin of a trainer's learner, where there can be one."""
    home = "rl_training.runtime.appo_trainer"
    ours = loss is slopes.of and is_ours(trainer, "loss", home) and is_ours(trainer, "evaluate", home)
    family, config = trainer.agent.family, trainer.config
    obstacles = {
        OWN_LOSS: not ours,
        f"the distribution {type(family).__name__}": type(family) not in FAMILIES,
        f"{config.num_learners} learners": config.num_learners > 1,
    }
    hindered = next((why for why, stands in obstacles.items() if stands), "")

    def make(network: Any) -> AnchoredLearner | None:
        layers = actor_critic_layers(network, trainer.optimizer.parameters)
        if layers is None:
            return None
        encode = network.actor_encoder[0]
        return AnchoredLearner(
            AnchoredUpdate(slopes, layers, family_table(family), encode, trainer.optimizer)
        )

    return Choice(hindered, trainer, ("optimizer",), trainer.agent.network, make)
