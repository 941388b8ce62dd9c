"""Durable writes: the only module that writes files which must survive a kill or a power cut.

A file counts as written only after `fsync`; a name counts only after `fsync` of the directory that holds it.
All calls go through `os.`, so that a test can make any of them fail.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from rl_training.errors import RunError

COPY_BYTES = 2**20
WRITING, REPLACED, REMOVING = ".writing-", ".replaced-", ".removing-"


def write_file(path: Path, data: bytes) -> None:
    """Create `path` with `data` on the disk; never through a link, never over a file that is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Give `path` new contents at one instant: readers and kills see the old file or the new one."""
    writing = path.with_name(WRITING + path.name)
    writing.unlink(missing_ok=True)
    try:
        write_file(writing, data)
        os.replace(writing, path)
    except OSError:
        writing.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def link(source: Path, target: Path) -> None:
    """Give a file that never changes a second name, so that two runs share its bytes; elsewhere it is copied."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def make_directory(path: Path) -> None:
    """Create `path`, and what is missing above it, with durable names."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if path.is_dir():  # someone else was faster
            return
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def publish_directory(aside: Path, final: Path) -> None:
    """Let the complete directory `aside` become `final`, a sibling, at one instant.

    A directory that is `final` already steps aside first under the name REPLACED + name. A kill between the
    two renames leaves no `final` but both others, complete.
    """
    sync_directory(aside)
    replaced = final.with_name(REPLACED + final.name)
    replaces = final.exists()
    if replaces:
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(final, replaced)
    try:
        os.rename(aside, final)
    except OSError:
        if replaces:
            os.rename(replaced, final)
        raise
    sync_directory(final.parent)
    if replaces:
        shutil.rmtree(replaced, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory as far as possible; nobody sees half of it under its own name."""
    removing = path.with_name(REMOVING + path.name)
    try:
        os.rename(path, removing)
    except OSError:
        return
    shutil.rmtree(removing, ignore_errors=True)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or directory is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


class HeldDirectory:
    """A directory that a process writes to for long, and notices when it is no longer where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_here(self) -> bool:
        return _is_at(self._descriptor, self.path)

    def moved_to(self) -> Path | None:
        """Where it is now; None if it was removed, or where the system does not say."""
        try:
            place = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        except OSError:
            return None
        return place if _is_at(self._descriptor, place) else None

    def close(self) -> None:
        os.close(self._descriptor)


class AppendLog:
    """A file of lines that only grows, and is cut back to a known length when a run resumes.

    `write` collects, `flush` hands over to the system, `fsync` makes durable. After a failed write nothing is
    lost or doubled: what the system did not take is kept and goes first the next time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        self._waiting = bytearray()
        self._written = os.fstat(self._descriptor).st_size
        sync_directory(path.parent)  # a checkpoint that counts on this file must find its name

    def tell(self) -> int:
        """The length of the log in bytes, with what is not flushed yet."""
        return self._written + len(self._waiting)

    def truncate(self, length: int) -> None:
        """Cut the log back to `length` bytes."""
        self.flush()
        if length > self._written:
            raise RunError(f"{self.path}: {self._written} bytes are left of {length}; the file was truncated")
        os.ftruncate(self._descriptor, length)
        self._written = length

    def restore(self) -> bool:
        """Write the log again where someone removed it or put another file in its place; whether that was so.

        The open file still holds every byte, whatever became of its name.
        """
        if _is_at(self._descriptor, self.path):
            return False
        self.flush()
        writing = self.path.with_name(WRITING + self.path.name)
        writing.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(writing, flags, 0o666)
        try:
            position = 0
            while part := os.pread(self._descriptor, COPY_BYTES, position):
                position += os.write(copy, part)
            os.fsync(copy)
            os.replace(writing, self.path)
        except OSError:
            os.close(copy)
            raise
        sync_directory(self.path.parent)
        os.close(self._descriptor)
        self._descriptor = copy
        return True

    def write(self, data: bytes) -> None:
        self._waiting += data

    def flush(self) -> None:
        while self._waiting:
            count = os.write(self._descriptor, self._waiting)
            self._written += count
            del self._waiting[:count]

    def fsync(self) -> None:
        """Flush, and wait until the disk has it."""
        self.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            try:
                self.flush()
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> AppendLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
