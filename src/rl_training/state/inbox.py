"""How a running run is told things: a file in its directory that only its owner can open, and no port.

    {"id": "5f0c83d2", "do": "set", "at": null, "values": {"learning_rate": 0.0001}}      from another terminal
    {"answer": "5f0c83d2", "said": "set learning_rate = 0.0001 from step 1,537"}          from the run

Both append to RUN/.commands. The run makes the file anew, readable and writable by its owner alone, when it begins or
goes on, so nothing that lay in a copied or foreign directory is ever obeyed; and it looks at the file's length between
iterations, fifty times a second at most. A command counts when the run has answered: it is in the journal then.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.errors import RunError
from rl_training.state.run_directory import RunDirectory

NAME = ".commands"
MAX_BYTES = 2**16  # of what a run reads at once
BETWEEN = 0.02  # seconds between two looks of a run at its commands
PATIENCE = 1.0  # seconds between two looks whether the run is still there


class Inbox:
    """The run's end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)
        self._position, self._looked = 0, -BETWEEN

    def has_news(self) -> bool:
        """Whether something was written; a run whose iterations are short looks after some of them only."""
        now = time.monotonic()
        if now < self._looked + BETWEEN:
            return False
        self._looked = now
        return os.fstat(self._descriptor).st_size != self._position

    def take(self) -> list[dict[str, Any]]:
        """The commands that have come since the last look."""
        read = os.pread(self._descriptor, MAX_BYTES, self._position)
        whole, end, _ = read.rpartition(b"\n")
        self._position += len(whole + end) if end or len(read) < MAX_BYTES else len(read)
        return [said for said in map(_parsed, whole.splitlines()) if "answer" not in said and "id" in said]

    def answer(self, command: Mapping[str, Any], **said: object) -> None:
        os.write(self._descriptor, _line({"answer": command["id"], **said}))

    def close(self) -> None:
        os.close(self._descriptor)
        with suppress(OSError):
            self.path.unlink()


def send(
    run_dir: Path | str, do: str, at: int | None = None, values: Mapping[str, object] | None = None
) -> str:
    """Tell a running run something, and wait until it has taken it: what it says. RunError where it refuses."""
    run = RunDirectory.open(run_dir)
    try:
        descriptor = os.open(run.path / NAME, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _nobody(run) from None
    except OSError as error:
        raise RunError(f"{run.path}: only the owner of a run can steer it ({error.strerror})") from None
    try:
        if not _is_training(run):
            raise _nobody(run)
        position, name = os.fstat(descriptor).st_size, secrets.token_hex(8)
        os.write(descriptor, _line({"id": name, "do": do, "at": at, "values": dict(values or {})}))
        looked = time.monotonic()
        while True:
            for line in _read(descriptor, position).splitlines():
                if (said := _parsed(line)).get("answer") == name:
                    if "refused" in said:
                        raise RunError(f"{run.path}: {said['refused']}")
                    return str(said.get("said"))
            time.sleep(0.02)
            if time.monotonic() > looked + PATIENCE:
                looked = time.monotonic()
                if os.fstat(descriptor).st_nlink == 0 or not _is_training(run):
                    raise RunError(f"{run.path}: the run ended before it took the command; nothing was done")
    finally:
        os.close(descriptor)


def _nobody(run: RunDirectory) -> RunError:
    return RunError(
        f"{run.path}: no process is training this run; resume it first, or change it in a fork: "
        f"rl-training fork {run.path} KEY=VALUE"
    )


def _is_training(run: RunDirectory) -> bool:
    try:
        run.lock().release()
    except RunError:
        return True
    return False


def _read(descriptor: int, position: int) -> bytes:
    parts = []
    while part := os.pread(descriptor, MAX_BYTES, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _line(said: Mapping[str, object]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
