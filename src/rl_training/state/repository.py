"""The git commit of a run, read without running anything that a repository names.

A repository may name programs that git starts: hooks, a monitor of files, filters when contents are compared, helpers
of a remote when an object is missing. So git is asked only for what it reads from its own database, and never to look
at a file; files are compared here. That also means that a file which a filter changes on its way into the database
counts as changed once its time differs from the one git noted.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

# No monitor, no hooks, no locks that would be written; and should an object be missing, no remote is asked for it.
SETTINGS = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "--no-optional-locks",
    "--no-pager",
)
VARIABLES = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
# An entry of the index, and in it: mode, hash, stage, name, seconds and nanoseconds of the last change, size, flags.
ENTRY = re.compile(
    rb"((\d{6}) ([0-9a-f]+) \d\t([^\0]*)\0  ctime: .*\n  mtime: (\d+):(\d+)\n  dev: .*\n  uid: .*\n"
    rb"  size: (\d+)\tflags: ([0-9a-f]+)\n)"
)
NOT_LOOKED_AT = 0x8000 | 0x4000_0000  # assume-unchanged, skip-worktree
SUBMODULE = b"160000"
LARGEST = 64 * 2**20  # bytes of a file that is read to be compared


def git_state() -> dict[str, Any] | None:
    """The commit of the working directory and whether files differ from it; None outside a git repository.

    `dirty` is true where a file is staged, or where a tracked one is gone, has another size, or another time and other
    bytes than git noted. Untracked files and submodules do not count.
    """
    try:
        top, commit = _git("rev-parse", "--show-toplevel", "HEAD").decode("utf-8").splitlines()
        compared = ("--cached", "--raw", "--no-renames", "--no-ext-diff", "--no-textconv")
        staged = _git("-C", top, "diff-index", *compared, "--ignore-submodules=all", "HEAD", "--")
        return {"commit": commit, "dirty": bool(staged) or _any_changed(Path(top))}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> bytes:
    command = ["git", *SETTINGS, *arguments]
    return subprocess.run(
        command, capture_output=True, timeout=5, check=True, env=os.environ | VARIABLES
    ).stdout


def _any_changed(top: Path) -> bool:
    listed = _git("-C", str(top), "ls-files", "--stage", "--debug", "-z")
    entries: list[tuple[bytes, ...]] = ENTRY.findall(listed)
    if sum(len(whole) for whole, *_ in entries) != len(listed):
        raise ValueError("unknown format of git's index")
    folder = os.path.join(os.fsencode(top), b"")
    return any(_changed(folder, *entry) for _, *entry in entries)


def _changed(folder: bytes, *entry: bytes) -> bool:
    mode, digest, name, seconds, nanoseconds, size, flags = entry
    if mode == SUBMODULE or int(flags, 16) & NOT_LOOKED_AT:
        return False
    path = folder + name
    try:
        status = os.lstat(path)
        if stat.S_IFMT(status.st_mode) != stat.S_IFMT(int(mode, 8)) or status.st_size % 2**32 != int(size):
            return True
        noted = int(seconds) * 10**9 + int(nanoseconds)
        there = status.st_mtime_ns if int(nanoseconds) else status.st_mtime_ns // 10**9 * 10**9
        return noted != there and (status.st_size > LARGEST or _hash(path, status, digest) != digest)
    except OSError:
        return True


def _hash(path: bytes, status: os.stat_result, like: bytes) -> bytes:
    """The hash under which git would keep these very bytes."""
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    else:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            content = file.read(LARGEST)
    make = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return make(b"blob %d\0" % len(content) + content).hexdigest().encode()
