"""Environments of a file: `my_env.py:MyEnv` makes the class MyEnv of that very file.

Only this file is loaded, from its path. `sys.path` stays as it is, so that nothing that lies beside it can take the
place of an installed module.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

FILE = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")


def spec_of_file(env_id: str) -> EnvSpec | None:
    """How to make the environment of a file; None for ids of any other form."""
    match = FILE.fullmatch(env_id)
    if match is None:
        return None
    path = str(Path(match["path"]).resolve())
    return EnvSpec(f"file/{match['name']}-v0", entry_point=partial(make_from_file, path, match["name"]))


def make_from_file(path: str, name: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """The environment; worker processes call this too."""
    made: gym.Env[Any, Any] = getattr(_module(path), name)(**kwargs)
    return made


def _module(path: str) -> ModuleType:
    """The file as a module, under a name that no installed module has."""
    title = f"rl_training file {path}"
    if title not in sys.modules:
        spec = importlib.util.spec_from_file_location(title, path)
        if spec is None or spec.loader is None or not Path(path).is_file():
            raise ModuleNotFoundError(f"no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[title]
            raise
    return sys.modules[title]
