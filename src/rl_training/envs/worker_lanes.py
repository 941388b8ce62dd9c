"""Environments in one worker process each, for steps that take longer than a round trip between processes.

A worker that dies is seen by the sentinel of its process, at once or, behind a silent one, within a second; one that
lives and says nothing counts as hung after a while. Either ends the run with an `EnvironmentFault`, and closing waits
for nobody.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver, util
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.envs.lanes import Actions, Observation, Replayed, Stepped, limits_time
from rl_training.envs.worker import GUARD, NAME, WITHOUT_GUARD, Columns, Told, serve
from rl_training.errors import ConfigError, Elsewhere, EnvironmentFault, one_line
from rl_training.processes import ensure_fork_server
from rl_training.trees import tree_map
from rl_training.types import Env

SLICE = 1.0  # seconds of waiting at a time: of a stop of all processes, however long, only one counts
CLOSING = 5.0  # seconds that environments have to close
DYING = 2.0  # seconds that a fork server has to end once its pipe is closed
SERVER_GONE = 255  # the exit code that multiprocessing gives where it cannot know it
PLAYED_AT_ONCE = 64  # actions of a replay between two signs of life


class WorkerLanes:
    """One worker a lane. What is made here of `env` are its copies in the workers; it is closed."""

    steps_per_seed = 0

    def __init__(
        self,
        env: Env,
        count: int,
        timeout: float | None,
        make: Callable[..., Env] | None = None,
    ) -> None:
        self.count, self.timeout = count, timeout
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.has_time_limit = limits_time(env)
        # Unless told how, workers make theirs from its spec, which also holds what only this process has registered.
        make = CloudpickleWrapper(make or partial(gym.make, env.spec))  # type: ignore[arg-type]
        env.close()
        size = Columns(self.observation_space, self.action_space, count).bytes
        context = multiprocessing.get_context("forkserver")
        memory = context.RawArray(ctypes.c_char, size)
        self.columns = Columns(self.observation_space, self.action_space, count, memory)
        self.workers: list[tuple[Any, Any]] = []  # process and pipe of each
        self.close = util.Finalize(self, _close, (self.workers,), exitpriority=10)  # type: ignore[method-assign]
        self.ears: list[Any] = []
        ensure_fork_server("__main__", "rl_training.envs.worker")
        for lane in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve,
                args=(theirs, make, lane, count, memory),
                name=f"{NAME} {lane}",
                daemon=True,
            )
            start(process)
            theirs.close()
            self.workers.append((process, ours))
            self.ears.append(select.poll())
            for descriptor in (ours.fileno(), process.sentinel):
                self.ears[-1].register(descriptor, select.POLLIN)
        self._answers(range(count))

    def adjust(self, lane: int, arguments: Mapping[str, Any]) -> None:
        self._ask(lane, "adjust", dict(arguments))
        self._answers([lane])

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        for lane, seed in zip(lanes, seeds, strict=True):
            self._ask(lane, "reset", seed)
        self._answers(lanes)
        return tree_map(lambda column: column[list(lanes)], self.columns.obs)

    def step(self, actions: Actions) -> Stepped:
        columns = self.columns
        if columns.action is None:
            for lane, action in enumerate(actions):
                self._ask(lane, "step", action)
        else:
            columns.action[...] = actions
            for lane in range(self.count):
                self._ask(lane, "step")
        infos = self._answers(range(self.count))
        reward, terminated, truncated = (
            column.copy() for column in (columns.reward, columns.terminated, columns.truncated)
        )
        obs = tree_map(np.copy, columns.obs)
        return Stepped(obs, reward, terminated, truncated, reward, terminated | truncated, infos)

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        obs = self.reset(range(self.count), seeds)
        played: list[list[Any]] = [[(np.empty(0), np.empty(0, np.bool_))] for _ in range(self.count)]
        going = [lane for lane in range(self.count) if len(actions[lane])]
        first = 0
        while going:
            for lane in going:
                self._ask(lane, "play", actions[lane][first : first + PLAYED_AT_ONCE])
            for lane, answer in zip(going, self._answers(going), strict=True):
                played[lane].append(answer)
            first += PLAYED_AT_ONCE
            going = [lane for lane in going if len(actions[lane]) > first and not played[lane][-1][1].any()]
        obs = tree_map(np.copy, self.columns.obs)
        scores, over = ([np.concatenate([part[i] for part in parts]) for parts in played] for i in range(2))
        return Replayed(obs, scores, over)

    def close(self) -> None:
        """End the workers; done once, by whoever comes first."""

    def _ask(self, lane: int, name: str, *arguments: object) -> None:
        with suppress(OSError):  # it is gone, as waiting for its answer will show
            self.workers[lane][1].send((name, arguments))

    def _answers(self, lanes: Sequence[int]) -> list[Any]:
        """The answers of these lanes. While one is silent, the others are looked at as well: they may have died."""
        answers: dict[int, Any] = {}
        for lane in lanes:
            waited = 0.0
            while lane not in answers:
                at_most = SLICE if self.timeout is None else min(SLICE, self.timeout - waited)
                if self._take(lane, at_most, answers):
                    break
                waited += at_most
                for other in lanes:
                    if other not in answers:
                        self._take(other, 0.0, answers)
                if self.timeout is not None and waited >= self.timeout and lane not in answers:
                    said = f"hangs: no answer for {self.timeout:g} s (env_timeout)"
                    raise self._ended(EnvironmentFault(said, lane))
        return [answers[lane] for lane in lanes]

    def _take(self, lane: int, seconds: float, answers: dict[int, object]) -> bool:
        """Whether a lane answered within these seconds; raises its fault, or how it died."""
        process, pipe = self.workers[lane]
        ready = [descriptor for descriptor, _ in self.ears[lane].poll(1000 * seconds)]
        if not ready:
            return False
        if pipe.fileno() not in ready:
            if process.exitcode != SERVER_GONE:
                raise self._ended(self._death(lane))
            self.ears[lane].unregister(process.sentinel)  # it was the server that died: the pipe will tell
            return self._take(lane, seconds, answers)
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            raise self._ended(self._death(lane)) from None
        if isinstance(answer, Told):
            fault, text = answer
            raise self._ended(fault) from (Elsewhere(text) if text else None)
        answers[lane] = answer
        return True

    def _death(self, lane: int) -> Exception:
        process = self.workers[lane][0]
        process.join(CLOSING)
        code = process.exitcode
        if code == WITHOUT_GUARD:
            return ConfigError(GUARD)
        if code is not None and code < 0:
            how = f"its process was ended by {signal.Signals(-code).name}"
            how += ", probably by the out-of-memory killer" if -code == signal.SIGKILL else ""
        else:
            how = (
                "its process closed its pipe" if code is None else f"its process ended with exit code {code}"
            )
        return EnvironmentFault(f"died: {how}", lane)

    def _ended(self, error: Exception) -> Exception:
        """End all workers, in the middle of what they do, because of an error."""
        for process, _ in self.workers:
            process.kill()
        self.close()
        return error


def start(process: Any) -> None:
    """Start a process of the fork server; one line where that has died of importing the user's script."""
    try:
        process.start()
    except (EOFError, OSError) as error:
        if exit_code_of_the_fork_server() == WITHOUT_GUARD:
            raise ConfigError(GUARD) from None
        raise ConfigError(
            f"vectorization: async cannot start worker processes ({one_line(error)}); can this script be imported?"
        ) from error


def exit_code_of_the_fork_server() -> int | None:
    """None where it lives, or is none of this process's own."""
    number: Any = getattr(forkserver._forkserver, "_forkserver_pid", None)
    deadline = time.monotonic() + DYING
    with suppress(ChildProcessError, TypeError):
        while True:
            ended = os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                return ended.si_status
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)  # its pipe closes a moment before it has ended
    return None


def _close(workers: list[tuple[Any, Any]]) -> None:
    for _, pipe in workers:
        pipe.close()  # which ends its worker
    deadline = time.monotonic() + CLOSING
    for process, _ in workers:
        process.join(max(0.0, deadline - time.monotonic()))
    for process, _ in workers:
        if process.is_alive():
            process.kill()
            process.join(CLOSING)
