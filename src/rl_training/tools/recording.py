"""Record one iteration: its knobs, its experience, its losses, its gradients and its parameters, in the order of time.

Where an update runs in compiled code, all its minibatches are one call: the losses of each are known, and of the
gradients that of the last minibatch, which the optimizer still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.runtime.controls import Knobs
from rl_training.runtime.engine import Engine
from rl_training.runtime.grouped_adam import GroupedAdam
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import Optimizer
from rl_training.runtime.trainer import Trainer
from rl_training.tools.differences import as_array
from rl_training.tools.travelling import go_on, restored
from rl_training.trees import tree_leaves

KNOB, OBSERVATION, LOSS, GRADIENT, PARAMETER = "knob", "observation", "loss", "gradient", "parameter"


class Event(NamedTuple):
    """Something that was computed in an iteration: arrays by name."""

    kind: str
    name: str
    values: dict[str, Any]


class Record:
    """An iteration, event by event."""

    def __init__(self) -> None:
        self.begins = self.ends = 0  # steps
        self.events: list[Event] = []
        self.compiled: list[str] = []  # optimizers of which only the last gradient is known

    @property
    def knobs(self) -> dict[str, Any]:
        return self._last(KNOB)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """What was gathered and what was learned from, in the order in which the trainer got it."""
        return [{event.name: event.values} for event in self.events if event.kind == OBSERVATION]

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """By name the numbers of all updates, as the log averages them."""
        return self._last(LOSS)

    @property
    def gradients(self) -> dict[str, dict[str, np.ndarray]]:
        """The last gradient of each optimizer by layer, as it moved the parameters."""
        return {event.name: event.values for event in self.events if event.kind == GRADIENT}

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        return self._last(PARAMETER)

    def _last(self, kind: str) -> dict[str, Any]:
        return next((event.values for event in reversed(self.events) if event.kind == kind), {})

    def add(self, kind: str, name: str, values: Mapping[str, Any]) -> None:
        self.events.append(Event(kind, name, dict(values)))

    def dump(self, path: Path) -> None:
        """All of it as one .npz file, with names such as `batch/2/draw/obs` and `gradient/optimizer/0.weight`."""
        tree = {
            "step": {"begins": np.array(self.begins), "ends": np.array(self.ends)},
            "knob": {name: np.array(value) for name, value in self.knobs.items()},
            "batch": {str(number): batch for number, batch in enumerate(self.batches)},
            "loss": self.losses,
            "gradient": self.gradients,
            "parameter": self.parameters,
        }
        arrays = {name[1:]: array for name, array in tree_leaves(tree, "")}
        with path.open("xb") as file:
            np.savez(file, **arrays)


@contextmanager
def recording(engine: Engine) -> Iterator[Record]:
    """A record of the last iteration that the engine makes in here."""
    record = Record()

    def iterate(knobs: Knobs) -> Metrics:
        trainer, steps = engine.trainer, engine.progress.steps
        record.__init__()  # type: ignore[misc]
        record.begins, record.ends = steps, steps + engine.config.steps_per_iteration
        record.add(KNOB, "", engine.controls.used(record.ends))
        moments = {name: _moments(optimizer) for name, optimizer in optimizers(trainer).items()}
        with _listening(trainer, record):
            metrics = trainer.iterate(knobs)
        record.add(LOSS, "", {name: _numbers(values) for name, values in metrics.values.items()})
        seen = {event.name for event in record.events if event.kind == GRADIENT}
        for name, optimizer in optimizers(trainer).items():
            if name not in seen and moments[name] != _moments(optimizer):  # else its gradient is an older one
                record.compiled.append(name)
                record.add(GRADIENT, name, _by_layer(optimizer))
        record.add(PARAMETER, "", {name: as_array(value) for name, value in trainer.parameters()})
        return metrics

    engine.iterate = iterate  # type: ignore[method-assign]
    try:
        yield record
    finally:
        del engine.iterate


@contextmanager
def recorded_at(
    source: str | Path, step: int, *, before: Callable[[Engine], None] | None = None, **options: Any
) -> Iterator[tuple[Engine, Record]]:
    """The engine of a run, in a scratch copy, after the iteration that reaches `step`, and a record of that iteration.

    before: is given the engine as it stands before that iteration. The options are those of `travelling.restored`.
    """
    with restored(source, step, **options, before=True) as engine:
        go_on(engine, step - engine.config.steps_per_iteration, step)
        if before is not None:
            before(engine)
        with recording(engine) as record:
            go_on(engine, max(step, engine.progress.steps + 1), step)
        yield engine, record


def optimizers(trainer: Trainer) -> dict[str, Optimizer]:
    """The optimizers of a trainer by name, those of groups one by one."""
    found: dict[str, Optimizer] = {}
    for name, part in vars(trainer).items():
        if isinstance(part, Optimizer):
            found[name] = part
        elif isinstance(part, GroupedAdam):
            found |= {f"{name}/{group}": inner for group, inner in part.groups.items()}
    return found


@contextmanager
def _listening(trainer: Trainer, record: Record) -> Iterator[None]:
    """Write down what the trainer's methods return and what its optimizers are given, for the time of an iteration."""
    depth = 0

    def heard(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = method(*args, **options)
            finally:
                depth -= 1
            copied = copied_arrays(result)
            if depth == 0 and copied is not None:  # a method that calls another of them tells for both
                record.add(OBSERVATION, name.strip("_"), copied if isinstance(copied, dict) else {"": copied})
            return result

        return call

    def differentiated(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(loss: torch.Tensor, *args: Any, **options: Any) -> Any:
            record.add(LOSS, name, {"loss": as_array(loss)})
            return method(loss, *args, **options)

        return call

    def moved(method: Callable[..., Any], name: str, optimizer: Optimizer) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            record.add(GRADIENT, name, _by_layer(optimizer))
            return method(*args, **options)

        return call

    with ExitStack() as stack:
        for name in type(trainer).experience:
            if hasattr(trainer, name):
                stack.enter_context(_instead(trainer, name, heard(getattr(trainer, name), name)))
        for name, optimizer in optimizers(trainer).items():
            differentiate = differentiated(optimizer.differentiate, name)
            stack.enter_context(_instead(optimizer, "differentiate", differentiate))
            for step in ("update", "descend"):  # by torch, and in compiled code
                stack.enter_context(
                    _instead(optimizer, step, moved(getattr(optimizer, step), name, optimizer))
                )
        yield


@contextmanager
def _instead(owner: object, name: str, function: Callable[..., Any]) -> Iterator[None]:
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)


def _by_layer(optimizer: Optimizer) -> dict[str, np.ndarray]:
    pieces = optimizer.gradient.split([size for _, size in optimizer.names])
    return {name: as_array(piece) for (name, _), piece in zip(optimizer.names, pieces, strict=True)}


def _moments(optimizer: Optimizer) -> list[bytes]:
    """What every update of an optimizer moves besides the parameters."""
    shared = ("parameters", "gradient")  # by two optimizers of one network
    parts = [part for name, part in vars(optimizer).items() if name not in shared]
    return [as_array(part).tobytes() for part in parts if isinstance(part, torch.Tensor)]


def _numbers(values: list[torch.Tensor | float]) -> np.ndarray:
    return np.array([float(value) for value in values])


def copied_arrays(value: object) -> Any:
    """Copies of all arrays in dicts, lists and tuples, by name; None where there are none. Numbers are arrays too."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return as_array(value)
    if isinstance(value, bool | int | float | np.generic):
        return np.array(value)
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
        only = [part for part in map(copied_arrays, value.values()) if part is not None]
        if len(value) > 1 and len(only) == 1:
            return only[0]  # such as a rollout, next to its metrics
    if not isinstance(value, Mapping):
        return None
    parts = {str(name): copied_arrays(part) for name, part in value.items()}
    return {name: part for name, part in parts.items() if part is not None} or None
