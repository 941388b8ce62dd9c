"""Which checkpoints of a run stay: the newest few, all, or a ladder that gets thinner with age.

    age in checkpoints       0  1   2 3   4..7   8..15   16..31   ...
    kept, numbers that are   all    all   even   of 4    of 8     multiples of 2^(k-1) at an age from 2^k on

Twice log₂ of their number stay, and the oldest: any step of the past is then at most about as far behind a checkpoint
as it is from the newest one. Which ones stay is a function of the steps alone, so a kill while others are being removed
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

ALL = "all"
LEAST = 2  # the newest ones, which always stay


class Keep(NamedTuple):
    """A rule: how many, or which."""

    rule: int | Literal["ladder", "all"]
    every: int = 1  # steps between two checkpoints
    most_bytes: int | None = None

    def kept(self, steps: Sequence[int]) -> list[int]:
        """The steps, of these rising ones, whose checkpoints stay as far as their sizes are not asked about."""
        if isinstance(self.rule, int):
            return list(steps[-self.rule :])
        if self.rule == ALL:
            return list(steps)
        newest = steps[-1] // self.every if steps else 0
        seen, rungs = set[int](), set(steps[:1]) | set(steps[-LEAST:])
        for step in steps:
            number = step // self.every
            # One that a signal asked for has the number of the one before it, which stands for both.
            if number not in seen and number % _stride(newest - number) == 0:
                rungs.add(step)
            seen.add(number)
        return sorted(rungs)

    def count(self, steps: int) -> int:
        """How many there are once a run has taken so many steps."""
        last = [] if steps % self.every == 0 else [steps]  # a run ends with a checkpoint
        return len(self.kept([*range(self.every, steps + 1, self.every), *last]))


def _stride(age: int) -> int:
    """2^(k-1) at an age of 2^k to 2^(k+1) - 1; 1 for the youngest."""
    return 1 << max(0, age.bit_length() - 2)
