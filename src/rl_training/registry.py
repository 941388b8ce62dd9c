"""Which algorithms and which configs there are."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, did_you_mean

ALGORITHMS = {
    "ppo": "rl_training.runtime.ppo_trainer:PPOTrainer",
    "a2c": "rl_training.runtime.a2c_trainer:A2CTrainer",
    "trpo": "rl_training.runtime.trpo_trainer:TRPOTrainer",
    "ppg": "rl_training.runtime.ppg_trainer:PPGTrainer",
    "recurrent_ppo": "rl_training.runtime.recurrent_ppo_trainer:RecurrentPPOTrainer",
    "impala": "rl_training.runtime.impala_trainer:IMPALATrainer",
    "appo": "rl_training.runtime.appo_trainer:APPOTrainer",
    "gail": "rl_training.runtime.gail_trainer:GAILTrainer",
    "sac": "rl_training.runtime.sac_trainer:SACTrainer",
    "dqn": "rl_training.runtime.dqn_trainer:DQNTrainer",
    "muzero": "rl_training.runtime.muzero_trainer:MuZeroTrainer",
    "gumbel_muzero": "rl_training.runtime.gumbel_muzero_trainer:GumbelMuZeroTrainer",
    "efficientzero": "rl_training.runtime.efficientzero_trainer:EfficientZeroTrainer",
    "scalezero": "rl_training.runtime.scalezero_trainer:ScaleZeroTrainer",
    "dreamer": "rl_training.runtime.dreamer_trainer:DreamerTrainer",
}


def trainer_class(name: Any) -> Any:
    """The Trainer of an algorithm; its config class is its attribute `config_class`."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        hint = did_you_mean(name, ALGORITHMS) if isinstance(name, str) else ""
        raise ConfigError(f"unknown algorithm {name!r}{hint or '; there are: ' + ', '.join(ALGORITHMS)}")
    module, _, attribute = ALGORITHMS[name].partition(":")
    return getattr(import_module(module), attribute)


def algorithms_with(key: str) -> list[str]:
    """The algorithms whose config has this field, among those whose dependencies are installed."""
    names = []
    for name in ALGORITHMS:
        with suppress(ImportError):
            if key in trainer_class(name).config_class.model_fields:
                names.append(name)
    return names


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
