"""How a config class declares its fields: once, where they belong.

    class PPOConfig(Rollouts):
        clip_coef: float = knob(0.2, "How far the probability ratio may leave 1.", aliases=("clip_range",))
        num_steps: int = field(128, "Rollout length: steps per environment and rollout.", ge=1)
        learning_rate = 2.5e-4                               # another default of an inherited field
        gamma = changed(0.997, "Discount per agent step.")   # and another sentence
        tau: float = like(SACConfig, 0.01)                   # a field as another class has it, with this default
        num_envs = ABSENT                                    # an inherited field that is no key here

A knob has a schedule and a warm-up besides its value: the class gets `clip_coef_schedule` and
`clip_coef_warmup_steps` with it. `controls` of a class holds its knobs by the names of their fields.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from copy import copy
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from pydantic._internal._model_construction import ModelMetaclass
from pydantic.fields import FieldInfo

from rl_training.runtime.controls import SCHEDULE, WARMUP, Control

Units = Annotated[int, Field(ge=1, le=65_536)]


def field(default: Any, description: str, **limits: Any) -> Any:
    """One field: its default (`...` if it must be given), a sentence with the unit, limits like `ge=1`."""
    return Field(default, description=description, **limits)


class _Knob(NamedTuple):
    default: Any
    description: str
    aliases: tuple[str, ...]
    low: float
    high: float
    limit: bool
    sizes: bool


def knob(
    default: object,
    description: str,
    *,
    low: float = 0.0,
    high: float = math.inf,
    aliases: tuple[str, ...] = (),
    limit: bool = False,
    sizes: bool = False,
) -> Any:
    """A field that can move over the run: its default, a sentence, its range (bounds included), its other names.

    limit: whether it limits how far an update may go, so that close to 0 nothing is learned
    sizes: whether memory is sized by its highest value, so that a running run cannot be told to go beyond it
    """
    return _Knob(default, description, aliases, low, high, limit, sizes)


class _Changed(NamedTuple):
    default: Any
    description: str


def changed(default: object, description: str) -> Any:
    """An inherited field with another default and another sentence; its type, range and names stay."""
    return _Changed(default, description)


class _Like(NamedTuple):
    owner: type
    change: Any


SAME: Any = object()
# In place of an inherited field, which the class then does not have; nor do its subclasses.
ABSENT: Any = object()


def like(owner: type, default: object = SAME, description: str | None = None) -> Any:
    """A field as another config class has it under this name, perhaps with another default and sentence."""
    change = default if description is None else _Changed(default, description)
    return _Like(owner, change)


class ConfigMeta(ModelMetaclass):
    """Reads the declarations of a config class and makes pydantic's fields of them."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> ConfigMeta:
        knobs = {key: value for key, value in namespace.items() if isinstance(value, _Knob)}
        copied = {key: value for key, value in namespace.items() if isinstance(value, _Like)}
        annotated = set(_annotated(namespace))
        inherited = {key for base in bases for key in getattr(base, "model_fields", {})}
        changes = {key: namespace.pop(key) for key in inherited - annotated if key in namespace}
        for key, value in namespace.items():
            if isinstance(value, _Knob | _Changed):
                namespace[key] = field(value.default, value.description)
            elif isinstance(value, _Like):
                other = _with(value.owner.model_fields[key], value.change)  # type: ignore[attr-defined]
                namespace[key] = field(other.default, other.description or "")
                theirs = _declared(value.owner, "knobs_declared")
                if key in theirs:
                    knobs[key] = theirs[key]
        made: Any = super().__new__(mcs, name, bases, namespace, **options)
        fields: dict[str, FieldInfo] = made.__pydantic_fields__
        made.fields_absent = dict.fromkeys(key for key, change in changes.items() if change is ABSENT)
        for key in _declared(made, "fields_absent").keys() - annotated:
            for part in ("", SCHEDULE, WARMUP):
                fields.pop(key + part, None)
        for key, value in copied.items():
            fields[key].metadata = list(value.owner.model_fields[key].metadata)  # type: ignore[attr-defined]
        before = _declared(made, "fields_declared")
        for key in before.keys() & fields.keys():
            if key not in annotated:
                fields[key] = _with(before[key], changes.get(key, SAME))
            elif fields[key].description is None:  # a narrower type, with the sentence that is there already
                fields[key].description = before[key].description
        made.knobs_declared = knobs
        made.controls = _controls(fields, _declared(made, "knobs_declared"))
        _add_schedules(fields, made.controls)
        made.fields_declared = {
            key: fields[key] for key in fields if key in annotated or key in changes or key not in inherited
        }
        declared: ConfigMeta = made
        return declared


def _declared(made: type, attribute: str) -> dict[str, Any]:
    """What a class and its bases declare, by key; of two declarations the one that Python would find first."""
    gathered: dict[str, Any] = {}
    for base in reversed(made.__mro__):
        gathered |= vars(base).get(attribute, {})
    return gathered


def _annotated(namespace: Mapping[str, Any]) -> Collection[str]:
    """The names that a class body annotates."""
    if sys.version_info >= (3, 14) and "__annotations__" not in namespace:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        form = annotationlib.Format.FORWARDREF
        return annotationlib.call_annotate_function(annotate, form).keys() if annotate else ()
    annotations: dict[str, Any] = namespace.get("__annotations__", {})
    return annotations.keys()


def _with(info: FieldInfo, change: object) -> FieldInfo:
    """A field with another default, and perhaps another sentence."""
    info = copy(info)
    if isinstance(change, _Changed):
        info.description, change = change.description, change.default
    if change is not SAME:
        info.default = change
    return info


def _controls(fields: Mapping[str, FieldInfo], knobs: Mapping[str, _Knob]) -> dict[str, Control]:
    """The knobs of a class by the names of their fields: what was declared of them, and what its fields say now."""
    controls = {}
    for key in (key for key in fields if key in knobs):
        info, declared = fields[key], knobs[key]
        number = isinstance(info.default, int | float)
        controls[key] = Control(
            key,
            declared.aliases,
            info.default if number else None,
            declared.low,
            declared.high,
            info.annotation is int,
            info.description or "",
            declared.limit,
            declared.sizes,
        )
    return controls


def _add_schedules(fields: dict[str, FieldInfo], knobs: Collection[str]) -> None:
    """Give every knob its `_schedule` and `_warmup_steps`."""
    for name in knobs:
        if name + SCHEDULE not in fields:
            schedule = field(None, f"Schedule of {name}; none: constant.")
            warmup = field(0, f"Linear warm-up of {name} from 0, in steps.", ge=0)
            fields[name + SCHEDULE] = FieldInfo.from_annotated_attribute(Any, schedule)
            fields[name + WARMUP] = FieldInfo.from_annotated_attribute(int, warmup)
