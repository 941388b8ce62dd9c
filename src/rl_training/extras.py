"""The optional extras: what each is for, what it installs, and the error when it is missing.

Imports nothing of them: a module is looked for, not loaded.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from rl_training.errors import UserError, add_extra


class Extra(NamedTuple):
    """One extra of pyproject.toml."""

    what_for: str
    packages: dict[str, str]  # name on the package index -> module


EXTRAS = {
    "atari": Extra("Atari games", {"ale-py": "ale_py"}),
    "box2d": Extra("LunarLander and the other Box2D environments", {"box2d": "Box2D"}),
    "dm-control": Extra(
        "the DeepMind Control Suite", {"shimmy": "shimmy", "dm_control": "dm_control", "imageio": "imageio"}
    ),
    "minatar": Extra("MinAtar", {"MinAtar": "minatar"}),
    "minari": Extra("Minari datasets", {"minari": "minari", "h5py": "h5py"}),
    "minigrid": Extra("MiniGrid and BabyAI", {"minigrid": "minigrid"}),
    "mujoco": Extra("MuJoCo environments", {"mujoco": "mujoco", "imageio": "imageio"}),
    "onnx": Extra(
        "export --to FILE.onnx", {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    ),
    "pettingzoo": Extra("PettingZoo's parallel environments", {"pettingzoo": "pettingzoo", "mpe2": "mpe2"}),
    "plot": Extra("pictures: schedule --png, compare --png; imagine --video", {"matplotlib": "matplotlib"}),
    "popgym": Extra("POPGym", {"popgym": "popgym"}),
    "ray": Extra("fleet: ray", {"ray": "ray"}),
    "tensorboard": Extra("tensorboard: true", {"tensorboard": "tensorboard"}),
    "tune": Extra("tune, evolve", {"optuna": "optuna", "matplotlib": "matplotlib"}),
    "wandb": Extra("wandb: true", {"wandb": "wandb"}),
    "mlflow": Extra(
        "mlflow: true", {"mlflow-skinny": "mlflow", "sqlalchemy": "sqlalchemy", "alembic": "alembic"}
    ),
    "video": Extra(
        "play, the video of a report", {"imageio-ffmpeg": "imageio_ffmpeg", "pygame-ce": "pygame"}
    ),
}


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    packages = EXTRAS[extra].packages
    return [name for name, module in packages.items() if importlib.util.find_spec(module) is None]


def require_extra(extra: str, what: str) -> None:
    """Refuse, in one line, what cannot be done without an extra; `what` is how the user asked for it."""
    missing = missing_packages(extra)
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: {add_extra(extra)}")
