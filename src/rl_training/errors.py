"""The exceptions of this package, and their exit codes."""

from __future__ import annotations

import functools
import shlex
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType


class UserError(Exception):
    """Something the user can put right. The message is one line; the command line exits with 2."""


KeyPath = tuple[str | int, ...]  # of an entry: ("clip_coef_schedule", "end"), ("hidden_sizes", 0)


class ConfigError(UserError, ValueError):
    """A config that cannot be used. The message: where, what is wrong and, if any is near, the right name.

    path: leads to the entry that is refused; () where it is not a single one
    """

    def __init__(self, message: str = "", path: KeyPath = ()) -> None:
        super().__init__(message)
        self.path = path


@contextmanager
def about(*path: str | int, of: str = "") -> Iterator[None]:
    """What is refused in here is this entry, unless the refusal knows better, or knows it as the entry `of` alone."""
    try:
        yield
    except ConfigError as error:
        if not error.path or error.path == (of,):
            error.path = path
        raise


class UntrustedError(ConfigError):
    """A config from elsewhere reaches code or another machine, and nobody said that it may."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, unsafe to read, or written by a newer version."""


class RunError(UserError):
    """A run directory that cannot be used: taken, locked by another process, or not a run at all."""


class NonFiniteError(RuntimeError):
    """A NaN, an infinity, or a reward that leads to one, met in training before weights or checkpoints are touched.

    tensor:         the name of what is not finite, for example "policy_loss"
    env_index:      the environment it came from, if it came from one
    step:           the environment steps taken so far, if known
    value:          the number itself where it is finite, and too large to be learned from
    env_id:         the environment's name, if known
    largest_reward: the largest that the run has seen of late, without its sign, if known
    """

    env_id = ""
    largest_reward: float | None = None

    def __init__(
        self,
        tensor: str,
        env_index: int | None = None,
        step: int | None = None,
        value: float | None = None,
    ) -> None:
        # By default an exception is rebuilt from its message; this one must survive the trip from a worker.
        super().__init__(tensor, env_index, step, value)
        self.tensor, self.env_index, self.step, self.value = tensor, env_index, step, value

    def __str__(self) -> str:
        name = f" ({self.env_id})" if self.env_id else ""
        place = "" if self.env_index is None else f" in environment {self.env_index}{name}"
        time = "" if self.step is None else f" at step {self.step}"
        if self.value is not None:
            return f"{self.tensor} of {self.value:.4g}{place}{time}: its square is not finite in float32; scale it down"
        known = self.largest_reward is not None and self.env_index is None
        seen = f"; the largest reward of late was {self.largest_reward:.4g}{name}" if known else ""
        return f"{self.tensor} is not finite{place}{time}{seen}"


class EnvironmentFault(RuntimeError):
    """An environment that raised, returned what none may return, or whose process died or hung.

    What it raised is `__cause__`, with its traceback; from another process it is an `Elsewhere`, with the text of it.

    what:      what it did, such as "raised ValueError: no such key"
    env_index: which of the environments side by side
    broken:    whether it is the interface that it breaks, so that `check-env` would tell more
    """

    # Filled in on the way out, by whoever knows.
    env_id = ""
    place = ""  # the episode and its step
    step: int | None = None  # environment steps of the run before the iteration
    going_on = ""  # how to go on

    def __init__(self, what: str, env_index: int | None = None, broken: bool = False) -> None:
        super().__init__(what, env_index, broken)
        self.what, self.env_index, self.broken = what, env_index, broken

    def __str__(self) -> str:
        number = "" if self.env_index is None else f" {self.env_index}"
        subject = f"environment{number}" + (f" ({self.env_id})" if self.env_id else "")
        after = "" if self.step is None else f"after step {self.step}"
        places = ", ".join(filter(None, (self.place, after)))
        look = (
            f"`rl-training check-env {shlex.quote(self.env_id)}` gives details"
            if self.broken and self.env_id
            else ""
        )
        told = f"{subject} {self.what}" + (f" ({places})" if places else "")
        return "; ".join(filter(None, (told, look, self.going_on)))


class Elsewhere(Exception):
    """An exception of another process: the text of its traceback."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]).rstrip()


def traceback_of(fault: EnvironmentFault) -> str:
    """The traceback of what an environment raised, from its own first line on; "" where it raised nothing."""
    cause = fault.__cause__
    if isinstance(cause, Elsewhere):
        return f"{cause.args[0]}"
    if cause is None:
        return ""
    place = cause.__traceback__
    while place is not None and place.tb_next is not None and _is_ours(place):
        place = place.tb_next
    return "".join(traceback.format_exception(type(cause), cause, place))


def _is_ours(place: TracebackType) -> bool:
    return str(place.tb_frame.f_globals.get("__name__", "")).startswith("rl_training.")


class ActorError(EnvironmentFault):
    """An actor that cannot go on, however often it is asked."""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.what, self.going_on)))


class StorageError(RuntimeError):
    """A write that failed (disk full, no permission). The message says which last good checkpoint remains."""


class ObserverError(RuntimeError):
    """An observer that raised. The run was saved before it ended; `going_on` says how to go on."""

    going_on = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, (super().__str__(), self.going_on)))


class ExportError(RuntimeError):
    """An exported policy that does not act like the original. Nothing was written."""


def one_line(error: Exception) -> str:
    """The kind and the text of an error from elsewhere, short enough for a line of ours."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def add_extra(extra: str) -> str:
    """The command that adds what is missing, from the directory of the checkout."""
    return f"`pip install -c constraints.txt -e '.[{extra}]'`"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`"; did you mean X?"` for the candidate nearest to a misspelt word, or "" when none is near.

    Near means few slips of the hand for the length of the word, or else that the candidate contains it; capitals and
    small letters are the same.
    """
    word = word.lower()
    letters = _letters(word)

    def at_least(candidate: str) -> int:
        """A number of slips that is quick to count and never too high."""
        others = _letters(candidate.lower())
        missing, added = (letters & ~others).bit_count(), (others & ~letters).bit_count()
        return max(missing, added, abs(len(word) - len(candidate)))

    nearest, slips = "", max(1, round(0.4 * len(word))) + 1
    candidates = sorted(candidates, key=at_least)
    for candidate in candidates:
        if slips == 1 or at_least(candidate) >= slips:
            break
        if (found := _slips(word, candidate.lower())) < slips:
            nearest, slips = candidate, found
    if not nearest and len(word) > 2:
        nearest = next((candidate for candidate in candidates if word in candidate.lower()), "")
    return f"; did you mean {nearest}?" if nearest else ""


@functools.lru_cache(maxsize=4096)
def _letters(word: str) -> int:
    """The letters of a word as bits; two that share one only make the number of slips smaller."""
    return functools.reduce(lambda bits, letter: bits | 1 << ord(letter) % 64, word, 0)


def _slips(a: str, b: str) -> int:
    """Letters inserted, left out, replaced or swapped with their neighbour on the way from a to b."""
    while a and b and a[0] == b[0]:  # equal beginnings and equal ends cost nothing
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        before, last, row = row, before, [i]
        for j, other in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
