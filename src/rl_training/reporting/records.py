"""What a run wrote down, read for people to look at: any algorithm's, finished or not, from here or from elsewhere.

Only files are read, nothing of the run is imported or built, so a run of an algorithm that is not installed here can
still be looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.config_text import parse_yaml, read_text
from rl_training.errors import ConfigError, RunError, UserError
from rl_training.state.run_directory import RunDirectory

SCORE = "eval/mean_return"
DEEPEST = 3  # levels of folders below a directory in which runs are looked for

Line = dict[str, float]


class Curve(NamedTuple):
    """One metric of a run: its steps and values."""

    steps: np.ndarray
    values: np.ndarray


class Record(NamedTuple):
    """A run as it lies on the disk."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    metrics: list[Line]
    timing: list[Line]

    @property
    def steps(self) -> int:
        """Environment steps that were logged."""
        return int(self.metrics[-1]["step"])

    @property
    def finished(self) -> bool:
        return self.steps >= self.config["total_timesteps"]

    def curve(self, name: str) -> Curve:
        points = [(line["step"], line[name]) for line in self.metrics if name in line]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return Curve(np.array(steps, np.float64), np.array(values, np.float64))


def read_run(path: Path | str) -> Record:
    """The run at `path`. RunError in one line when it is missing, half written, damaged or from a newer version."""
    run = RunDirectory.open(path)
    manifest = run.read_manifest()
    try:
        config = parse_yaml(read_text(run.config_path), str(run.config_path)).data
    except ConfigError as error:
        raise RunError(str(error)) from error
    needed = {"algo": str, "env_id": str, "seed": int, "total_timesteps": int}
    if not isinstance(config, dict) or not all(
        isinstance(config.get(name), kind) for name, kind in needed.items()
    ):
        raise RunError(f"{run.config_path}: not the config of a run (it needs {', '.join(needed)})")
    metrics = read_lines(run.metrics_path)
    if not metrics:
        raise RunError(f"{run.path}: has no metrics yet, so there is nothing to show")
    return Record(run.path, config, manifest, metrics, read_lines(run.timing_path))


def read_lines(path: Path) -> list[Line]:
    """The lines of a log; none if it is not there. A last line that a kill cut off is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    lines = []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            good = isinstance(line, dict) and all(map(_is_number, line.values())) and "step" in line
        except (ValueError, RecursionError):
            good = False
        if not good:
            raise RunError(f"{path}:{number}: damaged (not a flat JSON object of finite numbers with a step)")
        lines.append(line)
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def find_runs(paths: list[Path], warn: Callable[[str], None]) -> list[Record]:
    """The runs at these paths, and those inside them where a path is no run itself, each once.

    A run that was named must be readable; one that was found in a folder and is not is left out with a warning.
    """
    records: dict[Path, Record] = {}
    for path in paths:
        if (path / "config.yaml").is_file() or not path.is_dir():
            records.setdefault(path.resolve(), read_run(path))
            continue
        found = sorted(_runs_inside(path, DEEPEST))
        if not found:
            raise RunError(f"{path}: no run directory, and none inside it")
        for inner in found:
            try:
                records.setdefault(inner.resolve(), read_run(inner))
            except UserError as error:
                warn(f"{error}; left out")
    if not records:
        raise RunError(f"{', '.join(map(str, paths))}: no run that can be read")
    return list(records.values())


def _runs_inside(folder: Path, depth: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            if (path / "config.yaml").is_file():
                yield path
            elif depth > 1:
                yield from _runs_inside(path, depth - 1)
