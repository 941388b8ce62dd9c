"""Updates: the gradient of a loss over rows of a batch and a step down it, by torch or in compiled code.

Both compute the same numbers but for rounding, and move the same vectors of an optimizer. Compiled code knows dense
networks in single precision on one thread of a CPU; there torch's cost per operation is several times the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from operator import attrgetter, is_not
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.masking import mask_of
from rl_training.algorithms.ppo import normalize_advantage
from rl_training.algorithms.slopes import Loss, Slopes
from rl_training.data.batch import RolloutBatch, even_parts, minibatches
from rl_training.errors import NonFiniteError
from rl_training.kernels.divergences import UNANCHORED, divergence_addresses
from rl_training.kernels.exact import Shortcut, is_ours, taken
from rl_training.kernels.families import (
    FAMILIES,
    UNMASKED,
    evaluate_actions,
    family_table,
    masks_of_outputs,
    num_actions,
)
from rl_training.kernels.layers import HEIGHT, Layers
from rl_training.kernels.minibatches import Learner, Rows, Slope, descend
from rl_training.kernels.reading import actor_critic_layers
from rl_training.kernels.tiles import has_fused_multiplication
from rl_training.runtime.controls import Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import OPTIMIZERS, Optimizer, TwoRateAdam, is_view

COMPILED, TORCH = "compiled", "torch"
NO_STEP = -1.0  # in place of a norm
OWN_LOSS = "a loss of one's own"
STEPPED = frozenset[type[Optimizer]]({*OPTIMIZERS.values(), TwoRateAdam})  # that have a `descent`
LEARNS = attrgetter("requires_grad")
HOOKS = (
    attrgetter("_backward_hooks"),
    attrgetter("_post_accumulate_grad_hooks"),
)  # of a parameter's gradient

Evaluated = tuple[Tensor, Tensor, Tensor]  # log-probability, entropy and value [N]
Evaluate = Callable[[RolloutBatch], tuple[Tensor, ...]]  # those of them that a loss takes
Numbers = Mapping[str, Tensor | float]
Logged = dict[str, list[Tensor | float]]  # by name, a number of each minibatch


class Far(NamedTuple):
    """When to stop learning from a batch: where a number that a loss logs is above a limit."""

    name: str
    limit: float


class Update(Protocol):
    """A loss, a network and an optimizer."""

    optimizer: Optimizer

    def parts(self, batch: RolloutBatch, epochs: int, num_minibatches: int) -> Any:
        """Rows [N, ...] in shuffled minibatches, `epochs` times over."""

    def whole(self, batch: RolloutBatch) -> Any:
        """All rows as one minibatch."""

    def descend(self, parts: Any, now: Now, far: Far | None = None) -> Logged:
        """A step down the gradient on each minibatch, until one is `far`; what is worth logging."""


class TorchUpdate:
    """By torch's autograd, for any network."""

    def __init__(
        self, of: Loss, slopes: Slopes, evaluate: Evaluate, optimizer: Optimizer, normalize: bool
    ) -> None:
        self.of, self.knobs, self.given = of, slopes.knobs, slopes.given
        self.evaluate, self.optimizer, self.normalize = evaluate, optimizer, normalize
        self.loss = torch.zeros(())

    def parts(self, batch: RolloutBatch, epochs: int, num_minibatches: int) -> Iterator[RolloutBatch]:
        return minibatches(batch, epochs, num_minibatches)

    def whole(self, batch: RolloutBatch) -> list[RolloutBatch]:
        return [batch]

    def descend(self, parts: Iterable[RolloutBatch], now: Now, far: Far | None = None) -> Logged:
        logged = Metrics(0, [])
        for part in parts:
            numbers = self.differentiate(part, now)
            logged.add(numbers)
            if far is not None and numbers[far.name] > far.limit:
                break
            logged.add(self.optimizer.step(self.loss, now.learning_rate, now.max_grad_norm))
        return logged.values

    def differentiate(self, part: RolloutBatch, now: Now) -> Numbers:
        """Compute the loss of a minibatch; what is worth logging of it."""
        if self.normalize:
            part = {**part, "advantage": normalize_advantage(part["advantage"])}
        knobs = {name: getattr(now, name) for name in self.knobs}
        columns: Mapping[str, object] = part
        given = [columns[name] for name in self.given] or [part]
        self.loss, numbers = self.of(*self.evaluate(part), *given, **knobs)
        return numbers


class Parts(NamedTuple):
    """Minibatches, as compiled code reads them: rows of `order` up to each of `ends`."""

    batch: Rows
    order: np.ndarray
    ends: np.ndarray


@lru_cache(maxsize=16)
def ends_of(count: int, epochs: int, num_minibatches: int) -> np.ndarray:
    """Where each minibatch ends in the rows of all epochs, one behind the other."""
    ends = [count * e + end for e in range(epochs) for _, end in even_parts(count, num_minibatches)]
    return np.array(ends)


