"""Ends the processes of an embedded Ray cluster when the learner that started it is gone.

A learner that is killed cannot shut its cluster down. The kernel ends what the learner itself started, but the helpers
that those started in turn live on for half a minute, each waiting for another that is dead. So a watcher waits beside
the learner: its standard input ends when the learner does, however that came, and then it ends every process that has
the cluster's mark among its variables, or Ray's title and files of the cluster's session: whoever changes its title may
lose its variables. It is run as a script, without the rest of the package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "RL_TRAINING_RAY_CLUSTER"  # all processes of a cluster inherit it


def start_watcher(mark: str) -> subprocess.Popen[bytes]:
    """A watcher over the processes that have this mark; closing its `stdin` ends them, and then it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the learner's whole group must not end it first
    )


def name_session(watcher: subprocess.Popen[bytes], folder: str) -> None:
    """Tell a watcher where the files of its cluster are."""
    assert watcher.stdin is not None
    watcher.stdin.write(os.fsencode(folder))
    watcher.stdin.flush()


def processes_of(mark: str, session: str = "") -> list[int]:
    """The processes of a cluster; those of other users cannot be looked into, and are not ours."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            if entry in variables or (session and _is_of_session(folder, session)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _is_of_session(process: Path, session: str) -> bool:
    if not (process / "cmdline").read_bytes().startswith(b"ray::"):
        return False
    return any(os.readlink(file).startswith(f"{session}/") for file in (process / "fd").iterdir())


def watch(mark: str) -> None:
    session = os.fsdecode(sys.stdin.buffer.read())  # until the learner is gone
    while processes := processes_of(mark, session):
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)  # what was just being started is found in the next round


if __name__ == "__main__":
    watch(sys.argv[1])
