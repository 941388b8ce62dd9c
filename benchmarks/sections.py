"""Where a run's time goes, measured from outside: functions of the package are replaced by timed ones.

A run that is profiled is not the run whose speed is reported.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

# What counts as what. Time inside a section of its own is taken off the section around it.
PLACES = {
    "rl_training.envs.environments:Environments.step": "env",
    "rl_training.data.collector:Collector.collect": "storing",
    "rl_training.data.replay:Replay.add": "storing",
    "rl_training.data.replay:Replay.sample": "sampling",
    "rl_training.data.replay:Replay.sample_by_priority": "sampling",
    "rl_training.data.replay:Replay.set_priorities": "sampling",
    "rl_training.data.streams:StreamReplay.add": "storing",
    "rl_training.data.streams:StreamReplay.sample": "sampling",
    "rl_training.data.streams:StreamReplay.put_latents": "storing",
    "rl_training.runtime.metrics:MetricsWindow.add": "logging",
    "rl_training.runtime.metrics:MetricsWindow.take": "logging",
    "rl_training.runtime.engine:Engine._write": "logging",
    "rl_training.runtime.engine:Engine._checkpoint": "checkpoint",
}
# An evaluation steps environments, acts and may save the best policy, but none of that is training.
CLOSED = {"rl_training.runtime.engine:Engine._evaluate": "evaluation"}
RETURNS = "rl_training.algorithms.returns"
NAMES = (
    "env",
    "acting",
    "storing",
    "sampling",
    "returns",
    "update",
    "discriminator",
    "checkpoint",
    "logging",
    "evaluation",
    "other",
)


class Sections:
    """CPU-seconds and seconds spent in each section, without those of the sections inside it."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._inside = [[0.0, 0.0]]  # for each open section, the time of the sections inside it
        self._closed = False

    def timed(self, name: str, function: Callable[..., Any], closed: bool = False) -> Callable[..., Any]:
        """`function`, counted under `name`; if `closed`, with everything that it calls."""

        def call(*args: Any, **options: Any) -> Any:
            if self._closed:
                return function(*args, **options)
            self._closed = closed
            self._inside.append([0.0, 0.0])
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                inner_cpu, inner_wall = self._inside.pop()
                self._inside[-1][0] += cpu
                self._inside[-1][1] += wall
                self.cpu[name] += cpu - inner_cpu
                self.wall[name] += wall - inner_wall
                self.calls[name] += 1
                if closed:
                    self._closed = False

        # Compiled code stands in for methods of the package alone, so a timed one is of the module of what it times.
        home = getattr(function, "__globals__", globals())["__name__"]
        there = FunctionType(call.__code__, globals() | {"__name__": home}, closure=call.__closure__)
        return functools.wraps(function)(there)

    def install(self, places: Mapping[str, str]) -> None:
        """Time these functions of the package from now on."""
        for place, name in places.items():
            self._replace(*_find(place), name, closed=place in CLOSED)

    def install_trainer(self, trainer_class: Any) -> None:
        """Time what a trainer brings: its iteration, its agent and its returns."""
        self._replace(trainer_class, "iterate", "update")
        for attribute in ("improve_discriminator", "imitation_reward"):
            if hasattr(trainer_class, attribute):
                self._replace(trainer_class, attribute, "discriminator")
        for module in [module for name, module in sys.modules.items() if name.startswith("rl_training.")]:
            for attribute, value in list(vars(module).items()):
                if getattr(value, "__module__", None) == RETURNS != module.__name__ and callable(value):
                    self._replace(module, attribute, "returns")
        make_agent, timed_classes = trainer_class.make_agent, set()

        def make_timed_agent(*args: Any, **options: Any) -> Any:
            agent = make_agent(*args, **options)
            if type(agent) not in timed_classes:
                timed_classes.add(type(agent))
                for attribute in ("act", "value"):
                    if hasattr(agent, attribute):
                        self._replace(type(agent), attribute, "acting")
            return agent

        trainer_class.make_agent = staticmethod(make_timed_agent)

    def _replace(self, owner: Any, attribute: str, name: str, closed: bool = False) -> None:
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute), closed))

    def table(self, cost: dict[str, float]) -> dict[str, dict[str, float]]:
        """For each section its CPU-seconds, seconds and calls; `other` is what the whole run took besides."""
        cpu, wall = self.cpu.copy(), self.wall.copy()
        cpu["other"] = cost["cpu_seconds"] - sum(self.cpu.values())
        wall["other"] = cost["wall_seconds"] - sum(self.wall.values())
        return {
            name: {"cpu_seconds": cpu[name], "wall_seconds": wall[name], "calls": self.calls[name]}
            for name in NAMES
        }


def _find(place: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    *owners, attribute = path.split(".")
    return functools.reduce(getattr, owners, import_module(module)), attribute
