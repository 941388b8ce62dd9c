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
from rl_training.runtime.observers import Observer
from rl_training.settings.config import Config
from rl_training.settings.loading import load_config
from rl_training.trust import foreign

# What makes a run short, leaves everything outside of it alone and starts neither threads nor processes.
BRIEF: Mapping[str, Any] = {
    "learning_starts": 1,
    "policy_iterations": 1,
    "auxiliary_minibatches": 1,
    "eval_episodes": 1,
    "torch_threads": 1,
    "observers": ["rl_training.tools.warming:UntilLearned"],
    "stop_at": None,
    "log_interval": 1,
    "tensorboard": False,
    "wandb": False,
    "mlflow": False,
}


class UntilLearned(Observer):
    """Stops a run in its second iteration, or later: once an update was made.

    A replay may have to fill first: one of games holds none before a game has ended, one of sequences none before
    they are long enough.
    """

    def __init__(self) -> None:
        self.lines, self.learned = 0, False

    def on_log(self, step: int, metrics: Mapping[str, float]) -> str | None:
        self.lines += 1
        self.learned = self.learned or any("loss" in name for name in metrics)
        return "it has learned" if self.learned and self.lines > 1 else None


def can_warm_up(config: Config) -> bool:
    """Whether a short run of a config touches compiled environments and code of this package alone.

    Whatever else an environment or a user's algorithm starts, a thread or a connection, might not survive a fork.
    """
    here = getattr(config, "fleet", "inline") == "inline" and getattr(config, "num_learners", 1) == 1
    ours = config.algo in SHIPPED and not foreign(config)
    return config.vectorization == "compiled" and config.device == "cpu" and here and ours


def brief(config: Config) -> Config:
    """The config of a run that ends when it has learned, with an evaluation."""
    changes = {name: value for name, value in BRIEF.items() if name in type(config).model_fields}
    return load_config(config, **changes)


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
