"""Reinforcement learning that resumes exactly.

    from rl_training import load_config, train, resume, fork, evaluate_checkpoint, load_policy
    from rl_training import report, compare, tune

The names above are loaded on first use (PEP 562), so that `import rl_training` and `rl-training --help` do
not wait for torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.reporting.comparison import compare_runs as compare
    from rl_training.reporting.report import write_report as report
    from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, resume, train
    from rl_training.settings.loading import load_config
    from rl_training.tools.forking import fork
    from rl_training.tuning.study import tune

# Threads that wait for work by spinning make torch ten times slower on a machine that does other things too.
# Read by torch when it is loaded; whoever sets it otherwise has their way.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "compare",
    "evaluate_checkpoint",
    "fork",
    "load_config",
    "load_policy",
    "report",
    "resume",
    "train",
    "tune",
]

_HOMES = {
    "load_config": "rl_training.settings.loading:load_config",
    "train": "rl_training.runtime.workflows:train",
    "resume": "rl_training.runtime.workflows:resume",
    "fork": "rl_training.tools.forking:fork",
    "evaluate_checkpoint": "rl_training.runtime.workflows:evaluate_checkpoint",
    "load_policy": "rl_training.runtime.workflows:load_policy",
    "report": "rl_training.reporting.report:write_report",
    "compare": "rl_training.reporting.comparison:compare_runs",
    "tune": "rl_training.tuning.study:tune",
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
