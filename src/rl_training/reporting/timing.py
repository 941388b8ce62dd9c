"""Time profile of a run from timing.jsonl: seconds per activity, and speed over the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rl_training.reporting.columns import Column, Curve

Line = Mapping[str, float]

PHASES = {
    "collect_seconds": "gathering experience",
    "learn_seconds": "learning",
    "evaluate_seconds": "evaluating",
    "checkpoint_seconds": "saving",
}


class Timing:
    """What the lines of timing.jsonl come to."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.ends: list[
            Line
        ] = []  # the last line of each process that trained: on resume the clock begins anew
        self._speeds = Column()
        before: Line = {}
        for line in lines:
            if not self.ends or _seconds(line) < _seconds(self.ends[-1]):
                self.ends.append(line)
                # What a process did before its first line is averaged into it.
                self._speeds.add(line["step"], line.get("steps_per_second", np.nan))
                before = line
                continue
            self.ends[-1] = line
            # Of the lines at one step the first counts: an evaluation belongs to the stretch after it.
            steps, took = line["step"] - before["step"], _seconds(line) - _seconds(before)
            if steps > 0 and took > 0:
                self._speeds.add(line["step"], steps / took)
            if steps:
                before = line

    @property
    def processes(self) -> int:
        return len(self.ends)

    @property
    def seconds(self) -> float:
        """Seconds of the clock, over all processes."""
        return sum(map(_seconds, self.ends))

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time over all processes, each up to its last line; None in runs from before it was noted."""
        noted = [end["cpu_seconds"] for end in self.ends if "cpu_seconds" in end]
        return sum(noted) if noted else None

    @property
    def peak_memory_mb(self) -> float | None:
        """The most memory that one of the processes held."""
        return max((end["peak_memory_mb"] for end in self.ends if "peak_memory_mb" in end), default=None)

    @property
    def latest_speed(self) -> float | None:
        """Steps per second of the newest process."""
        return self.ends[-1].get("steps_per_second") if self.ends else None

    def speeds(self) -> Curve:
        """Steps per second between log lines."""
        return self._speeds.curve()

    def spent(self) -> dict[str, float]:
        """Seconds of the clock by what they went into, over all processes."""
        spent = {words: sum(end.get(name, 0.0) for end in self.ends) for name, words in PHASES.items()}
        if not any(spent.values()):
            return {}
        spent["everything else"] = max(0.0, self.seconds - sum(spent.values()))
        return {words: seconds for words, seconds in spent.items() if seconds > 0}


def _seconds(line: Line) -> float:
    return line.get("wall_seconds", 0.0)
