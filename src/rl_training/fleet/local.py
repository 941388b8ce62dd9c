"""A fleet of processes on this machine. Fragments and weights go through shared memory, all else through pipes.

The processes are forks of the learner, so that one starts, and is replaced, in milliseconds; the memory is
anonymous, so that nothing is left behind whoever is killed.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import numpy as np
import torch

from rl_training.data.batch import Batch
from rl_training.errors import EnvironmentFault, NonFiniteError, UserError, traceback_of
from rl_training.fleet.actor import Actor, Fragment, MakeColumns, Pack, Request, Spaces
from rl_training.fleet.fleet import Failed, Fleet, Lost, Outcome, Ready
from rl_training.processes import ignore_signals
from rl_training.settings.families import ActorLearnerConfig

PR_SET_PDEATHSIG = 1  # of Linux's prctl


class LocalFleet(Fleet):
    """Processes with shared memory for each stream, which any of them can write to."""

    def __init__(self, config: ActorLearnerConfig, pack: Pack, spaces: Spaces, columns: MakeColumns) -> None:
        super().__init__(config, pack, spaces, columns)
        self.columns = [columns(shared_array) for _ in range(config.num_actors)]
        size = len(pack())
        self.packed = [shared_array((size,), np.dtype(np.uint8)) for _ in range(config.num_actors)]
        self.nowhere = os.open(os.devnull, os.O_RDWR)  # here, since a fork should open nothing
        self.processes: dict[int, int] = {}  # their ids
        self.connections: dict[int, Connection] = {}
        self.started: list[int] = []
        self.close = weakref.finalize(  # type: ignore[method-assign]
            self, _close, os.getpid(), self.processes, self.connections, self.nowhere
        )

    def _launch(self, index: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        # Not by multiprocessing, whose processes may have none of their own: a sweep's workers train too.
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            try:
                gc.freeze()  # the learner's garbage is not its own: an emulator in it may wait for threads
                self._serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        self.processes[index], self.connections[index] = process, ours
        self.started.append(index)

    def _submit(self, index: int, request: Request, weights: np.ndarray) -> None:
        self.packed[request.stream][...] = weights
        with suppress(OSError):  # it is gone, as listening to it will show
            self.connections[index].send(request)

    def _poll(self, timeout: float) -> Sequence[tuple[int, Outcome]]:
        started, self.started = self.started, []
        heard = set(wait(list(self.connections.values()), 0 if started else timeout))
        ready = [index for index, connection in self.connections.items() if connection in heard]
        begun: list[tuple[int, Outcome]] = [(index, Ready()) for index in started]
        return begun + [(index, self._hear_from(index)) for index in ready]

    def _hear_from(self, index: int) -> Outcome:
        try:
            outcome: Outcome = self.connections[index].recv()
        except (EOFError, OSError):
            code = self._end(index)
            return Lost(f"its process was ended by signal {-code}" if code < 0 else "its process ended")
        if isinstance(outcome, Fragment):
            return outcome._replace(columns=self.columns[outcome.stream])
        return outcome

    def _end(self, index: int) -> int:
        self.connections.pop(index).close()
        return reap(self.processes.pop(index))

    def _serve(self, connection: Connection) -> None:
        """The life of an actor's process."""
        leave_the_learner(keep=connection.fileno(), nowhere=self.nowhere)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the learner has said it already
        actor = Actor(self.config, *self.spaces)
        while True:
            try:
                request: Request = connection.recv()
            except (EOFError, OSError):
                return  # the learner is gone
            stream = request.stream
            outcome = outcome_of(actor, request, self.packed[stream], self.columns[stream])
            if isinstance(outcome, Fragment):
                outcome = outcome._replace(columns={})  # they are in the shared memory
            try:
                connection.send(outcome)
            except OSError:
                return


def outcome_of(actor: Actor, request: Request, weights: np.ndarray, columns: Batch | None) -> Outcome:
    """The fragment, or what went wrong: an error of ours as it is, any other as the text of its traceback."""
    try:
        return actor.play(request, weights, columns)
    except (UserError, NonFiniteError) as error:
        return error
    except EnvironmentFault as error:
        return Failed(traceback_of(error) or str(error))
    except Exception:  # whatever else there is
        return Failed(traceback.format_exc())


def shared_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that a fork shares with its parent."""
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(count * dtype.itemsize, 1))
    return np.frombuffer(memory, dtype, count).reshape(shape)


def leave_the_learner(keep: int, nowhere: int) -> None:
    """Hold on to nothing of the learner's but one end of a pipe, and die with it.

    Among its files are the lock of its run and the pipes of other actors; an end of those that lives on here would
    hide its death. They are not closed but led nowhere, so that no number is taken by another file.
    """
    ignore_signals()
    die_with(os.getppid())
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in (keep, nowhere):
            os.dup2(nowhere, int(name))


def die_with(learner: int) -> None:
    """Let this process, a child of the learner's, be killed when the learner is gone."""
    with suppress(AttributeError, OSError):  # where there is no prctl it ends when its pipe does
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != learner:
        os._exit(0)


def reap(process: int) -> int:
    """End a process, also one that is stopped; its exit code, negative for a signal."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return 0


def _close(owner: int, processes: dict[int, int], connections: dict[int, Connection], nowhere: int) -> None:
    if os.getpid() != owner:  # a fork of the learner has copies of all this, and no right to it
        return
    for connection in connections.values():
        connection.close()
    for process in processes.values():
        reap(process)
    os.close(nowhere)
