"""Observers: user code called after log lines, evaluations and checkpoints, which may stop a run.

What an observer hears of is a function of the run: lines and evaluations come at fixed steps, and hold no clock times.
What it remembers is saved with every checkpoint, together with what it is still owed. So a run that was killed tells it
the same things again, and stops where it would have stopped.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training import parts
from rl_training.errors import ConfigError, ObserverError, one_line
from rl_training.settings.config import Config
from rl_training.state.leaves import are_finite, is_whole, require
from rl_training.state.stateful import Stateful

Event = tuple[str, int, dict[str, float]]  # what happened, the step, and the line that was written of it


class Observer(Stateful):
    """Hears of a run. Each method may return a reason to stop: the run then logs, evaluates and saves, and ends.

    All attributes are saved with checkpoints unless named in `transient`.
    """

    def on_log(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """A log line was written."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """An evaluation was made; its metrics begin with `eval/`."""

    def on_checkpoint(self, step: int, path: Path) -> str | None:
        """A checkpoint that was due was saved at `path`. One that a signal asked for is no event."""


class StopAt(Observer):
    """Stops a run once a metric is high or low enough: the config's `stop_at`."""

    transient = ("metric", "at_least", "at_most")

    def __init__(self, metric: str, at_least: float = -math.inf, at_most: float = math.inf) -> None:
        self.metric, self.at_least, self.at_most = metric, at_least, at_most

    def on_log(self, step: int, metrics: Mapping[str, float]) -> str | None:
        value = metrics.get(self.metric)
        if value is None or not self.at_least <= value <= self.at_most:
            return None
        return f"{self.metric} is {value:.6g}"

    on_evaluation = on_log


class Watch(Stateful):
    """The observers of a run, what they have not yet heard of, and why one of them asked to stop."""

    transient = ("names",)

    def __init__(self, config: Config) -> None:
        self.names = [parts.short_name(parts.split(written)[0]) for written in config.observers]
        self.observers = [_made(written) for written in config.observers]
        if config.stop_at is not None:
            self.names.append("stop_at")
            self.observers.append(StopAt(**config.stop_at))
        self.owed: list[Event] = []
        self.reason = ""

    def check_state(self) -> None:
        for event in self.owed:
            known = (
                type(event) is tuple and len(event) == 3 and event[0] in ("log", "evaluation", "checkpoint")
            )
            require(known and is_whole(event[1]) and type(event[2]) is dict, "Watch.owed: no events")
            require(are_finite(event[2].values()), "Watch.owed: not a number")

    def owe(self, what: str, step: int, line: Mapping[str, float]) -> None:
        """Let the observers hear of something when they are next told."""
        if self.observers:
            self.owed.append((what, step, dict(line)))

    def tell(self, checkpoint: Path | None) -> None:
        """Tell the observers what they are owed; what one fails at is still owed to all of them afterwards."""
        while self.owed:
            what, step, line = self.owed[0]
            before = [observer.state_dict() for observer in self.observers]
            try:
                reasons = [
                    self._ask(index, what, step, checkpoint if what == "checkpoint" else dict(line))
                    for index in range(len(self.observers))
                ]
            except ObserverError:
                for observer, state in zip(self.observers, before, strict=True):
                    observer.load_state_dict(state)
                raise
            del self.owed[0]
            self.reason = self.reason or next(filter(None, reasons), "")

    def _ask(self, index: int, what: str, step: int, about: Any) -> str:
        with naming(f"observer {self.names[index]}", what, step):
            reason = getattr(self.observers[index], f"on_{what}")(step, about)
            if reason is not None and not isinstance(reason, str):
                raise TypeError(
                    f"on_{what} returned {reason!r}; it must return None or the reason to stop, as text"
                )
            return " ".join((reason or "").split())


def _made(written: parts.Written) -> Observer:
    name, _ = parts.split(written)
    given = name.startswith(parts.GIVEN)
    observer = parts.load(name, "observers") if given else parts.make(written, key="observers")
    if not isinstance(observer, Observer):
        raise ConfigError(f"observers {name!r} is not an rl_training.Observer", ("observers",))
    return observer


@contextmanager
def naming(subject: str, what: str, step: int) -> Iterator[None]:
    """Whatever is raised in here is an observer's own fault."""
    try:
        yield
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise ObserverError(
            f"{subject} raised {one_line(error)} ({where}, on_{what} of step {step})"
        ) from error
