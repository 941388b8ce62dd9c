"""Valid config keys: fields and aliases of knobs, and hints for unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from rl_training.errors import did_you_mean
from rl_training.registry import algorithms_with
from rl_training.runtime.controls import PARTS, SCHEDULE, WARMUP, split_key, two_spellings
from rl_training.settings.foreign_names import elsewhere, hint_for, our_name
from rl_training.settings.refusals import FieldError

if TYPE_CHECKING:
    from rl_training.settings.config import Config


@cache
def accepted_keys(config_class: type[Config]) -> dict[str, str]:
    """Every key a config of this class may hold -> the field it means."""
    fields = config_class.model_fields
    keys = {name: name for name in fields}
    for name, control in config_class.controls.items():
        keys |= {spelling + part: name + part for spelling in control.aliases for part in PARTS}
    return keys


@cache
def knob_keys(config_class: type[Config]) -> dict[str, tuple[str, str]]:
    """Every key about a knob -> the knob's field, and the spelling of it in the key."""
    controls = config_class.controls.items()
    return {
        spelling + part: (name, spelling)
        for name, control in controls
        for spelling in control.spellings
        for part in PARTS
    }


def fields_of(config_class: type[Config], data: Mapping[str, object]) -> dict[str, str]:
    """Field -> the key it was written under. Refuses unknown keys and two spellings of one knob."""
    accepted = accepted_keys(config_class)
    written: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for key in data:
        if key not in accepted:
            raise FieldError(unknown_key(config_class, key), (key,))
        written[accepted[key]] = key
        if key in knob_keys(config_class):
            knob, spelling = knob_keys(config_class)[key]
            first = spellings.setdefault(knob, spelling)
            if first != spelling:
                raise FieldError(two_spellings(first, spelling), (key,))
    return written


def unknown_key(config_class: type[Config], key: str) -> str:
    algo = config_class.model_fields["algo"].default
    reader = algo if isinstance(algo, str) else config_class.__name__
    fields = config_class.model_fields
    if hint := hint_for(key, fields):
        return f"{key} is no key of {reader}; {hint}"
    knob = split_key(key)
    if knob is not None:
        return f"{key}: {reader} has no knob {knob[0].name}"
    others = [name for name in algorithms_with(key) if name != algo]
    if others:
        return f"{key} belongs to {', '.join(others)}, not to {reader}"
    for part in (SCHEDULE, WARMUP):
        written = key.removesuffix(part)
        name = our_name(written, fields) or written
        if written == key or name not in fields:
            continue
        if name + part in fields:
            return f"{key} is no key of {reader}; here it is {name}{part}"
        called = name if name == written else f"here {written} is {name}, which"
        knobs = ", ".join(field for field in fields if field + part in fields)
        return f"{key}: {called} is fixed for the whole run; what can move are {knobs}"
    if elsewhere(key):
        return f"{key} is no key of {reader}; algorithms that have it call it {elsewhere(key)}"
    return f"unknown key {key!r}{did_you_mean(key, accepted_keys(config_class))}"
