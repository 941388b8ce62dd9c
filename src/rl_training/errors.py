"""The errors this package raises on purpose, and what each one means to the person at the command line."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from os.path import commonprefix


class UserError(Exception):
    """Something the user can put right. The message is one line; the command line exits with 2."""


class ConfigError(UserError, ValueError):
    """A config that cannot be used. The message: where, what is wrong and, if any is near, the right name."""


class UntrustedError(ConfigError):
    """A config from elsewhere reaches code or another machine, and nobody said that it may."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, unsafe to read, or written by a newer version."""


class RunError(UserError):
    """A run directory that cannot be used: taken, locked by another process, or not a run at all."""


class NonFiniteError(RuntimeError):
    """A NaN or an infinity met during training, raised before weights or checkpoints are touched.

    tensor:    the name of what is not finite, for example "policy_loss"
    env_index: the environment it came from, if it came from one
    step:      the environment steps taken so far, if known
    """

    def __init__(self, tensor: str, env_index: int | None = None, step: int | None = None) -> None:
        self.tensor = tensor
        self.env_index = env_index
        self.step = step
        place = "" if env_index is None else f" in environment {env_index}"
        time = "" if step is None else f" at step {step}"
        super().__init__(f"{tensor} is not finite{place}{time}")

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str, int | None, int | None]]:
        # By default an exception is rebuilt from its message; this one must survive the trip from a worker.
        return type(self), (self.tensor, self.env_index, self.step)


class ActorError(RuntimeError):
    """An actor that cannot go on, however often it is asked. The message holds its environment's traceback."""


class StorageError(RuntimeError):
    """A write that failed (disk full, no permission). The message says which last good checkpoint remains."""


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

    Near means few slips of the hand for the length of the word, or else that the candidate contains it.
    """
    letters = _letters(word)

    def at_least(candidate: str) -> int:
        """A number of slips that is quick to count and never too high."""
        others = _letters(candidate)
        missing, added = (letters & ~others).bit_count(), (others & ~letters).bit_count()
        return max(missing, added, abs(len(word) - len(candidate)))

    nearest, slips = "", max(1, round(0.4 * len(word))) + 1
    candidates = sorted(candidates, key=at_least)
    for candidate in candidates:
        if slips == 1 or at_least(candidate) >= slips:
            break
        if (found := _slips(word, candidate)) < slips:
            nearest, slips = candidate, found
    if not nearest and len(word) > 2:
        nearest = next((candidate for candidate in candidates if word in candidate), "")
    return f"; did you mean {nearest}?" if nearest else ""


@functools.lru_cache(maxsize=4096)
def _letters(word: str) -> int:
    """The letters of a word as bits; two that share one only make the number of slips smaller."""
    return functools.reduce(lambda bits, letter: bits | 1 << ord(letter) % 64, word, 0)


def _slips(a: str, b: str) -> int:
    """Letters inserted, left out, replaced or swapped with their neighbour on the way from a to b."""
    for step in (1, -1):  # equal beginnings and equal ends cost nothing
        same = len(commonprefix([a[::step], b[::step]]))
        a, b = (a[same:], b[same:]) if step == 1 else (a[: len(a) - same], b[: len(b) - same])
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