class CompiledUpdate:
    """By compiled passes over blocks of rows, for an actor-critic of dense layers: all minibatches in one call."""

    def __init__(
        self,
        of: Slopes,
        layers: Layers,
        family: np.ndarray,
        encode: Callable[[Any], Tensor],
        optimizer: Optimizer,
        normalize: bool = False,
    ) -> None:
        self.of, self.encode, self.optimizer = of, encode, optimizer
        self.normalized = of.columns.index("advantage") if normalize else -1
        said, known = (np.zeros((HEIGHT, 3 + of.anchored), np.float32) for _ in range(2))
        held = divergence_addresses() if of.anchored else np.zeros(0, np.int64)
        self.layers, self.family = layers, family
        network = (layers.addresses, layers.table, layers.packed, layers.memory, layers.gradient)
        self.learner = Learner(*network, family, layers.output, layers.slopes, said, known, held)

    def parts(self, batch: RolloutBatch, epochs: int, num_minibatches: int) -> Parts:
        rows = self._rows(batch)
        count = len(rows.inputs)
        order = torch.empty((epochs, count), dtype=torch.int64)
        for epoch in order.unbind():
            torch.randperm(count, out=epoch)
        return Parts(rows, order.view(-1).numpy(), ends_of(count, epochs, num_minibatches))

    def whole(self, batch: RolloutBatch) -> Parts:
        rows = self._rows(batch)
        return Parts(rows, np.arange(len(rows.inputs)), np.array([len(rows.inputs)]))

    def _rows(self, batch: RolloutBatch) -> Rows:
        given: Mapping[str, Any] = batch
        inputs, actions, masks = self._seen(batch["obs"], given.get("action"))
        anchors = given["parameters"].numpy() if self.of.anchored else UNANCHORED
        columns = np.empty((len(inputs), len(self.of.columns)), np.float32)
        for place, name in enumerate(self.of.columns):
            columns[:, place] = given[name].numpy()
        return Rows(inputs, actions, masks, np.ascontiguousarray(anchors), columns, np.empty_like(columns))

    def _seen(self, obs: Any, action: Tensor | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The network's inputs, actions, of which a loss may say nothing, and masks."""
        with torch.no_grad():
            inputs = np.ascontiguousarray(self.encode(obs).numpy())
        count, mask = len(inputs), mask_of(obs)
        if action is None:
            actions = np.zeros((count, num_actions(self.family)), np.float32)
        else:
            actions = np.ascontiguousarray(action.numpy().reshape(count, -1), np.float32)
        return inputs, actions, UNMASKED if mask is None else masks_of_outputs(self.family, mask.numpy())

    def evaluate(self, obs: Any, action: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(log π, H, V) [N, 3] of the network as it is now, and its policy's parameters [N, P], from which KL is 0."""
        inputs, actions, masks = self._seen(obs, action)
        said = np.empty((len(inputs), 3), np.float32)
        parameters = np.empty((len(inputs), self.layers.outputs - 1), np.float32)
        self.layers.pack_forward()
        for start in range(0, len(inputs), HEIGHT):
            block = np.arange(start, min(start + HEIGHT, len(inputs)))
            part = slice(start, start + HEIGHT)
            outputs = self.layers.forward(inputs, block)
            evaluate_actions(self.family, outputs, actions, masks, block, said[part])
            parameters[part] = outputs[:, :-1]
        return torch.from_numpy(said), torch.from_numpy(parameters)

    def descend(self, parts: Parts, now: Now, far: Far | None = None) -> Logged:
        knobs = np.array([limit(getattr(now, name)) for name in self.of.knobs])
        place = 0 if far is None else 1 + self.of.numbers.index(far.name)
        loss = Slope(self.of.address, self.normalized, knobs, place, 0.0 if far is None else far.limit)
        numbers = np.zeros((len(parts.ends), 2 + len(self.of.numbers)))
        numbers[:, -1] = NO_STEP
        step = (self.optimizer.descent(), now.learning_rate, limit(now.max_grad_norm), numbers)
        done = descend(self.learner, loss, *parts, *step)
        self._check(numbers[done - 1], far is not None and numbers[done - 1, place] > far.limit)
        norms = numbers[:done, -1]
        columns = [*numbers[:done, 1:-1].T.tolist(), norms[norms != NO_STEP].tolist()]
        return dict(zip((*self.of.numbers, "grad_norm"), columns, strict=True))

    def _check(self, last: np.ndarray, stopped: bool) -> None:
        """Refuse a last minibatch on which a number was not finite: no step was taken there."""
        if not stopped and not math.isfinite(last[0]):
            raise NonFiniteError("loss")
        if not math.isfinite(last[-1]):
            raise NonFiniteError(self.optimizer.first_not_finite())


class Choice:
    """Something that is computed in compiled code where the modules it is computed by can be read, else by torch.

    `optimizers` names the trainer's attributes that it moves by, `targets` a target network and the vector of its
    weights; when one of them is replaced or moves another vector, the choice is made anew. All of `modules` is learned:
    while a parameter is frozen or its gradient has a hook, torch computes, and while a method is `replaced` that
    compiled code stands in for.
    `known` are the optimizers that have a step in compiled code.
    """

    def __init__(
        self,
        hindered: str,
        trainer: Any,
        optimizers: tuple[str, ...],
        modules: nn.Module,
        make: Callable[[Any], Any],
        targets: tuple[str, ...] = (),
        known: frozenset[type[Optimizer]] = STEPPED,
        replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self.hindered, self.trainer, self.names, self.targets = hindered, trainer, optimizers, targets
        self.modules, self.make, self.known, self.replaced = modules, make, known, replaced
        self._begin()

    def _begin(self) -> None:
        self.moved = self._moved()
        self.learned: list[nn.Parameter] = []
        self.obstacle = self.hindered or obstacle(self.trainer) or self._unknown()
        seen = nn.ModuleList([self.modules, *self._targets()[:1]])
        self.compiled = None if self.obstacle else Shortcut(seen, self._make)

    def _unknown(self) -> str:
        """What of optimizers and targets compiled code cannot read."""
        if any(each is not None and type(each) not in self.known for each in self._current()):
            return "an optimizer of one's own"
        targets = self._targets()
        return "a target of one's own" if targets and not is_view(*targets) else ""

    def _make(self, _: nn.Module) -> Any:
        self.learned = list(self.modules.parameters())
        return self.make(self.modules)

    def _current(self) -> list[Optimizer | None]:
        return [getattr(self.trainer, name) for name in self.names]

    def _targets(self) -> list[Any]:
        return [getattr(self.trainer, name) for name in self.targets]

    def _moved(self) -> list[object]:
        """The optimizers and their vectors, and the targets."""
        vectors = [part for each in self._current() for part in (each, getattr(each, "parameters", None))]
        return vectors + self._targets()

    def taken(self) -> Any:
        """The compiled one; None where torch is to compute."""
        if any(map(is_not, self._moved(), self.moved)):
            self._begin()
        compiled = taken(self.compiled)
        return None if self._held() or self.replaced() else compiled

    def _held(self) -> str:
        """What stands between parameters and their gradients."""
        if not all(map(LEARNS, self.learned)):
            return "parameters are frozen"
        hooked = any(any(map(hooks, self.learned)) for hooks in HOOKS)
        return "gradients have hooks" if hooked else ""

    def use_torch(self, why: str) -> None:
        self.hindered = self.obstacle = self.obstacle or why
        self.compiled = None

    @property
    def path(self) -> str:
        """How it is computed now."""
        return TORCH if self.taken() is None else COMPILED

    @property
    def explained(self) -> str:
        """The same, and why it is not compiled."""
        if self.path == COMPILED:
            return COMPILED
        unread = self._held() or "the policy is not of dense layers alone"
        return f"{TORCH} ({self.obstacle or (OWN_LOSS if self.replaced() else unread)})"


class Fastest(Choice):
    """The update of a loss on a trainer's agent: compiled where its network can be read as dense layers, else torch's.

    `loss` is what torch differentiates. It has these slopes unless someone has put another function in its place.
    """

    def __init__(self, loss: Loss, slopes: Slopes, trainer: Any) -> None:
        self.loss, self.slopes = loss, slopes
        known = type(trainer.agent.family) in FAMILIES
        kind = "" if known else f"the distribution {type(trainer.agent.family).__name__}"
        own = "" if loss is slopes.of else OWN_LOSS
        network, replaced = trainer.agent.network, lambda: not evaluates_as_known(trainer.agent)
        super().__init__(own or kind, trainer, ("optimizer",), network, self._compiled, replaced=replaced)

    def _begin(self) -> None:
        evaluate = partial(_evaluate, self.trainer.agent)
        self.torch = TorchUpdate(self.loss, self.slopes, evaluate, self.trainer.optimizer, self._normalizes)
        super()._begin()

    def _compiled(self, network: Any) -> CompiledUpdate | None:
        optimizer = self.trainer.optimizer
        layers = actor_critic_layers(network, optimizer.parameters)
        if layers is None:
            return None
        family, encode = family_table(self.trainer.agent.family), network.actor_encoder[0]
        return CompiledUpdate(self.slopes, layers, family, encode, optimizer, self._normalizes)

    @property
    def _normalizes(self) -> bool:
        return "advantage" in self.slopes.columns and self.trainer.config.normalize_advantages

    def __call__(self) -> Update:
        return self.taken() or self.torch


def _evaluate(agent: Any, minibatch: RolloutBatch) -> Evaluated:
    return agent.evaluate(minibatch["obs"], minibatch["action"])


def evaluates_as_known(agent: object) -> bool:
    """Whether a policy evaluates actions by the methods that compiled code stands in for."""
    return is_ours(agent, "rl_training.policies.actor_critic", "evaluate", "outputs_for_loss")


def obstacle(trainer: Any) -> str:
    """Why nothing can be compiled, whatever network and optimizer are; empty where it can."""
    config = trainer.config
    obstacles = {
        "compiled_updates is false": not config.compiled_updates,
        f"device {config.device}": config.device != "cpu",
        f"precision {config.precision}": config.precision != "fp32",
        f"{trainer.threads} threads": trainer.threads != 1,
        "no fused multiply-add on this processor": not has_fused_multiplication(),
    }
    return next((name for name, stands in obstacles.items() if stands), "")


def limit(knob: float | None) -> float:
    return math.inf if knob is None else float(knob)
