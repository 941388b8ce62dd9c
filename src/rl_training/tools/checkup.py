"""Check of the installation: versions, devices, threads, extras, and a short run that is resumed."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rl_training.compiling import cache, can_write
from rl_training.errors import add_extra, one_line
from rl_training.extras import EXTRAS, missing_packages
from rl_training.runtime.disk import written_size
from rl_training.runtime.trainer import PHYSICAL_CORES
from rl_training.runtime.workflows import evaluate_checkpoint, train
from rl_training.settings.loading import load_config
from rl_training.state import checkpoints
from rl_training.state.run_directory import RunDirectory, versions
from rl_training.tools.forking import fork

LARGEST = 5  # runs that are listed with their sizes
SMALL_RUN = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 1024,
    "num_envs": 4,
    "num_steps": 64,
    "hidden_sizes": [16],
    "eval_episodes": 2,
    "checkpoint_interval": 512,
}


def check_up() -> dict[str, Any]:
    """Everything worth knowing before a run, as plain values."""
    return {
        "versions": versions(),
        "devices": _devices(),
        "threads": {
            "usable cores": len(os.sched_getaffinity(0)),
            "torch": PHYSICAL_CORES,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        },
        "cache": _cache(),
        "disk": _disk(),
        "extras": {name: _extra(name) for name in EXTRAS},
        "self_test": self_test(),
    }


def _devices() -> dict[str, str]:
    names = {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return {"cpu": torch.backends.cpu.get_cpu_capability()} | (names or {"cuda": "none found by torch"})


def _cache() -> dict[str, str]:
    """Where compiled functions are kept, and whose that is."""
    folder, why, _ = cache()
    if folder is None:
        return {"folder": "none: every start compiles", "chosen": why}
    try:
        owner = folder.owner()
    except (KeyError, OSError):  # a user without a name, or no folder yet
        owner = f"uid {folder.stat().st_uid}" if folder.exists() else "nobody yet"
    return {
        "folder": str(folder),
        "chosen": why,
        "writable": "yes" if can_write(folder) else "no",
        "owner": owner,
    }


def _disk() -> dict[str, str]:
    """Free space here, and what the checkpoints and replay segments of the largest runs in runs/ take."""
    taken = {}
    for run in map(RunDirectory, Path("runs").glob("*")):
        paths = checkpoints.listed(run.checkpoints)
        if paths:
            size = sum(map(checkpoints.size_of, [*paths, run.replay]))
            taken[str(run.path)] = (size, f"{written_size(size)} in {len(paths)} checkpoints")
    largest = sorted(taken, key=lambda name: -taken[name][0])[:LARGEST]
    return {"free": written_size(shutil.disk_usage(".").free)} | {name: taken[name][1] for name in largest}


def _extra(name: str) -> dict[str, Any]:
    missing = missing_packages(name)
    add = add_extra(name).strip("`")
    return {"what_for": EXTRAS[name].what_for, "installed": not missing, "missing": missing, "add": add}


def self_test() -> list[dict[str, Any]]:
    """Train a small run, go on from its middle and compare, play it; each with whether it worked."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run, again = Path(folder, "run"), Path(folder, "again")

        def trains() -> None:
            train(load_config(SMALL_RUN), run_dir=run, quiet=True)

        def goes_on_exactly() -> None:
            first, last = sorted((run / "checkpoints").iterdir())
            fork(first, run_dir=again, quiet=True)
            for name in ("metrics.jsonl", f"checkpoints/{last.name}/weights.safetensors"):
                if (run / name).read_bytes() != (again / name).read_bytes():
                    raise RuntimeError(f"{name} differs")

        def plays() -> None:
            evaluate_checkpoint(run, episodes=1)

        return [
            _tried("trains PPO on CartPole-v1 for 1,024 steps", trains),
            _tried("resumes from the middle, byte for byte", goes_on_exactly),
            _tried("plays an episode with the trained policy", plays),
        ]


def _tried(what: str, test: Callable[[], None]) -> dict[str, Any]:
    try:
        test()
    except Exception as error:  # whatever is broken here is what the user came to hear
        return {"what": f"{what}: {one_line(error)}", "ok": False}
    return {"what": what, "ok": True}
