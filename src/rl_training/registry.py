"""Which algorithms and which configs there are."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

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
    "sac": "SAC",
    "dqn": "DQN",
    "muzero": "MuZero",
    "gumbel_muzero": "GumbelMuZero",
    "efficientzero": "EfficientZero",
    "scalezero": "ScaleZero",
    "dreamer": "Dreamer",
}
# Where the trainer of an algorithm is, and where its config class is if it can be had without the trainer.
ALGORITHMS = {name: f"rl_training.runtime.{name}_trainer:{words}Trainer" for name, words in SHIPPED.items()}
CONFIGS = {name: f"rl_training.settings.{name}:{words}Config" for name, words in SHIPPED.items()}


def trainer_class(name: Any) -> Any:
    """The Trainer of an algorithm; its config class is its attribute `config_class`."""
    return _imported(ALGORITHMS[_known(name)])


def config_class_of(name: Any) -> Any:
    """The config class of an algorithm; of a shipped one it comes without torch."""
    return _imported(CONFIGS[name]) if _known(name) in CONFIGS else trainer_class(name).config_class


def _known(name: Any) -> str:
    if not isinstance(name, str) or name not in ALGORITHMS:
        hint = did_you_mean(name, ALGORITHMS) if isinstance(name, str) else ""
        raise ConfigError(f"unknown algorithm {name!r}{hint or '; there are: ' + ', '.join(ALGORITHMS)}")
    return name


def _imported(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def algorithms_with(key: str) -> list[str]:
    """The algorithms whose config has this field."""
    return [name for name in ALGORITHMS if key in config_class_of(name).model_fields]


def _shipped_folder() -> Path:
    """The configs inside an installed package, or those of the repository in an editable install."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


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
