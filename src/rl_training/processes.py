"""Processes of a run: signals are for the first one alone to act on, and all others end with it.

Slurm, systemd, `timeout` and a terminal send SIGTERM or SIGINT to every process of a command. The first one saves and
ends the others; whoever else acted on it would take from the first what it needs to save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAFE_PATH, OURS = "PYTHONSAFEPATH", "for-the-fork-server"


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Hold signals back; processes that are started within never get them, unless they ask for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """The same, and whatever is done about signals within is undone: a library may take them for itself."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with blocked_signals():
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def ensure_fork_server(*preload: str) -> None:
    """Start the process that forks others, with what they import loaded once, and out of the reach of signals.

    Who is forked gets them again, as from any fork server.
    """
    modules = [*preload, "rl_training.fork_server"]
    forkserver.set_forkserver_preload(modules)
    with _working_directory_not_imported():
        resource_tracker.ensure_running()  # first, since it unblocks signals where it starts
        with blocked_signals():
            _ensure_running(modules)


def _ensure_running(modules: list[str]) -> None:
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # a fork of a process that has a server: it needs one of its own
        forkserver._forkserver.__init__()  # type: ignore[misc]
        forkserver.set_forkserver_preload(modules)
        forkserver.ensure_running()


@contextmanager
def _working_directory_not_imported() -> Iterator[None]:
    """Start interpreters within that import from the working directory only if this one does.

    `multiprocessing` starts them with `-c`, which puts that directory first: a `socket.py` in a folder from elsewhere
    would run. Python 3.10 does not know the variable.
    """
    if _imports_from_working_directory() or SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = OURS
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]


def _imports_from_working_directory() -> bool:
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)
    except FileNotFoundError:  # a directory that is gone holds no modules
        return False


def end_with_the_parent() -> None:
    """Let this process end when its parent does, also while something keeps it busy."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # as good as a kill, and a kill loses nothing

    threading.Thread(target=watch, daemon=True).start()
