"""Data-parallel learners: processes that share the computation of each gradient.

Each takes an equal share of a batch and computes the gradient of the trainer's loss on it; torch.distributed averages
the gradients. The first learner is the process that trains, and the only one that moves weights, saves and logs. The
others keep nothing between two steps: they get the weights with each share, so a run resumes as exactly as with one.

They are new processes and no forks, since threads of autograd do not survive a fork.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rl_training.errors import RunError, one_line
from rl_training.fleet.local import die_with
from rl_training.fleet.weights import pack, unpack
from rl_training.processes import SAFE_PATH, blocked_signals
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Now
from rl_training.settings.loading import load_config

PATIENCE = timedelta(minutes=10)  # for the slowest learner's share


class Learners:
    """`num_learners` processes, and one step of an optimizer down the mean of their gradients."""

    def __init__(self, trainer: Any) -> None:
        """The trainer's `loss(share, now)` gives a mean over the share, and what is worth logging."""
        self.trainer, self.count = trainer, trainer.config.num_learners
        self.group: Any = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        self.close = weakref.finalize(self, _close, os.getpid(), self.processes, self.connections)

    def step(
        self, shares: Sequence[Mapping[str, object]], now: Now, far: Any = None
    ) -> tuple[dict[str, Any], bool]:
        """One step with the learning rate of now; what is worth logging, as means over the shares, and if it moved.

        far: a number among those and its limit, beyond which the step is not taken
        """
        trainer, optimizer = self.trainer, self.trainer.optimizer
        if self.count == 1:
            loss, parts = trainer.loss(shares[0], now)
            if far is not None and parts[far.name] > far.limit:
                return parts, False
            return parts | optimizer.step(loss, now.learning_rate, now.max_grad_norm), True
        try:
            if not self.processes:
                self._start()
            for connection, share in zip(self.connections, shares[1:], strict=True):
                connection.send((pack(trainer.agent), to_send(share), vars(now)))
            with threads(threads_of_each(self.count)):
                loss, parts = trainer.loss(shares[0], now)

                def backward() -> None:
                    loss.backward()
                    average(self.group, optimizer.gradient, self.count)

                optimizer.differentiate(loss, backward)
            means = numbers(parts, trainer.agent.device)
            average(self.group, means, self.count)
        except (EOFError, OSError, dist.DistError) as error:
            raise RunError(f"a learner was lost; resume the run ({one_line(error)})") from error
        logged = dict(zip(parts, means.tolist(), strict=True))
        if far is not None and logged[far.name] > far.limit:
            return logged, False
        return logged | optimizer.move(now.learning_rate, now.max_grad_norm), True

    def _start(self) -> None:
        config = self.trainer.config.model_dump(mode="json")
        with tempfile.TemporaryDirectory(prefix="learners-") as folder:
            store = os.path.join(folder, "store")
            for rank in range(1, self.count):
                ours, theirs = socket.socketpair()
                command = f"from rl_training.fleet.learners import serve; serve({theirs.fileno()})"
                # The path of this process, and not the working directory before it, which `-c` would add.
                path = os.pathsep.join(each or os.getcwd() for each in sys.path)
                environment = os.environ | {"PYTHONPATH": path, SAFE_PATH: "1"}
                with blocked_signals():
                    process = subprocess.Popen(
                        [sys.executable, "-c", command],
                        pass_fds=[theirs.fileno()],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                    )
                self.processes.append(process)
                theirs.close()
                self.connections.append(Connection(ours.detach()))
                self.connections[-1].send(
                    (os.getpid(), threads_of_each(self.count), config, store, rank, self.count)
                )
            for connection in self.connections:
                connection.recv()  # it is there, or else it raises: in `join` a missing one is waited for
            self.group = join(self.trainer.agent.device, store, 0, self.count)


def serve(descriptor: int) -> None:
    """The life of another learner, which begins with nothing but its end of a pair of sockets."""
    connection = Connection(descriptor)
    first, own_threads, settings, store, rank, count = connection.recv()
    die_with(first)
    torch.set_num_threads(own_threads)
    warnings.simplefilter("ignore")  # the first learner has said it already
    changes = {"num_learners": 1, "fleet": "inline", "device": device_of(settings["device"], rank)}
    config = load_config(settings).model_copy(update=changes)
    if config.device != "cpu":
        torch.cuda.set_device(config.device)  # where a share that comes from `cuda` goes
    trainer: Any = trainer_class(config.algo)(config)
    connection.send(None)
    group, gradient = join(trainer.agent.device, store, rank, count), trainer.optimizer.gradient
    while True:
        try:
            weights, share, knobs = connection.recv()
        except (EOFError, OSError):
            return  # the first learner is gone
        unpack(weights, trainer.agent, trainer.optimizer.parameters)
        loss, parts = trainer.loss(received(share), Now(knobs))
        gradient.zero_()
        loss.backward()
        average(group, gradient, count)
        average(group, numbers(parts, trainer.agent.device), count)


def join(device: torch.device, store: str, rank: int, count: int) -> Any:
    """The group of all learners, once all have joined: gloo, or NCCL with one GPU each."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    with losses_named():
        files = dist.FileStore(store, count)
        if device.type == "cuda":
            group: Any = dist.ProcessGroupNCCL(files, rank, count, dist.ProcessGroupNCCL.Options())
        else:
            group = dist.ProcessGroupGloo(files, rank, count, PATIENCE)
    average(group, torch.zeros(1, device=device), count)  # others may read the store until they are here
    return group


@contextmanager
def losses_named() -> Iterator[None]:
    """What gloo raises where another side is gone has no class of its own: give it one."""
    try:
        yield
    except RuntimeError as error:
        raise dist.DistError(str(error)) from error


def device_of(first: str, rank: int) -> str:
    """Where a learner works: the first one's GPU and those after it, or the CPU."""
    return first if first == "cpu" else f"cuda:{(torch.device(first).index or 0) + rank}"


def threads_of_each(count: int) -> int:
    return max(1, torch.get_num_threads() // count)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def average(group: Any, tensor: Tensor, count: int) -> None:
    """The mean of all learners' tensors, in place."""
    with losses_named():
        group.allreduce(tensor).wait()
    tensor.div_(count)


def numbers(parts: dict[str, Any], device: torch.device) -> Tensor:
    return torch.stack([torch.as_tensor(part).detach().to(device, torch.double) for part in parts.values()])


class Sent(NamedTuple):
    """A tensor on its way; as such, torch would send a file in shared memory, for which both sides must be forks."""

    array: np.ndarray
    device: str


def to_send(part: Any) -> Any:
    """A share with every tensor as an array that knows what it was."""
    if isinstance(part, Tensor):
        return Sent(part.detach().cpu().numpy(), part.device.type)
    return _inside(to_send, part)


def received(part: Any) -> Any:
    """The share that was sent."""
    if isinstance(part, Sent):
        return torch.from_numpy(part.array).to(part.device)
    return _inside(received, part)


def _inside(function: Any, part: Any) -> Any:
    if isinstance(part, dict):
        return {key: function(value) for key, value in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(function, part))
    if isinstance(part, tuple | list):
        return type(part)(map(function, part))
    return part


def _close(owner: int, processes: list[subprocess.Popen[bytes]], connections: list[Connection]) -> None:
    if os.getpid() != owner:  # a fork has copies of all this, and no right to it
        return
    for connection in connections:
        with suppress(OSError):
            connection.close()
    for process in processes:
        process.kill()
        process.wait()
