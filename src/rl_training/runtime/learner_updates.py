"""Compiled learners of the actor-learner family: what `Learners` do, for a learner alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rl_training.algorithms.returns import explained_variance
from rl_training.algorithms.slopes import Loss, Slopes
from rl_training.kernels.divergences import normalize_anchors
from rl_training.kernels.exact import is_ours
from rl_training.kernels.families import FAMILIES, family_table
from rl_training.kernels.reading import actor_critic_layers
from rl_training.runtime.controls import Now
from rl_training.runtime.updates import OWN_LOSS, Choice, CompiledUpdate, Far, evaluates_as_known

Stepped = tuple[dict[str, Any], bool]  # what is worth logging, and whether the step was taken


class Learner(Protocol):
    """A step on the shares of a batch, of which there is one."""

    def step(self, shares: Sequence[Any], now: Now, far: Far | None = None) -> Stepped:
        """As `Learners.step` does it."""


class AnchoredLearner:
    """A step on rows of a batch, of a policy that an older one's `parameters` hold."""

    def __init__(self, update: CompiledUpdate, trainer: Any) -> None:
        self.update, self.family = update, family_table(trainer.agent.family)

    def step(self, shares: Sequence[Mapping[str, Any]], now: Now, far: Far | None = None) -> Stepped:
        anchors = shares[0]["parameters"].clone()
        normalize_anchors(self.family, anchors.numpy())
        rows: Any = {**shares[0], "parameters": anchors}
        return _first(self.update.descend(self.update.whole(rows), now, far))


class TargetLearner:
    """A step on fragments of actors, towards targets that follow from what the learner's network says of them."""

    def __init__(self, update: CompiledUpdate, trainer: Any) -> None:
        self.update, self.trainer = update, trainer

    def step(self, shares: Sequence[Any], now: Now, far: Far | None = None) -> Stepped:
        trainer, batch = self.trainer, shares[0]
        view = trainer.compiled_view(self.update, batch)
        targets, ratios = trainer.targets(view, batch, now)
        rows: Any = {**targets, "obs": trainer.inputs(batch), "action": batch["action"].flatten(0, 1)}
        numbers, moved = _first(self.update.descend(self.update.whole(rows), now, far))
        explained = explained_variance(view.value, targets["return"])
        return ratios | numbers | {"explained_variance": explained}, moved


def _first(logged: Mapping[str, list[Any]]) -> Stepped:
    """The numbers of the only minibatch; a step that was not taken has no norm."""
    return {name: values[0] for name, values in logged.items() if values}, bool(logged["grad_norm"])


def fastest_learner(
    loss: Loss,
    slopes: Slopes,
    trainer: Any,
    kind: Callable[[CompiledUpdate, Any], Learner],
    *stands_in_for: str,
) -> Choice:
    """A compiled twin of a trainer's `learners`, where there can be one and these methods are our own."""
    family, config = trainer.agent.family, trainer.config
    obstacles = {
        OWN_LOSS: loss is not slopes.of,
        f"the distribution {type(family).__name__}": type(family) not in FAMILIES,
        f"{config.num_learners} learners": config.num_learners > 1,
    }
    hindered = next((why for why, stands in obstacles.items() if stands), "")

    def make(network: Any) -> Learner | None:
        layers = actor_critic_layers(network, trainer.optimizer.parameters)
        if layers is None:
            return None
        encode, optimizer = network.actor_encoder[0], trainer.optimizer
        return kind(CompiledUpdate(slopes, layers, family_table(family), encode, optimizer), trainer)

    def replaced() -> bool:
        return not (is_ours(trainer, "rl_training.", *stands_in_for) and evaluates_as_known(trainer.agent))

    return Choice(hindered, trainer, ("optimizer",), trainer.agent.network, make, replaced=replaced)
