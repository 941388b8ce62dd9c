"""Code of the worker processes of async environments; it imports nothing heavier than Gymnasium.

A worker is one lane: it is asked through a pipe, and what its environment shows goes through shared memory. It ends
when its pipe does, and by nothing else short of SIGKILL: signals to a whole process group are for the trainer.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.envs.lanes import Actions, LocalLanes
from rl_training.errors import ConfigError, EnvironmentFault, one_line, traceback_of
from rl_training.processes import end_with_the_parent, ignore_signals
from rl_training.trees import put_rows
from rl_training.types import Env

NAME = "rl_training environment"  # of a worker's process, with the number of its lane
WITHOUT_GUARD = 64  # a worker's exit code where the script that started it would train again
GUARD = (
    'this script trains while a worker process imports it: put the training below `if __name__ == "__main__":` '
    "(needed for vectorization: async)"
)


class Columns:
    """Arrays [B, ...] of what lanes do and see, in one block of memory; without one, only its size is counted."""

    def __init__(self, observation_space: Any, action_space: Any, count: int, memory: Any = None) -> None:
        self.memory, self.bytes, self.count = memory, 0, count
        self.obs = self._of_space(observation_space)
        # Tuple and Dict actions are no array: they go through the pipe.
        joint = isinstance(action_space, spaces.Tuple | spaces.Dict)
        self.action = None if joint else self._array(action_space.shape, action_space.dtype)
        self.reward = self._array((), np.dtype(np.float64))
        self.terminated, self.truncated = (self._array((), np.dtype(np.bool_)) for _ in range(2))

    def _of_space(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._of_space(part) for key, part in space.spaces.items()}
        return self._array(space.shape, space.dtype)

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        first, size = self.bytes, self.count * math.prod(shape)
        self.bytes += -(-size * dtype.itemsize // 64) * 64  # each begins with a cache line
        if self.memory is None:
            return None
        return np.frombuffer(self.memory, dtype, size, first).reshape(self.count, *shape)


def serve(
    pipe: connection.Connection,
    make: CloudpickleWrapper,  # of what makes an environment
    lane: int,
    count: int,
    memory: object,
) -> None:
    """The life of a worker: make the environment, then do what is asked until the trainer is gone."""
    ignore_signals()
    end_with_the_parent()
    worker = _attempt(lane, lambda: Worker(make.fn, lane, count, memory))
    answer = worker if isinstance(worker, Told) else None
    with suppress(EOFError, OSError):  # of the pipe alone: nobody listens any more
        pipe.send(answer)
        while not isinstance(answer, Told):
            name, arguments = pipe.recv()
            answer = _attempt(lane, getattr(worker, name), *arguments)
            pipe.send(answer)


def _attempt(lane: int, function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # whatever the environment raises
        return told(error, lane)


class Worker:
    """What can be asked of a worker: the methods of a lane, with its answers in the shared columns."""

    def __init__(self, make: Callable[..., Env], lane: int, count: int, memory: Any) -> None:
        env = make()
        self.lanes, self.lane = LocalLanes([env], make), lane
        self.columns = Columns(env.observation_space, env.action_space, count, memory)

    def adjust(self, arguments: dict[str, Any]) -> None:
        self.lanes.adjust(0, arguments)

    def reset(self, seed: int | None) -> None:
        put_rows(self.columns.obs, self.lanes.reset([0], [seed]), slice(self.lane, self.lane + 1))

    def step(self, action: Any = None) -> dict[str, Any]:
        """What the environment reports at the end of an episode, as far as it is plain numbers; else nothing."""
        columns, lane = self.columns, self.lane
        stepped = self.lanes.step([action] if columns.action is None else columns.action[lane : lane + 1])
        put_rows(columns.obs, stepped.obs, slice(lane, lane + 1))
        columns.reward[lane] = stepped.reward[0]
        columns.terminated[lane], columns.truncated[lane] = stepped.terminated[0], stepped.truncated[0]
        info = stepped.infos[0] if stepped.over[0] else {}
        return {key: value for key, value in info.items() if np.isscalar(value)}

    def play(self, actions: Actions) -> tuple[np.ndarray, np.ndarray]:
        obs, scores, over = self.lanes.play(0, actions)
        put_rows(self.columns.obs, self.lanes.stacked([obs]), slice(self.lane, self.lane + 1))
        return scores, over


class Told(tuple):
    """An environment's fault as it goes through a pipe: the fault, and the text of its traceback or nothing."""


def told(error: Exception, lane: int) -> Told:
    if isinstance(error, EnvironmentFault):
        error.env_index = lane
        return Told((error, traceback_of(error)))
    fault = EnvironmentFault(f"raised {one_line(error)}", lane)
    return Told((fault, "".join(traceback.format_exception(error))))


def refuse_to_train_in_an_import() -> None:
    """Refuse what a script asks for while a process of its own imports it: it would be done again in every worker.

    In our workers, and in the server that forks them, nothing is said: the exit code tells the trainer, which says it.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name.startswith((NAME, "MainProcess")):
            os._exit(WITHOUT_GUARD)
        raise ConfigError(GUARD)
