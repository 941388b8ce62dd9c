"""Directories of searches: the config and the space they begin with, and their settings, which are written last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_training.errors import RunError, StorageError, one_line
from rl_training.settings.config import Config
from rl_training.settings.loading import dump_config
from rl_training.settings.yaml import read_text
from rl_training.state import files
from rl_training.state.run_directory import RunDirectory


def begin_folder(
    kind: str, config: Config, space: str | Path, settings: dict[str, Any], run_dir: str | Path | None
) -> Path:
    """Make the directory of a new search: base.yaml, space.yaml and KIND.json."""
    run = RunDirectory.create(
        run_dir, default_name=f"{kind}-{config.algo_name}-{config.env_name}-s{config.seed}"
    )
    try:
        files.replace_file(run.path / "base.yaml", dump_config(config).encode())
        files.replace_file(run.path / "space.yaml", read_text(Path(space)).encode())
        write_settings(run.path, kind, settings)  # last: with it in place, a killed search can go on
    except OSError as error:
        raise StorageError(
            f"cannot write to {run.path}: {error.strerror}; nothing was trained yet"
        ) from error
    return run.path


def write_settings(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    text = json.dumps({"format": 1, **settings}, indent=2)
    files.replace_file(folder / f"{kind}.json", text.encode() + b"\n")


def read_settings(folder: Path, kind: str, what: str) -> dict[str, Any]:
    """KIND.json without its format. RunError in one line where there is none, or where it is damaged."""
    path = folder / f"{kind}.json"
    try:
        saved: dict[str, Any] = json.loads(path.read_bytes())
        if saved.pop("format") != 1:
            raise ValueError("of another format")
    except FileNotFoundError:
        raise RunError(f"{folder}: no {what} here (it has no {kind}.json)") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({one_line(error)})") from error
    return saved
