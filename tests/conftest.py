"""Probe environments are registered, and torch keeps to one thread, in every test; small runs that tests share."""

from collections.abc import Callable
from pathlib import Path

import probes  # noqa: F401
import pytest
import torch
from runs import small_config

from rl_training import train

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a finished small run of tests/runs.py by its name, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("trained")

    def find(name: str) -> Path:
        if not (folder / name).exists():
            train(small_config(name), run_dir=folder / name)
        return folder / name

    return find
