"""Run directory: layout, lock and manifest."""

from __future__ import annotations

import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rl_training.errors import RunError
from rl_training.state import files
from rl_training.state.formats import FIRST_COVERED, FORMAT
from rl_training.state.reading import digest
from rl_training.state.repository import git_state

ACCEPTED_DAMAGE = "accepted_damage"  # in the manifest: damage in metrics.jsonl that a user went on with
CHECKSUM = "sha256"  # of all other entries of the manifest
MAX_MANIFEST_BYTES = 16 * 2**20
PACKAGES = ("rl-training", "torch", "numpy", "numba", "gymnasium", "ale-py", "mujoco")


class RunLock:
    """The right to write to a run: one process has it at a time, and a kill gives it back."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise RunError(f"{path.parent}: another process is training in this run directory") from None
        _held.add(self)

    def release(self) -> None:
        if self in _held:
            _held.discard(self)
            os.close(self._descriptor)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: set[RunLock] = set()


def _leave_locks_to_the_parent() -> None:
    # A forked worker shares the open file; should it outlive a killed parent, it would keep the lock.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


class RunDirectory:
    """The layout of a run. All in it but `timing.jsonl` and the manifest is a function of the config."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str | None, default_name: str, root: Path | str = "runs") -> RunDirectory:
        """A new run at `path`, which must be empty or not there; without one, at `root/default_name`.

        A default name that is taken gets a number: runs/ppo-CartPole-v1-s1, runs/ppo-CartPole-v1-s1-2, ...
        """
        try:
            if path is None:
                return cls(_numbered(Path(root), default_name))
            path = Path(path)
            if path.exists() and not path.is_dir():
                raise RunError(f"{path}: is not a directory")
            if path.is_dir() and any(not _is_leftover(entry.name) for entry in path.iterdir()):
                raise RunError(f"{path}: is not empty; resume it, or choose another run directory")
            files.make_directory(path)
        except OSError as error:
            raise RunError(f"{path or root}: cannot make the run directory: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """The run at `path`; RunError when there is none."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise RunError(f"{path}: no run directory here")
        if not run.config_path.is_file():
            empty = all(_is_leftover(entry.name) for entry in run.path.iterdir())
            why = "it is empty; `train` can start a run in it" if empty else "it has no config.yaml"
            raise RunError(f"{path}: not a run directory ({why})")
        for part in (run.checkpoints, run.best, run.replay, run.path / "tensorboard", run.path / "wandb"):
            if part.is_symlink():  # what is written and removed there would be outside
                raise RunError(f"{part}: is a symbolic link; a run keeps its files inside its own directory")
        return run

    def lock(self) -> RunLock:
        """Take the right to write here until it is released or the process ends; RunError when taken."""
        try:
            return RunLock(self.path / ".lock")
        except OSError as error:
            raise RunError(f"{self.path}: cannot lock the run directory: {error.strerror}") from error

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timing_path(self) -> Path:
        return self.path / "timing.jsonl"

    @property
    def journal_path(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def replay(self) -> Path:
        return self.path / "replay"

    def write_manifest(self, config: Mapping[str, object], *, threads: int, **more: object) -> dict[str, Any]:
        """Write down what this run is made with: versions, machine, threads, git state and config.

        `more` adds entries such as `order="arrival"`. Values JSON does not know are written as text.
        """
        manifest = {
            "format": FORMAT,
            "started_at": _now(),
            "versions": versions(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpu": cpu(),
            "threads": threads,
            "git": git_state(),
            "config": dict(config),
            **more,
        }
        self._write_manifest(manifest)
        return manifest

    def note(self, entry: str, **about: object) -> None:
        """Add to a list in the manifest what happened to the run after it began, such as damage that was accepted."""
        manifest = self.read_manifest()
        listed = manifest.get(entry)
        manifest[entry] = [*(listed if isinstance(listed, list) else ()), {"at": _now(), **about}]
        self._write_manifest(manifest)

    def _write_manifest(self, manifest: Mapping[str, object]) -> None:
        covered = {**manifest, CHECKSUM: _checksum(manifest)}
        files.replace_file(self.manifest_path, json.dumps(covered, indent=2, default=str).encode() + b"\n")

    def read_manifest(self) -> dict[str, Any]:
        """The manifest; RunError when it cannot be read or a newer version wrote it."""
        try:
            if self.manifest_path.stat().st_size > MAX_MANIFEST_BYTES:
                raise RunError(f"{self.manifest_path}: too large")
            manifest = json.loads(self.manifest_path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            text = getattr(error, "strerror", None) or f"damaged ({error})"
            raise RunError(f"{self.manifest_path}: {text}") from error
        if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
            raise RunError(f"{self.manifest_path}: damaged (no format number)")
        if manifest["format"] > FORMAT:
            raise RunError(
                f"{self.path}: was written by a newer version (format {manifest['format']}); "
                "update rl-training to read it"
            )
        checksum = manifest.pop(CHECKSUM, None)
        if manifest["format"] >= FIRST_COVERED and checksum != _checksum(manifest):
            raise RunError(f"{self.manifest_path}: damaged (its checksum does not match)")
        return manifest


def changed_keys(here: Mapping[str, object], there: Mapping[str, object]) -> list[str]:
    """In which keys two configs differ, as a manifest holds them; a key that one of them lacks is off there."""
    changed = []
    for name in dict.fromkeys([*here, *there]):
        one, other = _as_json(here.get(name)), _as_json(there.get(name))
        off = (name not in here or name not in there) and not one and not other
        if one != other and not off:
            changed.append(name)
    return changed


def _as_json(value: object) -> Any:
    """As JSON has it, which makes lists of tuples, strings of keys, and text of what it does not know."""
    return json.loads(json.dumps(value, default=str))


def _checksum(manifest: Mapping[str, object]) -> str:
    """Of what a manifest says, however it is laid out: results depend on its config and its number of threads."""
    return digest(json.dumps(manifest, default=str).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _is_leftover(name: str) -> bool:
    """Whether a start that was killed or failed before its config was written leaves such a file; it holds nothing."""
    return name in (".lock", "manifest.json") or name.startswith(files.WRITING)


def directory_name(name: str) -> str:
    """What is left of a name in a path: ALE/Pong-v5 and module:EnvId are names of envs, but not of directories."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


def _numbered(root: Path, name: str) -> Path:
    """Make and return the first of root/name, root/name-2, root/name-3, ... that is not there yet."""
    name = directory_name(name)
    files.make_directory(root)
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            os.mkdir(path)  # makes it or fails, at one instant: two processes never get the same
        except FileExistsError:
            number += 1
            continue
        files.sync_directory(root)
        return path


def cpu() -> str:
    """The processor by model and number: on another one sums in floating point may be ordered differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(told[name] for name in ("model name", "cpu family", "model", "stepping") if name in told)


def versions() -> dict[str, str | None]:
    """What results depend on, as it is installed here."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


@cache  # finding one reads all that its package says about itself
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
