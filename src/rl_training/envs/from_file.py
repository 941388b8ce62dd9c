"""Environments of a file: `my_env.py:MyEnv` makes the class MyEnv of that very file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training.parts import FILE, file_module


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
