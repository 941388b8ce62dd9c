"""Reading untrusted files: no links, limited sizes, no blocking."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from rl_training.errors import CheckpointError


class Folder:
    """An open directory: files are read from this very directory, whatever its name becomes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Folder:
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise self.error(f"is no checkpoint directory: {reason(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def read(self, name: str, limit: int) -> bytes:
        """A regular file of at most `limit` bytes. A link is not followed, a pipe is not waited for."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise self.error(f"{name} is no regular file")
                if status.st_size > limit:
                    raise self.error(f"{name} is damaged: {status.st_size} bytes, more than the {limit} due")
                return file.read(status.st_size)
        except (OSError, MemoryError) as error:
            raise self.error(f"{name} cannot be read: {reason(error)}") from error

    def names(self) -> list[str]:
        """The names of all that lies in this directory."""
        return os.listdir(self.descriptor)

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def reason(error: BaseException) -> str:
    """An error in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:200]
