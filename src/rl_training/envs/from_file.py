"""Environments without a registered id: a class in a file, a callable in a module, or a Python object."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training import parts
from rl_training.errors import ConfigError
from rl_training.parts import FILE, GIVEN, file_module

CALLABLE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def spec_of_file(env_id: str) -> EnvSpec | None:
    """How to make the environment of a file; None for ids of any other form."""
    match = FILE.fullmatch(env_id)
    if match is None:
        return None
    path = str(Path(match["path"]).resolve())
    return EnvSpec(f"file/{match['name']}-v0", entry_point=partial(make_from_file, path, match["name"]))


def make_from_file(path: str, name: str, **kwargs: object) -> gym.Env[Any, Any]:
    """The environment; worker processes call this too."""
    made: gym.Env[Any, Any] = getattr(file_module(path), name)(**kwargs)
    return made


def maker_of_file(env_id: str) -> Callable[..., Any] | None:
    """The class or function of a file; None for ids of any other form, and where there is none."""
    match = FILE.fullmatch(env_id)
    if match is None:
        return None
    return getattr(file_module(str(Path(match["path"]).resolve())), match["name"], None)


def maker_of(env_id: str) -> Callable[..., Any] | None:
    """What makes the environment of `given:Name`, or of `module:name` where the module has a callable of that name.

    None for ids of any other form; one that the module registered is Gymnasium's to make.
    """
    if env_id.startswith(GIVEN):
        return _maker_of_given(env_id)
    match = CALLABLE.fullmatch(env_id)
    if match is None or FILE.fullmatch(env_id):  # a file is never imported by its name
        return None
    module = import_module(match["module"])
    made = None if match["name"] in gym.registry else getattr(module, match["name"], None)
    return made if callable(made) else None


def _maker_of_given(env_id: str) -> Callable[..., Any]:
    """A class or function makes environments; an instance is copied."""
    try:
        thing = parts.load(env_id)
    except ConfigError:
        raise ConfigError(
            f"env_id {env_id!r}: the environment was given as an object in Python, which a run cannot store; give it "
            "again in Python, as in resume(run_dir, env=...)"
        ) from None
    return partial(copy_of, thing) if hasattr(thing, "step") and not isinstance(thing, type) else thing


def copy_of(env: Any, **kwargs: Any) -> Any:
    """A copy of an environment that was given as an instance."""
    if kwargs:
        raise TypeError(
            f"an instance takes no env_kwargs, but {', '.join(kwargs)} were given; pass its class instead"
        )
    try:
        return deepcopy(env)
    except Exception as error:
        raise TypeError(f"this instance cannot be copied ({error}); pass its class or a function") from error
