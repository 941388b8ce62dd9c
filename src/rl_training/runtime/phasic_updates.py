"""The auxiliary phase of Phasic Policy Gradient in compiled code: distilling values, and fitting the critic."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.ppg import JOINT_SLOPES
from rl_training.algorithms.slopes import Loss
from rl_training.kernels.exact import is_ours
from rl_training.kernels.families import FAMILIES, family_table
from rl_training.kernels.reading import phasic_layers
from rl_training.runtime.controls import Now
from rl_training.runtime.updates import OWN_LOSS, Choice, CompiledUpdate
from rl_training.trees import Tensors


def fastest_distillation(loss: Loss, trainer: Any) -> Choice:
    """A compiled twin of a trainer's `distil`, where there can be one."""
    own = "" if loss is JOINT_SLOPES.of else OWN_LOSS
    return Choice(
        own,
        trainer,
        ("auxiliary_optimizer", "critic_optimizer"),
        trainer.agent.network,
        lambda _: Distillation.of(trainer),
        replaced=lambda: not is_ours(trainer, "rl_training.runtime.ppg_trainer", "anchors", "distil"),
    )


class Distillation:
    """What a trainer does in an auxiliary minibatch, compiled; its optimizers move."""

    def __init__(self, joint: CompiledUpdate, fit: CompiledUpdate) -> None:
        self.joint, self.fit = joint, fit

    @classmethod
    def of(cls, trainer: Any) -> Distillation | None:
        network, family, optimizer = trainer.agent.network, trainer.agent.family, trainer.auxiliary_optimizer
        layers = phasic_layers(network, optimizer.parameters)
        fit = trainer.value_fit.taken()
        if layers is None or fit is None or type(family) not in FAMILIES:
            return None
        encode = network.actor_encoder[0]
        return cls(CompiledUpdate(JOINT_SLOPES, layers, family_table(family), encode, optimizer), fit)

    def anchors(self, inputs: Tensors) -> Tensor:
        return self.joint.evaluate(inputs)[1]

    def distil(self, minibatch: Any, now: Now) -> dict[str, float]:
        logged: dict[str, list[Any]] = {}
        for update in (self.joint, self.fit):
            logged |= update.descend(update.whole(minibatch), now)
        del logged["grad_norm"]  # which is the policy phase's
        return {name: values[0] for name, values in logged.items()}
