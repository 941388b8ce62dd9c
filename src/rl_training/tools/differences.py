"""Where two trees of numbers differ first: checkpoints, batches, gradients, lines of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch


class Difference(NamedTuple):
    """A place in two trees, and how they differ there."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def differences(one: Any, other: Any, name: str = "") -> Iterator[Difference]:
    """All places at which two trees of dicts, lists, arrays and plain values differ, in the order of the first."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            inner = f"{name}.{key}" if name else str(key)
            if key not in one or key not in other:
                yield Difference(inner, f"only in the {'first' if key in one else 'second'}")
            else:
                yield from differences(one[key], other[key], inner)
    elif _is_list(one) and _is_list(other):
        for index, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{name}[{index}]")
        if len(one) != len(other):
            yield Difference(name, f"{len(one)} against {len(other)} entries")
    elif (what := _unlike(one, other)) is not None:
        yield Difference(name, what)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) or type(value).__name__ == "deque"


def _unlike(one: Any, other: Any) -> str | None:
    if isinstance(one, np.ndarray | torch.Tensor) and isinstance(other, np.ndarray | torch.Tensor):
        return unlike_arrays(as_array(one), as_array(other))
    same = type(one) is type(other) and (one == other or (one != one and other != other))
    return None if same else f"{one!r:.60} against {other!r:.60}"


def unlike_arrays(one: np.ndarray, other: np.ndarray) -> str | None:
    """How two arrays differ, bit by bit; None if they do not."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{list(one.shape)} against {other.dtype}{list(other.shape)}"
    if one.tobytes() == other.tobytes():
        return None
    unequal = np.atleast_1d(one != other)
    count = int(unequal.sum())
    if one.dtype.kind not in "fiub" or not count:
        return "its bits differ"
    gaps = np.abs(one.astype(np.float64) - other.astype(np.float64))
    first = tuple(int(index) for index in np.argwhere(unequal)[0])
    pair = f"first {np.atleast_1d(one)[first]:.9g} against {np.atleast_1d(other)[first]:.9g}"
    return f"{count} of {one.size} numbers differ, by at most {np.nanmax(gaps):.3g}; {pair}"


def as_array(value: np.ndarray | torch.Tensor) -> np.ndarray:
    """A copy on the host; numpy has no bfloat16, which a float32 holds exactly."""
    if isinstance(value, np.ndarray):
        return value.copy()
    data = value.detach().cpu()
    array: np.ndarray = (data.float() if data.dtype is torch.bfloat16 else data).numpy().copy()
    return array
