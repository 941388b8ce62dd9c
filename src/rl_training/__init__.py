"""Reinforcement learning that resumes exactly.

    from rl_training import load_config, train, resume, fork, evaluate_checkpoint, load_policy
    from rl_training import train_seeds, report, compare, tune, evolve
    from rl_training import Config, Trainer, register, ...    (an algorithm of one's own: docs/extending.md)

The names above are loaded on first use (PEP 562), so that `import rl_training` and `rl-training --help` do
not wait for torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.data.collector import Policy
    from rl_training.registry import register
    from rl_training.reporting.comparison import compare_runs as compare
    from rl_training.reporting.report import write_report as report
    from rl_training.runtime.controls import Knobs
    from rl_training.runtime.metrics import Metrics
    from rl_training.runtime.observers import Observer
    from rl_training.runtime.off_policy import OffPolicyTrainer
    from rl_training.runtime.on_policy import OnPolicyTrainer
    from rl_training.runtime.optim import Adam
    from rl_training.runtime.trainer import Trainer
    from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, resume, train
    from rl_training.settings.config import Config
    from rl_training.settings.families import OffPolicyConfig, OnPolicyConfig
    from rl_training.settings.fields import changed, field, knob
    from rl_training.settings.loading import load_config
    from rl_training.state.stateful import Stateful
    from rl_training.tools.experiments import train_seeds
    from rl_training.tools.forking import fork
    from rl_training.tuning.evolution import evolve
    from rl_training.tuning.study import tune

# Threads that wait for work by spinning make torch ten times slower on a machine that does other things too.
# Read by torch when it is loaded; whoever sets it otherwise has their way.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0.dev0"

__all__ = [
    "Adam",
    "Config",
    "Knobs",
    "Metrics",
    "Observer",
    "OffPolicyConfig",
    "OffPolicyTrainer",
    "OnPolicyConfig",
    "OnPolicyTrainer",
    "Policy",
    "Stateful",
    "Trainer",
    "__version__",
    "changed",
    "compare",
    "evaluate_checkpoint",
    "evolve",
    "field",
    "fork",
    "knob",
    "load_config",
    "load_policy",
    "register",
    "report",
    "resume",
    "train",
    "train_seeds",
    "tune",
]

_HOMES = {
    "load_config": "rl_training.settings.loading:load_config",
    "train": "rl_training.runtime.workflows:train",
    "train_seeds": "rl_training.tools.experiments:train_seeds",
    "resume": "rl_training.runtime.workflows:resume",
    "fork": "rl_training.tools.forking:fork",
    "evaluate_checkpoint": "rl_training.runtime.workflows:evaluate_checkpoint",
    "load_policy": "rl_training.runtime.workflows:load_policy",
    "report": "rl_training.reporting.report:write_report",
    "compare": "rl_training.reporting.comparison:compare_runs",
    "tune": "rl_training.tuning.study:tune",
    "evolve": "rl_training.tuning.evolution:evolve",
    # What an algorithm of one's own is made of: docs/extending.md.
    "Adam": "rl_training.runtime.optim:Adam",
    "Config": "rl_training.settings.config:Config",
    "Knobs": "rl_training.runtime.controls:Knobs",
    "Metrics": "rl_training.runtime.metrics:Metrics",
    "Observer": "rl_training.runtime.observers:Observer",
    "OffPolicyConfig": "rl_training.settings.families:OffPolicyConfig",
    "OffPolicyTrainer": "rl_training.runtime.off_policy:OffPolicyTrainer",
    "OnPolicyConfig": "rl_training.settings.families:OnPolicyConfig",
    "OnPolicyTrainer": "rl_training.runtime.on_policy:OnPolicyTrainer",
    "Policy": "rl_training.data.collector:Policy",
    "Stateful": "rl_training.state.stateful:Stateful",
    "Trainer": "rl_training.runtime.trainer:Trainer",
    "changed": "rl_training.settings.fields:changed",
    "field": "rl_training.settings.fields:field",
    "knob": "rl_training.settings.fields:knob",
    "register": "rl_training.registry:register",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rl_training' has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(home), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
