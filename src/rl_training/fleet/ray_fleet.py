"""A fleet of Ray actors: on this machine, or on every machine of a Ray cluster (an extra)."""

from __future__ import annotations

import math
import os
import secrets
import socket
import subprocess
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from rl_training.data.batch import Batch
from rl_training.errors import ConfigError, one_line
from rl_training.extras import require_extra
from rl_training.fleet.actor import Actor, MakeColumns, Pack, Request, Spaces
from rl_training.fleet.fleet import Fleet, Lost, Outcome, Ready
from rl_training.fleet.local import outcome_of
from rl_training.fleet.ray_watch import MARK, name_session, start_watcher
from rl_training.parts import GIVEN
from rl_training.processes import handlers_kept
from rl_training.settings.families import ActorLearnerConfig
from rl_training.settings.loading import load_config

LEAST_STORE = 80 * 2**20  # bytes; Ray refuses less


class RayActor:
    """What runs on a node. Its arguments are plain values: nothing that could be lost with another node."""

    def __init__(self, config: Mapping[str, Any], spaces: tuple[Any, Any]) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the learner has said it already
        self.actor = Actor(load_config(config), *spaces)

    def ready(self) -> int:
        return os.getpid()

    def play(self, request: Request, weights: np.ndarray) -> Outcome:
        return outcome_of(self.actor, request, weights, None)


class RayFleet(Fleet):
    """Ray carries requests, weights and fragments; the order, and who is replaced when, are ours."""

    def __init__(self, config: ActorLearnerConfig, pack: Pack, spaces: Spaces, columns: MakeColumns) -> None:
        if config.env_id.startswith(GIVEN):
            raise ConfigError(
                "fleet: ray starts its actors from the config alone, which holds no environment given as an object in "
                "Python; name it in env_id, or use fleet: local",
                ("fleet",),
            )
        super().__init__(config, pack, spaces, columns)
        self.ray = import_ray(embedded=config.ray_address is None)
        self.connected = False
        self.handles: dict[int, Any] = {}
        self.processes: dict[int, int] = {}  # their ids, each on its own node
        self.waiting: dict[Any, int] = {}  # future -> the actor it is of
        self.sent: dict[int, Any] = {}  # version -> the weights in Ray's store
        size = sum(part.nbytes for part in _arrays(columns())) + len(pack())
        self.store = max(LEAST_STORE, 8 * config.num_actors * size)
        if config.ray_address is not None:
            self._connect()  # a wrong address is refused before a run is begun

    def _connect(self) -> None:
        """Join the cluster that the config or this process is in, or start one that only this machine can reach."""
        self.connected = True
        ours, watcher = not self.ray.is_initialized(), None
        if ours:
            settings: dict[str, Any] = dict(log_to_driver=False, logging_level="ERROR")
            if self.config.ray_address is None:
                settings |= dict(address="local", include_dashboard=False, _node_ip_address="127.0.0.1")
                settings |= dict(num_cpus=self.config.num_actors, object_store_memory=self.store)
                asked = self.config.ray_resources.items()  # without them here, actors would wait for ever
                settings["resources"] = {name: math.ceil(n * self.config.num_actors) for name, n in asked}
            else:
                settings["address"] = self.config.ray_address
            from ray.exceptions import RayError

            embedded = self.config.ray_address is None
            try:
                knock_at(self.config.ray_address)
                # Ray would act on SIGTERM itself, at once, in the learner and in the processes of the cluster.
                with handlers_kept(), own_cluster() if embedded else as_the_user_says() as watcher:
                    context = self.ray.init(**settings)
                    if watcher is not None:
                        name_session(watcher, context.address_info["session_dir"])
            except (OSError, RuntimeError, ValueError, RayError) as error:  # the last: a wrong token, say
                address, why = self.config.ray_address, one_line(error)
                if address is None:
                    raise ConfigError(f"Ray could not be started on this machine ({why})") from error
                raise ConfigError(
                    f"ray_address {address!r}: no cluster answers there ({why})", ("ray_address",)
                ) from error
        self.close = weakref.finalize(self, _close, self.ray, self.handles, ours, watcher)  # type: ignore[method-assign]

    def _launch(self, index: int) -> None:
        if not self.connected:
            self._connect()
        kind = self.ray.remote(RayActor).options(
            num_cpus=1,
            resources=self.config.ray_resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,  # whoever restarts it must also know where its stream stands
            max_task_retries=0,
        )
        self.handles[index] = kind.remote(self.config.model_dump(mode="json"), self.spaces)
        self.waiting[self.handles[index].ready.remote()] = index

    def _submit(self, index: int, request: Request, weights: np.ndarray) -> None:
        if request.version not in self.sent:
            self.sent[request.version] = self.ray.put(weights)
            self.sent = {version: ref for version, ref in self.sent.items() if version in self.weights}
        self.waiting[self.handles[index].play.remote(request, self.sent[request.version])] = index

    def _poll(self, timeout: float) -> Sequence[tuple[int, Outcome]]:
        if not self.waiting:
            time.sleep(min(timeout, 0.05))
            return []
        futures = list(self.waiting)
        ready, _ = self.ray.wait(futures, num_returns=1, timeout=timeout)
        if ready:  # and all others that are
            ready, _ = self.ray.wait(futures, num_returns=len(futures), timeout=0)
        return [(self.waiting[future], self._outcome(future)) for future in ready]

    def _outcome(self, future: Any) -> Outcome:
        index = self.waiting[future]
        try:
            outcome = self.ray.get(future, timeout=self.config.actor_timeout)
        except (self.ray.exceptions.RayError, TimeoutError) as error:
            # The actor died, its node is gone, or what it gave was lost with a node: all of it can be redone.
            self._end(index)
            return Lost(one_line(error))
        self.waiting.pop(future)
        if isinstance(outcome, int):
            self.processes[index] = outcome
            return Ready()
        return outcome

    def _end(self, index: int) -> None:
        self.waiting = {future: other for future, other in self.waiting.items() if other != index}
        with suppress(Exception):  # it may be dead, or its node unreachable: then it is nobody's any more
            self.ray.kill(self.handles.pop(index), no_restart=True)

    def close(self) -> None:
        """Nothing was started."""


