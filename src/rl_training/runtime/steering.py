"""Steering: what the owner of a run tells it while it trains, and what a journal says was told.

A change of a knob is an entry of the journal, `from` which step the knob is what; the knob stays a function of the
step, and a run that reads its journal again when it is resumed computes what it would have computed. `set` and
`evaluate` change what a run writes and are done again by a resumed run, at the same steps. `checkpoint`, `pause`,
`continue` and `stop` do not, and are obeyed once, by the process that was told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rl_training.errors import ConfigError, RunError, one_line
from rl_training.runtime.controls import SCHEDULE, WARMUP, Controls, KnobError
from rl_training.settings.config import Config
from rl_training.settings.loading import load_config
from rl_training.state.inbox import Inbox
from rl_training.state.journal import DEEDS, Event, Journal
from rl_training.state.leaves import is_whole
from rl_training.state.run_directory import RunDirectory

CONTINUE = "continue"


class Steering:
    """The commands of one run: those in its journal, and those that come while it trains."""

    def __init__(self, config: Config, controls: Controls, run: RunDirectory) -> None:
        self.config, self.controls, self.journal = config, controls, Journal(run.journal_path)
        self.paused = False
        self._inbox: Inbox | None = None
        self._waiting: list[Event] = []  # what is done once, at its step

    def follow(self, run: RunDirectory) -> None:
        """Do at each step what the run's journal has for it."""
        self.journal = Journal(run.journal_path)
        for event in self.journal.events:
            try:
                self._set(event)
            except (ConfigError, KnobError) as error:
                raise RunError(f"{self.journal.path}: damaged ({one_line(error)})") from error

    def listen(self, run: RunDirectory) -> None:
        """Take commands from other terminals, from now on."""
        self._inbox = Inbox(run.path)

    def close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    def has_news(self) -> bool:
        """Whether `due` has anything to look at."""
        return self.paused or bool(self._waiting) or (self._inbox is not None and self._inbox.has_news())

    def due(self, iteration: int, steps: int, say: Callable[[str], None]) -> set[str]:
        """Take what was sent; what is to be done now, before the iteration with this number, at this step."""
        for command in self._inbox.take() if self._inbox else ():
            self._answer(command, iteration, steps, say)
        due = {event.do for event in self._waiting if event.begins <= steps}
        self._waiting = [event for event in self._waiting if event.begins > steps]
        self.paused = self.paused or "pause" in due
        return due

    def wants_evaluation(self, steps: int, last: int) -> bool:
        """Whether the run was told to evaluate by this step, and has not since; `last` is where it did."""
        if not self.journal.events:
            return False
        return any(event.do == "evaluate" and last < event.begins <= steps for event in self.journal.events)

    def _answer(
        self, command: Mapping[str, Any], iteration: int, steps: int, say: Callable[[str], None]
    ) -> None:
        assert self._inbox is not None
        if command.get("do") == CONTINUE and not self.paused:
            self._inbox.answer(command, said="it was not paused")
            return
        try:
            event = self._event(command, iteration, steps)
        except (ConfigError, KnobError, RunError) as error:
            self._inbox.answer(command, refused=str(error))
            return
        self.journal.append(event)
        self._set(event)
        self.paused = self.paused and event.do != CONTINUE
        if event.do in ("checkpoint", "pause", "stop"):
            self._waiting.append(event)
        say(f"told at step {steps:,}: {event.told()}")
        self._inbox.answer(command, said=event.told())

    def _event(self, command: Mapping[str, Any], iteration: int, steps: int) -> Event:
        """What a command says, checked."""
        do, at, values, total = (
            command.get("do"),
            command.get("at"),
            command.get("values"),
            self.config.total_timesteps,
        )
        if do not in DEEDS or not isinstance(values, dict) or (do == "set") != bool(values):
            raise RunError(f"{do!r} is nothing to do; there are {', '.join(DEEDS)}")
        if at is not None and not is_whole(at, steps + 1, total):
            where = "at or beyond the end" if is_whole(at, total) else "not ahead"
            raise RunError(f"--at {at} is {where} of the run, which is at step {steps:,} of {total:,}")
        named = {self.controls.find(name): value for name, value in values.items()}
        begins = at if at is not None else steps + 1 if do == "set" else steps
        return Event(do, iteration, steps, begins, {n: self._checked(n, v) for n, v in named.items()})

    def _checked(self, name: str, value: object) -> float | int | None:
        """A value that a config of this run could hold for a knob."""
        if name in type(self.config).controls:
            load_config(self.config, {name: value, name + SCHEDULE: None, name + WARMUP: 0})
        return self.controls.checked(name, value)

    def _set(self, event: Event) -> None:
        for name, value in event.values.items():
            self.controls.steer(name, event.begins, self._checked(self.controls.find(name), value))
