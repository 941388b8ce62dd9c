"""Registry of algorithms, shipped configs, rows of results and trained policies."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_training import parts
from rl_training.errors import ConfigError, did_you_mean

SHIPPED = {
    "ppo": "PPO",
    "a2c": "A2C",
    "trpo": "TRPO",
    "ppg": "PPG",
    "recurrent_ppo": "RecurrentPPO",
    "impala": "IMPALA",
    "appo": "APPO",
    "gail": "GAIL",
    "bc": "BC",
    "sac": "SAC",
    "dqn": "DQN",
    "muzero": "MuZero",
    "gumbel_muzero": "GumbelMuZero",
    "efficientzero": "EfficientZero",
    "scalezero": "ScaleZero",
    "dreamer": "Dreamer",
}
# Where the trainer of an algorithm is, and where its config class is if it can be had without the trainer.
ALGORITHMS: dict[str, Any] = {
    name: f"rl_training.runtime.{name}_trainer:{words}Trainer" for name, words in SHIPPED.items()
}
CONFIGS = {name: f"rl_training.settings.{name}:{words}Config" for name, words in SHIPPED.items()}


ZOO = "zoo:"  # begins the name of a policy that comes with the package
ENTRY_POINTS = "rl_training.algorithms"  # the group in which packages name their trainers


def register(name: str, trainer: object) -> None:
    """Make an algorithm known by a name: its Trainer, or where that is, as `module:Class`.

    A package does without this call: it names its trainers in the entry-point group `rl_training.algorithms`.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{name!r} cannot be the name of an algorithm: use letters, digits and _ only")
    if name in SHIPPED:
        raise ConfigError(f"{name} is a shipped algorithm; choose another name")
    ALGORITHMS[name] = trainer


def trainer_class(name: Any) -> Any:
    """The Trainer of an algorithm; its config class is its attribute `config_class`."""
    if parts.is_name(name):
        return _checked(parts.load(name, "algo"), name)
    place = _place(name)
    return _checked(parts.load(place, "algo") if isinstance(place, str) else place, name)


def config_class_of(name: Any) -> Any:
    """The config class of an algorithm; of a shipped one it comes without torch."""
    if parts.is_name(name):
        return _named(trainer_class(name).config_class, name)
    if isinstance(name, str) and name in CONFIGS:
        return parts.load(CONFIGS[name], "algo")
    return trainer_class(name).config_class


@cache
def _named(config_class: Any, name: str) -> Any:
    """The config class of an algorithm that goes by the name of its class."""
    title = config_class.__name__
    return type(config_class)(
        title,
        (config_class,),
        {
            "__module__": config_class.__module__,
            "__qualname__": title,
            "__doc__": config_class.__doc__,
            "__annotations__": {"algo": str},
            "algo": name,
        },
    )


def _checked(trainer: Any, name: str) -> Any:
    if not isinstance(trainer, type) or not hasattr(trainer, "config_class"):
        raise ConfigError(
            f"algo {name!r} is not a Trainer with a config_class, but {str(trainer)[:80]}", ("algo",)
        )
    return trainer


def _place(name: object) -> Any:
    """The Trainer of a known algorithm, or where it is."""
    if not isinstance(name, str):
        raise ConfigError(f"unknown algorithm {name!r}; there are: {', '.join(algorithms())}")
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    installed = installed_algorithms()
    if name in installed:
        return installed[name]
    hint = did_you_mean(name, [*ALGORITHMS, *installed]) or f"; there are: {', '.join(algorithms())}"
    raise ConfigError(
        f"unknown algorithm {name!r}{hint}; if it is your own, install the package or import the module that "
        "registers it, or name its class: algo: FILE.py:Trainer"
    )


def home_of(name: str) -> dict[str, str]:
    """Where an algorithm that is not shipped comes from, for the manifest: its trainer, and the package it is of."""
    if name in SHIPPED or parts.is_name(name):
        return {}
    trainer = trainer_class(name)
    home = {"trainer": f"{trainer.__module__}:{trainer.__qualname__}"}
    points = [point for point in metadata.entry_points(group=ENTRY_POINTS) if point.name == name]
    if points and points[0].dist is not None:
        home["package"] = f"{points[0].dist.name} {points[0].dist.version}"
    return home


def require_algorithm(name: object, home: object) -> None:
    """Refuse a run whose algorithm is not here, with what its manifest says of where that is."""
    missing = isinstance(name, str) and not parts.is_name(name) and name not in algorithms()
    if missing and isinstance(home, dict) and "trainer" in home:
        package = f" of the package {home['package']}: install it" if "package" in home else ""
        instead = package or "; import the module that registers it, or install its package"
        raise ConfigError(f"unknown algorithm {name!r}; this run's was {home['trainer']}{instead}", ("algo",))


def algorithms() -> list[str]:
    """The names of all algorithms: those shipped, those registered and those of installed packages."""
    return [*ALGORITHMS, *installed_algorithms()]


def installed_algorithms() -> dict[str, str]:
    """The algorithms that installed packages bring, and where they are; nothing of them is imported."""
    found = metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in found if point.name not in ALGORITHMS}


def algorithms_with(key: str) -> list[str]:
    """The algorithms whose config has this field."""
    return [name for name in ALGORITHMS if key in config_class_of(name).model_fields]


def _shipped_folder(name: str = "configs", checkout: str = "") -> Path:
    """A folder of files inside an installed package, or the repository's own in an editable install."""
    package = Path(__file__).parent
    installed = package / name
    return installed if installed.is_dir() else package.parents[1] / (checkout or name)


def shipped_configs() -> list[str]:
    """The names of the configs that come with the package, such as `ppo/cartpole`."""
    folder = _shipped_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


def shipped_config_path(name: str) -> Path:
    """Where the config of this name lies."""
    if name not in shipped_configs():
        raise ConfigError(f"no shipped config is called {name!r}{did_you_mean(name, shipped_configs())}")
    return _shipped_folder() / f"{name}.yaml"


def shipped_file(name: str) -> Path:
    """Where a file that comes with the configs lies, such as `gail/cartpole_expert.npz`; it may not exist."""
    return _shipped_folder() / name


def rows_folder() -> Path:
    """Where the rows lie that `reproduce` knows by name."""
    return _shipped_folder("rows", checkout="results/rows")


def zoo_policies() -> list[str]:
    """The names of the trained policies that come with the package, such as `ppo/cartpole`."""
    folder = _shipped_folder("zoo")
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/state.json"))


def policy_path(path: str | os.PathLike[str]) -> Path:
    """A path to a run or checkpoint; `zoo:ppo/cartpole` is that of a policy that comes with the package."""
    text = os.fspath(path)
    if not text.startswith(ZOO):
        return Path(path)
    name = text.removeprefix(ZOO)
    if name not in zoo_policies():
        hint = did_you_mean(name, zoo_policies()) or "; `rl-training list` shows them"
        raise ConfigError(f"{text}: the zoo has no such policy{hint}")
    return _shipped_folder("zoo") / name
