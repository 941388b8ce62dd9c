"""Updates of a part of an actor-critic by itself, its policy or its critic: by torch or in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.algorithms.ppo import FIT_SLOPES, SURROGATE_SLOPES
from rl_training.algorithms.slopes import Loss, Slopes
from rl_training.data.batch import RolloutBatch
from rl_training.kernels.families import COLUMNS, FAMILIES, family_table
from rl_training.kernels.layers import Layers
from rl_training.kernels.reading import critic_layers, phasic_layers
from rl_training.runtime.updates import (
    OWN_LOSS,
    Choice,
    CompiledUpdate,
    Evaluate,
    TorchUpdate,
    Update,
)

NO_ACTIONS = np.zeros((0, COLUMNS), np.int64)  # the family of a critic, which says nothing about actions

Read = Callable[[Any, Tensor], Layers | None]  # a network as layers over a vector of parameters


class FastestPart(Choice):
    """The update of a loss of such a part: compiled where it can be read as dense layers, else torch's.

    `loss` is what torch differentiates. It has these slopes unless someone has put another function in its place.
    """

    def __init__(
        self, loss: Loss, slopes: Slopes, trainer: Any, optimizer: str, part: Evaluate, read: Read
    ) -> None:
        self.loss, self.slopes, self.part, self.read = loss, slopes, part, read
        own = "" if loss is slopes.of else OWN_LOSS
        super().__init__(own, trainer, (optimizer,), trainer.agent.network, self._compiled)

    def _begin(self) -> None:
        (optimizer,) = self._current()
        assert optimizer is not None
        self.torch = TorchUpdate(self.loss, self.slopes, self.part, optimizer, normalize=False)
        super()._begin()

    def _compiled(self, network: Any) -> CompiledUpdate | None:
        optimizer = self.torch.optimizer
        layers = self.read(network, optimizer.parameters)
        if layers is None:
            return None
        critic = self.read is critic_layers
        family = NO_ACTIONS if critic else family_table(self.trainer.agent.family)
        encoder = network.critic_encoder if critic else network.actor_encoder
        return CompiledUpdate(self.slopes, layers, family, encoder[0], optimizer)

    def __call__(self) -> Update:
        return self.taken() or self.torch


def fastest_fit(loss: Loss, trainer: Any, optimizer: str) -> FastestPart:
    """Fitting the value function of a trainer's agent to returns, by its optimizer of this name."""

    def value(minibatch: RolloutBatch) -> tuple[Tensor, ...]:
        return (trainer.agent.network.value(minibatch["obs"]),)

    return FastestPart(loss, FIT_SLOPES, trainer, optimizer, value, critic_layers)


def fastest_phasic_policy(loss: Loss, trainer: Any, optimizer: str) -> FastestPart:
    """The clipped surrogate of a `PhasicActorCritic`, by the trainer's optimizer of this name."""
    agent = trainer.agent

    def policy(minibatch: RolloutBatch) -> tuple[Tensor, ...]:
        parameters = agent.network.policy(minibatch["obs"])
        return agent.family.log_prob_and_entropy(parameters, minibatch["action"])

    def read(network: Any, parameters: Tensor) -> Layers | None:
        return phasic_layers(network, parameters) if type(agent.family) in FAMILIES else None

    return FastestPart(loss, SURROGATE_SLOPES, trainer, optimizer, policy, read)
