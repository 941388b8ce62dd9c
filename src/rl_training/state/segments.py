"""Segments: immutable files of arrays next to the checkpoints, for append-only data.

`RUN/replay/` holds them. Each is written once, aside, synced and renamed into place. A checkpoint lists those it
counts on with their sizes and SHA-256, so a replay of many gigabytes is saved by writing what is new. What no
checkpoint lists any more is removed after a new checkpoint is in place, and not before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from rl_training.errors import CheckpointError
from rl_training.state import files
from rl_training.state.leaves import NUMPY_DTYPES, require_bools
from rl_training.state.reading import Folder, digest, reason

NAME = re.compile(r"[a-z]{1,20}-[0-9]{12}\.safetensors")
SUFFIX = ".safetensors"
MAX_SEGMENT_BYTES = 4 * 2**30
MAX_SEGMENTS = 1_000_000

Entries = dict[str, dict[str, Any]]  # name -> {"bytes": 123, "sha256": "..."}


class SegmentStore:
    """The segments of one run, and the list of those that the next checkpoint shall count on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: Entries = {}

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a segment. A file of this name that no entry lists is what a killed run left, and is replaced."""
        assert NAME.fullmatch(name) and name not in self.entries, name
        data = format_arrays({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        if self.folder.is_symlink():
            raise OSError(None, f"{self.folder} is a link")
        files.make_directory(self.folder)
        files.replace_file(self.folder / name, data)
        self.entries[name] = {"bytes": len(data), "sha256": digest(data)}

    def read(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a listed segment, verified. Raises CheckpointError."""
        if name not in self.entries:
            raise CheckpointError(f"{self.folder}: the checkpoint does not list {name}")
        with _open(self.folder) as folder:
            data = _verified(folder, name, self.entries[name])
            try:
                arrays = parse_arrays(data)
            except (SafetensorError, ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
                raise folder.error(f"{name} cannot be read: {reason(error)}") from error
            if any(array.dtype not in NUMPY_DTYPES for array in arrays.values()):
                raise folder.error(f"{name} holds what is no number")
            for key, array in arrays.items():
                require_bools(array, f"{name}: {key}")
        return arrays

    def forget_missing(self) -> int:
        """List no more what is not there, or not of its size; how many. Their owner then writes them again."""
        listed = len(self.entries)
        self.entries = {
            name: entry for name, entry in self.entries.items() if _size(self.folder / name) == entry["bytes"]
        }
        return listed - len(self.entries)

    def keep(self, names: set[str]) -> None:
        """From now on list none but these."""
        self.entries = {name: entry for name, entry in self.entries.items() if name in names}

    def part(self, number: int) -> PartOfStore:
        """The segments of one of several owners, under names of its own."""
        return PartOfStore(self, number)


class PartOfStore:
    """A store inside a store: what one owner calls `replay-000000000007` is `replay-002000000007` there, for part 2."""

    def __init__(self, whole: SegmentStore, number: int) -> None:
        self.whole, self.number = whole, number

    def __contains__(self, name: str) -> bool:
        return self._outside(name) in self.whole

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.whole.write(self._outside(name), arrays)

    def read(self, name: str) -> dict[str, np.ndarray]:
        return self.whole.read(self._outside(name))

    def keep(self, names: set[str]) -> None:
        """From now on list none of its own but these."""
        others = {name for name in self.whole.entries if not self._mine(name)}
        self.whole.keep(others | {self._outside(name) for name in names})

    def _outside(self, name: str) -> str:
        kind, _, number = name.removesuffix(SUFFIX).rpartition("-")
        assert int(number) < 10**9 and self.number < 1000, name
        return f"{kind}-{self.number:03d}{int(number):09d}{SUFFIX}"

    def _mine(self, name: str) -> bool:
        return name.rpartition("-")[2].startswith(f"{self.number:03d}")


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return -1


def check_entries(entries: object) -> Entries:
    """The list of segments in a checkpoint, if it has the right form; ValueError otherwise."""
    if not isinstance(entries, dict) or len(entries) > MAX_SEGMENTS:
        raise ValueError("its list of segments is invalid")
    for name, entry in entries.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"not the name of a segment: {name!r:.80}")
        if not (isinstance(entry, dict) and entry.keys() == {"bytes", "sha256"}):
            raise ValueError(f"an entry without size and checksum: {name}")
        if type(entry["bytes"]) is not int or not 0 <= entry["bytes"] <= MAX_SEGMENT_BYTES:
            raise ValueError(f"a segment of {entry['bytes']!r:.40} bytes: {name}")
    return entries


def verify(path: Path, entries: Entries) -> None:
    """Read every listed segment in `path` once, and raise CheckpointError at the first that is not as listed."""
    if entries:
        with _open(path) as folder:
            for name, entry in entries.items():
                _verified(folder, name, entry)


def sweep(path: Path, listed: set[str]) -> None:
    """Remove the segments in `path` that are not listed, and what kills left of others."""
    with suppress(OSError, CheckpointError), Folder(path) as folder:
        for name in folder.names():
            segment = name.removeprefix(files.WRITING)
            if NAME.fullmatch(segment) and (name != segment or name not in listed):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder.descriptor)


@contextmanager
def _open(path: Path) -> Iterator[Folder]:
    try:
        with Folder(path) as folder:
            yield folder
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing, but a checkpoint lists segments in it") from None


def _verified(folder: Folder, name: str, entry: Mapping[str, Any]) -> bytes:
    data = folder.read(name, min(entry["bytes"], MAX_SEGMENT_BYTES))
    if len(data) != entry["bytes"] or digest(data) != entry["sha256"]:
        raise folder.error(f"{name} is damaged (its checksum does not match)")
    return data
