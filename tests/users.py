"""Acting as another user, for tests of files that only their owner may write; root runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY, STRANGER = 65534, 61234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def become(user: int) -> None:
    """Go on as this user, in a child."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user can read, unlike those of pytest, and only this one can write."""
    folder = Path(tempfile.mkdtemp()).resolve()
    folder.chmod(0o755)
    if any(not parent.stat().st_mode & 0o001 for parent in folder.parents):
        folder.rmdir()
        pytest.skip(f"other users cannot reach {folder}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_as(user: int, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A command as this user. If an interpreter in root's home runs the tests, the user may read there as well."""
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is missing, which starts a command as another user")
    start = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    if any(not parent.stat().st_mode & 0o001 for parent in Path(sys.executable).resolve().parents):
        start += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return subprocess.run([*start, *command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]
