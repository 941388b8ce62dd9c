"""Processes of a run: only the main process handles signals, and all others end with it.

Slurm, systemd, `timeout` and a terminal send SIGTERM or SIGINT to every process of a command. The first one saves and
ends the others; whoever else acted on it would take from the first what it needs to save.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAFE_PATH, OURS = "PYTHONSAFEPATH", "for-the-fork-server"
TRIES = 5  # to read the CPU time of processes while none begins or ends
WARM_UP = "RL_TRAINING_WARM_UP"  # the settings of a run, for the fork server alone


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


def cpu_seconds() -> float:
    """CPU time of this process with all its threads, and of all processes below it, ended or not.

    Those on other machines are not seen; nor, on a system without Linux's /proc, those that have not ended.
    """
    for _ in range(TRIES):
        below = list(_below(os.getpid()))
        # Children before parents: one that ends in between hands its time to its parent, where it is not lost.
        ticks = sum(map(_ticks, reversed(below)))
        times = os.times()
        if below == list(_below(os.getpid())):  # else it may count twice
            break
    ended = times.children_user + times.children_system
    return times.user + times.system + ended + ticks / os.sysconf("SC_CLK_TCK")


def _ticks(process: int) -> int:
    """CPU time of a process and of those below it that have ended; 0 if it has ended itself."""
    try:
        return sum(map(int, _read(f"/proc/{process}/stat").rpartition(b")")[2].split()[11:15]))
    except OSError:
        return 0


def peak_memory() -> float | None:
    """The most memory that this process and those below it ever held, in MB, summed over the processes that live.

    An upper bound: what forks share counts in each. None where the system does not say. Not from getrusage, which
    counts what the process that forked this one held.
    """
    held = [_peak(process) for process in (os.getpid(), *_below(os.getpid()))]
    return None if held[0] is None else sum(each or 0.0 for each in held)


def _peak(process: int) -> float | None:
    try:
        found = re.search(rb"^VmHWM:\s+(\d+)", _read(f"/proc/{process}/status"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 / 1e6 if found else None


def _below(process: int) -> Iterator[int]:
    """Living processes that this one started, those that they started, and so on."""
    threads = list[str]()
    with suppress(OSError):
        threads = os.listdir(f"/proc/{process}/task")
    for thread in threads:
        with suppress(OSError):  # a thread that has ended since leaves its children to another
            for child in map(int, _read(f"/proc/{process}/task/{thread}/children").split()):
                yield child
                yield from _below(child)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def ensure_fork_server(*preload: str, warm_up: Mapping[str, object] | None = None) -> None:
    """Start the process that forks others, with what they import loaded once, and out of the reach of signals.

    Who is forked gets them again, as from any fork server. With `warm_up`, settings of a run, the server first trains
    for a moment, so that forks find everything compiled and loaded; one that is running already stays as it is.
    """
    modules = [*preload, "rl_training.fork_server"]
    forkserver.set_forkserver_preload(modules)
    with (
        _working_directory_not_imported(),
        _in_environment(WARM_UP, json.dumps(warm_up) if warm_up else None),
    ):
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
    needed = not _imports_from_working_directory() and SAFE_PATH not in os.environ
    with _in_environment(SAFE_PATH, OURS if needed else None):
        yield


@contextmanager
def _in_environment(name: str, value: str | None) -> Iterator[None]:
    """Hand a variable to processes that are started within; None: leave it as it is."""
    if value is None:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


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
