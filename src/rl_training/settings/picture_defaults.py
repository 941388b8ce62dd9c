"""Defaults that depend on the observation: those of environments with image observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_training.runtime.controls import SCHEDULE
from rl_training.settings.config import ATARI, Config
from rl_training.settings.yaml import to_yaml


def with_picture_defaults(config: Config, sees_pictures: Callable[[Config], bool] | None = None) -> Config:
    """The config, with its class's defaults for pictures in the fields that nobody wrote, if it is to see pictures.

    Resolved before a run begins: all that is saved of it holds the values themselves. Without `sees_pictures`, which
    makes the environment, only those are known whose id says it.
    """
    changes = unwritten(config)
    named = config.env_id.startswith(ATARI)
    if not changes or not (named or (sees_pictures is not None and sees_pictures(config))):
        return config
    written = {name: getattr(config, name) for name in config.model_fields_set}
    return type(config)(**written | changes)


def unwritten(config: Config) -> dict[str, Any]:
    """The defaults for pictures of fields that the user left alone, that would change something."""
    written = config.model_fields_set
    return {
        name: value
        for name, value in type(config).for_pictures.items()
        if name not in written and name + SCHEDULE not in written and getattr(config, name) != value
    }


def difference(config: Config, resolved: Config) -> str:
    """What was resolved, in words."""
    changed = [
        f"{name}: {to_yaml(getattr(resolved, name))}"
        for name in type(config).for_pictures
        if getattr(config, name) != getattr(resolved, name)
    ]
    return f"defaults for pictures: {', '.join(changed)}" if changed else ""
