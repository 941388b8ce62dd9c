"""Derived seeds: every random stream is identified by (run seed, purpose, counters).

The engine calls `seed_everything(fold(seed, "iteration", n))` at the start of iteration n, so an iteration
is a function of the state and its number, and no generator's state has to be saved.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def fold(seed: int, *path: int | str) -> int:
    """A seed in [0, 2^63) for `path`: equal for equal paths, independent for different ones.

    Whole numbers of any type (numpy's too) count by their value: `fold(1, np.int64(3))` is `fold(1, 3)`.
    """
    arguments = tuple(part if isinstance(part, str) else operator.index(part) for part in (seed, *path))
    digest = hashlib.blake2b(repr(arguments).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators of this process: `random`, numpy's global one, and torch's.

    `torch.manual_seed` costs some 100 µs a call because it also visits devices that are not there; asking the
    default generator directly costs about one. A GPU that nobody has used yet has no generator to seed.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the generators of this process as they were, whatever is drawn from them within."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