def import_ray(embedded: bool) -> Any:
    """Ray, without statistics sent home, and for a cluster of our own on the loopback device alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if embedded:
        # Despite its name, this decides on all systems whether other machines are to reach this one.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # actors are worth as much as their learner
    require_extra("ray", "fleet: ray")
    import ray
    import ray.exceptions

    return ray


@contextmanager
def own_cluster() -> Iterator[subprocess.Popen[bytes]]:
    """While a cluster of our own is started: its processes get a fresh token and a mark, which nobody else has.

    Only who has the token can ask the cluster for anything; it is in the variables of its processes, which other users
    cannot read. A user who has said how Ray shall authenticate is obeyed.
    """
    mark = secrets.token_hex(16)
    variables = {MARK: mark}
    if "RAY_AUTH_MODE" not in os.environ:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    watcher = start_watcher(mark)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        _read_authentication_anew()
        yield watcher
    except BaseException:
        _end(watcher)
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@contextmanager
def as_the_user_says() -> Iterator[None]:
    """While another cluster is joined: with the token that the user's variables or home name, if they do."""
    _read_authentication_anew()
    yield


def _read_authentication_anew() -> None:
    """Ray reads these variables once in a process; there may have been another cluster before."""
    import ray._raylet

    raylet: Any = ray._raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _end(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()


def knock_at(address: str | None) -> None:
    """Raise at once where nobody listens at HOST:PORT; Ray would try for a minute."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _arrays(columns: Batch) -> list[np.ndarray]:
    if isinstance(columns, dict):
        return [array for part in columns.values() for array in _arrays(part)]
    return [columns]


def _close(ray: Any, handles: dict[int, Any], ours: bool, watcher: subprocess.Popen[bytes] | None) -> None:
    if ray.is_initialized():
        for handle in handles.values():
            with suppress(Exception):
                ray.kill(handle, no_restart=True)
        if ours:
            ray.shutdown()
    if watcher is not None:
        _end(watcher)
