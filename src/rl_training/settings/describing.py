"""Descriptions of the fields of a config class, for `rl-training describe` and the pages."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from rl_training.runtime.controls import SCHEDULE, WARMUP, Control
from rl_training.settings.config import Config, alternatives
from rl_training.settings.yaml import to_yaml


class FieldRow(NamedTuple):
    """One field of a config class, in words."""

    name: str
    type: str
    default: str
    range: str
    aliases: tuple[str, ...]
    sentence: str
    knob: bool  # whether it also has <name>_schedule and <name>_warmup_steps


def describe_config(config_class: type[Config]) -> list[FieldRow]:
    """A row for each field; those of schedules and warm-ups are told by their knob's `knob`."""
    rows = []
    controls = config_class.controls
    beside = {name + part for name in controls for part in (SCHEDULE, WARMUP)}
    for name, info in config_class.model_fields.items():
        if name in beside:
            continue
        control = controls.get(name)
        aliases = control.aliases if control else ()
        default = (
            "required" if info.is_required() else "none" if info.default is None else to_yaml(info.default)
        )
        sentence = info.description or ""
        rows.append(
            FieldRow(
                name,
                _type_name(info.annotation),
                default,
                _range(control, info),
                aliases,
                sentence,
                bool(control),
            )
        )
    return rows


def _type_name(annotation: object) -> str:
    simple = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}
    names = []
    for kind in alternatives(annotation):
        if get_origin(kind) is Annotated:
            names.append(_type_name(kind))
        elif get_origin(kind) is Literal:
            names += [str(value) for value in get_args(kind)]
        elif get_origin(kind) is tuple:
            names.append(f"list of {_type_name(get_args(kind)[0])}s")
        else:
            names.append(simple.get(kind, "mapping"))
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _range(control: Control | None, info: FieldInfo) -> str:
    """The limits of a field: its own and its control's."""
    low, high = (control.low, control.high) if control else (None, None)
    words = []
    for limit in info.metadata:
        low = getattr(limit, "ge", low)
        high = getattr(limit, "le", high)
        words += [f"below {limit.lt:g}"] if hasattr(limit, "lt") else []
        words += [f"above {limit.gt:g}"] if hasattr(limit, "gt") else []
    if low == -math.inf:
        low = None
    if low is not None and high is not None and high != math.inf:
        words.insert(0, f"{low:g} to {high:g}")
    elif low is not None:
        words.insert(0, f"at least {low:g}")
    return ", ".join(words)
