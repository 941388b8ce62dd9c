"""The journal of a run: what its owner told it while it trained, and from which step on.

    {"do": "set", "iteration": 12, "step": 1536, "from": 1537, "values": {"learning_rate": 0.0001}, "chain": "…"}

`iteration` and `step` are where the run stood when it took the command. A line is on the disk before the run acts on
it, so a run that is killed at any instant reads here, when it is resumed, what it did or was about to do. A last line
that a kill cut off was never acted on. Lines carry the hash chain of metrics.jsonl; a checkpoint holds the hash of the
last line that was taken before its step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import RunError
from rl_training.state import chain, files
from rl_training.state.files import AppendLog

DEEDS = ("set", "evaluate", "checkpoint", "pause", "continue", "stop")
Value = float | int | None


class Event(NamedTuple):
    """One command that the run took."""

    do: str
    iteration: int
    step: int
    begins: int  # the first step that it is about
    values: Mapping[str, Value]  # of `set`: the knobs by name

    def told(self) -> str:
        values = ", ".join(f"{name} = {'off' if v is None else f'{v:g}'}" for name, v in self.values.items())
        return " ".join(filter(None, (self.do, values, f"from step {self.begins:,}")))


class Journal:
    """The events of a run in the order in which it took them. Raises RunError for a damaged file."""

    def __init__(self, path: Path) -> None:
        self.path, self.events, self.value = path, list[Event](), chain.START
        self.content = b""
        self._hashes = {0: chain.START}  # by the length of what they cover
        follower = chain.Follower(chain.Mark(0, chain.START, 0))
        with chain.opened(path) as file:
            for line in chain.lines(file):
                if not line.endswith(b"\n") and len(line) < chain.MAX_LINE_BYTES:
                    break
                damage = follower.follow(line)
                if damage is not None:
                    raise RunError(f"{path}: {damage}")
                self._take(_event(line, path), line, follower.value)

    def append(self, event: Event) -> None:
        """Make an event durable; only then may the run act on it."""
        said: dict[str, Any] = event._asdict()
        said["from"] = said.pop("begins")
        line, value = chain.linked(self.value, said)
        self.restore()  # what comes after a removed beginning would be of no use
        with AppendLog(self.path) as log:
            log.truncate(len(self.content))  # without what a kill cut off
            log.write(line)
            log.fsync()
        self._take(event, line, value)

    def _take(self, event: Event, line: bytes, value: str) -> None:
        self.events.append(event)
        self.content, self.value = self.content + line, value
        self._hashes[len(self.content)] = value

    def restore(self) -> bool:
        """Write the journal again where someone removed it; whether that was so."""
        gone = bool(self.events) and not self.path.exists()
        if gone:
            files.replace_file(self.path, self.content)
        return gone

    def mark(self, steps: int) -> dict[str, Any]:
        """What a checkpoint of this step counts on: its entry `journal`, or none.

        Only what was taken before that step: a run that is run again knows what came later, and saves the same.
        """
        count = next((n for n, event in enumerate(self.events) if event.step >= steps), len(self.events))
        length, value = list(self._hashes.items())[count]
        return {"journal": {"bytes": length, "chain": value}} if count else {}

    def check(self, mark: Mapping[str, Any]) -> None:
        """Refuse a journal that is not the one a checkpoint counts on, or a longer one."""
        if self._hashes.get(mark.get("bytes", 0)) != mark.get("chain", chain.START):
            raise RunError(f"{self.path}: is not the journal that the checkpoint counts on")


def _event(line: bytes, path: Path) -> Event:
    try:
        said = json.loads(line)
        event = Event(*(said[name] for name in ("do", "iteration", "step", "from", "values")))
        counts = (event.iteration, event.step, event.begins)
        good = event.do in DEEDS and all(type(count) is int and count >= 0 for count in counts)
        good = good and all(_is_value(value) for value in event.values.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise RunError(f"{path}: damaged (no command of a journal)")
    return event


def _is_value(value: object) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value))  # type: ignore[arg-type]
