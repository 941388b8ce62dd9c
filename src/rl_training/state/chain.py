"""The hash chain of metrics.jsonl: the last field of each line is a hash of the line before and of the line itself.

    {"step": 128, "loss": 0.5, "chain": "5f0c83d2a1b94e67"}

    hₙ = BLAKE2b-64(hₙ₋₁ ‖ the bytes of line n before `, "chain"`)

h₀ is the hash of the bytes before the chain begins: none in most runs; in a run of format 1, or one that was resumed in
spite of a damaged log, all that stood there when it was resumed. A checkpoint holds the newest hash, so no line is
hashed twice while a run trains, and every line up to the checkpoint is covered. The hashes find damage, not forgery.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rl_training.errors import CheckpointError, RunError
from rl_training.state.reading import reason

FIELD = "chain"
OPENING, CLOSING = b', "chain": "', b'"}\n'
BYTES = 8
ENCODER = json.JSONEncoder(allow_nan=False)  # made once: `json.dumps` with a setting makes one for each line
TAIL = len(OPENING) + 2 * BYTES + len(CLOSING)
MAX_LINE_BYTES = 2**24
START = hashlib.blake2b(b"", digest_size=BYTES).hexdigest()  # the hash before the first line of a new run


class Mark(NamedTuple):
    """Where a checkpoint stands in the log: how long it was, its newest hash, and the bytes before its chain."""

    length: int
    value: str
    begins: int


def mark_of(progress: Mapping[str, object]) -> Mark | None:
    """Where a checkpoint with this progress stands in the log; None if it is of format 1 and knows no chain."""
    if FIELD not in progress:
        return None
    length, value, begins = (progress.get(name) for name in ("metrics_bytes", FIELD, "chain_begins"))
    if type(length) is not int or type(value) is not str or type(begins) is not int:
        raise CheckpointError("damaged: the checkpoint's position in metrics.jsonl is missing")
    return Mark(length, value, begins)


class Damage(NamedTuple):
    """The first damaged line of a log, and what is wrong with it."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line} is damaged ({self.what})"


def linked(before: str, values: Mapping[str, float | str]) -> tuple[bytes, str]:
    """The line of these values that follows a line with the hash `before`, and its own hash."""
    body = ENCODER.encode(values).encode()[:-1]
    value = _hash(before, body)
    return body + OPENING + value.encode() + CLOSING, value


def numbers(line: bytes) -> dict[str, float] | None:
    """The numbers of a line by name; None if it is no flat JSON object of finite numbers and words with a step."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    numbers = {name: value for name, value in values.items() if type(value) is not str}
    good = "step" in numbers and all(type(value) in (int, float) for value in numbers.values())
    try:
        return numbers if good and all(map(math.isfinite, numbers.values())) else None
    except OverflowError:  # a whole number that no float can hold
        return None


def hash_of(line: bytes) -> str:
    """The hash that a line carries, or "" if it carries none."""
    tail = line[-TAIL:]
    whole = tail.startswith(OPENING) and tail.endswith(CLOSING)
    return tail[len(OPENING) : -len(CLOSING)].decode("ascii", "replace") if whole else ""


def _hash(before: str, body: bytes) -> str:
    return hashlib.blake2b(before.encode() + body, digest_size=BYTES).hexdigest()


class Follower:
    """Follows a log line by line, and says of each whether it is the one that was written there."""

    def __init__(self, mark: Mark) -> None:
        self.mark, self.position, self.line = mark, 0, 0
        self._before = hashlib.blake2b(digest_size=BYTES)  # of what stands before the chain
        self.value = START

    def follow(self, line: bytes) -> Damage | None:
        """Take the next line, its end included; what is wrong with it, if anything is."""
        began = self.position
        self.position += len(line)
        self.line += 1
        if not line.endswith(b"\n"):
            return Damage(self.line, "it does not end")
        if self.position <= self.mark.begins:
            self._before.update(line)
            self.value = self._before.hexdigest()
        elif (carried := hash_of(line)) == "":
            return Damage(self.line, "it carries no hash")
        else:
            self.value = _hash(self.value, line[:-TAIL])
            if carried != self.value:
                first = self.mark.begins > 0 and began <= self.mark.begins
                why = ", or a line before it is, where none has a hash" if first else ""
                return Damage(self.line, f"its hash does not match{why}")
        passing = began < self.mark.length <= self.position
        if passing and (self.position, self.value) != self.mark[:2]:
            return Damage(self.line, "the checkpoint counts on another one")
        return None

    def end(self) -> Damage | None:
        """The log ends here; what is missing up to the checkpoint, if anything is."""
        if self.position >= self.mark.length:
            return None
        left = f"{self.position} of {self.mark.length} bytes are left"
        return Damage(self.line + 1, f"the log has been cut before its end, {left}")


def lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a log with their ends; what is longer than any line is cut, and then is none."""
    while line := file.readline(MAX_LINE_BYTES):
        yield line


def verify(file: BinaryIO, mark: Mark) -> Damage | None:
    """The first damaged line of what a checkpoint counts on; None if every byte of it is as it was written."""
    follower = Follower(mark)
    for line in lines(file):
        if follower.position >= mark.length:
            break
        damage = follower.follow(line)
        if damage is not None:
            return damage
    return follower.end()


def begin_after(file: BinaryIO, length: int, steps: float = math.inf) -> tuple[Mark, Damage | None]:
    """A chain that begins behind the whole lines among the first `length` bytes; damage if these are fewer bytes.

    A line of a later step than `steps` ends them: what the run writes again must not stand there twice.
    """
    follower = Follower(Mark(length, "", length))
    for line in lines(file):
        if not line.endswith(b"\n") or follower.position + len(line) > length:
            break
        if (numbers(line) or {}).get("step", -math.inf) > steps:
            break
        follower.follow(line)
    return Mark(follower.position, follower.value, follower.position), follower.end()


def end_of(file: BinaryIO, value: str) -> int | None:
    """Where the line ends that carries this hash; None if there is no such line."""
    position = 0
    for line in lines(file):
        position += len(line)
        if hash_of(line) == value:
            return position
    return None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A log to be read; one that is not there is empty."""
    try:
        file: BinaryIO = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        file = BytesIO()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {reason(error)}") from error
    with file:
        if not isinstance(file, BytesIO) and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RunError(f"{path}: cannot be read: it is not a regular file")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a named pipe too is open at once, though nobody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)
