"""One training run of sheeprl, in its environment.

    python -m benchmarks.peers.sheeprl '{"overrides": ["exp=dreamer_v3_5", ...], "warm_up": 432, "steps": 912, ...}'

Settings: `overrides` of its configs, in its own language; `warm_up` (steps of a first training that is not measured),
`steps`, `seed`. Its logs, videos, checkpoints and its evaluation at the end are off.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from sheeprl.cli import check_configs, run_algorithm
from sheeprl.utils.utils import dotdict

from benchmarks.meter import measured, report

PACKAGES = ("torch", "numpy", "gymnasium", "sheeprl", "lightning")
QUIET = (
    "metric.log_level=0",
    "env.capture_video=False",
    "checkpoint.every=1000000000",
    "checkpoint.save_last=False",
    "algo.run_test=False",
    "model_manager.disabled=True",
    "buffer.memmap=False",
    "env.sync_env=True",
    "fabric.accelerator=cpu",
    "fabric.devices=1",
    "num_threads=1",
)


def train(settings: dict[str, Any], steps: int) -> None:
    """Compose its config and run it: what is measured."""
    changes = [*settings["overrides"], *QUIET, f"algo.total_steps={steps}", f"seed={settings['seed']}"]
    with initialize_config_module(version_base="1.3", config_module="sheeprl.configs"):
        composed = compose(config_name="config", overrides=changes)
    config = dotdict(OmegaConf.to_container(composed, resolve=True, throw_on_missing=True))
    check_configs(config)
    run_algorithm(config)


def main(settings: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where it writes its folder of logs
        torch.set_num_threads(1)
        train(settings, settings["warm_up"])
        _, cost = measured(lambda: train(settings, settings["steps"]))
        os.chdir("/")
    report(settings["steps"], cost, PACKAGES, score=None)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
