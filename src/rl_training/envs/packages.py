"""Environment packages installed by extras: their ids, and the modules that register them."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import gymnasium as gym

from rl_training.errors import ConfigError, add_extra
from rl_training.extras import missing_packages


class Package(NamedTuple):
    """Where ids that begin like this come from."""

    extra: str
    module: str | None = (
        None  # which registers them when it is imported; none where Gymnasium knows them already
    )
    mends: bool = False  # whether that module also changes what is registered already
    revision: int = 1  # of what its environments do here: docs/formats.md


PACKAGES = {
    "ALE/": Package("atari", "ale_py"),
    "MiniGrid-": Package("minigrid", "minigrid"),
    "BabyAI-": Package("minigrid", "minigrid"),
    "MinAtar/": Package("minatar", "rl_training.envs.minatar_games", mends=True, revision=2),
    "popgym-": Package("popgym", "popgym"),
    "dm_control/": Package("dm-control", "shimmy"),
    "LunarLander": Package("box2d"),
    "BipedalWalker": Package("box2d"),
    "CarRacing-": Package("box2d"),
}


def package_of(env_id: str) -> Package | None:
    return next((found for prefix, found in PACKAGES.items() if env_id.startswith(prefix)), None)


def register_package(env_id: str) -> None:
    """Have the package of an id register its environments; refuse, in one line, where its extra is missing."""
    package = package_of(env_id)
    if package is None:
        return
    missing = missing_packages(package.extra)
    if missing:
        raise ConfigError(
            f"env_id {env_id!r} needs {' and '.join(missing)}: {add_extra(package.extra)}", ("env_id",)
        )
    if package.module is not None and (package.mends or env_id not in gym.registry):
        module = import_module(package.module)
        getattr(module, "register_envs", lambda: None)()  # of those that do not by being imported
