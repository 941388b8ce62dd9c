"""Warm-up of the process that seeds are forked from: imports and compilation happen once, before the fork.

A compiled run of a hundred thousand steps takes about a second, and the imports, the environment and the kernels from
the cache as much again. A fork inherits them.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.monitoring.display import SilentDisplay
from rl_training.registry import SHIPPED
from rl_training.runtime import workflows
from rl_training.settings.config import Config
from rl_training.settings.loading import load_config
from rl_training.trust import foreign

# What makes a run short, leaves everything outside of it alone and starts neither threads nor processes.
BRIEF: Mapping[str, Any] = {
    "learning_starts": 1,
    "eval_episodes": 1,
    "torch_threads": 1,
    "observers": [],
    "stop_at": None,
    "tensorboard": False,
    "wandb": False,
    "mlflow": False,
}


def can_warm_up(config: Config) -> bool:
    """Whether a short run of a config touches compiled environments and code of this package alone.

    Whatever else an environment or a user's algorithm starts, a thread or a connection, might not survive a fork.
    """
    here = getattr(config, "fleet", "inline") == "inline" and getattr(config, "num_learners", 1) == 1
    ours = config.algo in SHIPPED and not foreign(config)
    return config.vectorization == "compiled" and config.device == "cpu" and here and ours


def brief(config: Config) -> Config:
    """The config of a run with an update or two and an evaluation."""
    changes = {name: value for name, value in BRIEF.items() if name in type(config).model_fields}
    return load_config(config, **changes, total_timesteps=2 * config.steps_per_iteration)


def warm_up(settings: Mapping[str, Any]) -> None:
    """Train for a moment, in a folder that is gone afterwards. What fails here will be said by the seeds."""
    with (
        warnings.catch_warnings(),
        suppress(Exception),
        tempfile.TemporaryDirectory(prefix="rl_training-") as folder,
    ):
        warnings.simplefilter("ignore")
        workflows.train_until_stopped(
            brief(load_config(settings)), run_dir=Path(folder, "run"), display=SilentDisplay()
        )
    gc.collect()
    gc.freeze()  # what is never looked through again stays shared with the forks
