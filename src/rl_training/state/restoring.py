"""Loading a checkpoint: any error that its contents cause becomes one line that names it.

A checkpoint can be whole, byte for byte, and still make no sense: its checksums only say that it is as it was written.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from rl_training.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    NonFiniteError,
    ObserverError,
    StorageError,
    UserError,
    one_line,
)

SIZES_ONE_BY_ONE = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)  # also as (2, 3) in one
OURS = (UserError, StorageError, NonFiniteError, EnvironmentFault, ObserverError)


@contextmanager
def taking_over(path: str | Path, changes: Iterable[str] = ()) -> Iterator[None]:
    """Around everything that reads the tree of the checkpoint at `path`; errors meant for users pass as they are.

    changes: the fields of the config, if any, that are not those the checkpoint was saved with
    """
    try:
        yield
    except OURS:
        raise
    except Exception as error:
        names = ", ".join(changes)
        if names:
            raise ConfigError(
                f"{names}: the state of {Path(path).name} does not fit this change; train a new run instead"
            ) from error
        raise CheckpointError(
            f"{path}: is intact, but holds values that no training writes ({one_line(error)}); use another checkpoint"
        ) from error


@contextmanager
def no_larger_than(saved: object) -> Iterator[None]:
    """Networks made in here may take little more memory than the tensors of the saved state that they are made for."""
    with _Budget(2**20 + 8 * _numbers(saved)):
        yield


class _Budget(TorchFunctionMode):
    """Refuses to make tensors of more than so many numbers in all, before it is done."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.left = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sizes = [size for size in args if isinstance(size, list | tuple)]
        sizes += (
            [args] if func in SIZES_ONE_BY_ONE else [(number,) for number in args]
        )  # such as those of arange
        for size in sizes:
            whole = [number for number in size if type(number) is int]
            self.left -= abs(math.prod(whole)) if whole else 0
        if self.left < 0:
            raise ValueError("its config describes a larger network than the saved one")
        return func(*args, **(kwargs or {}))


def _numbers(saved: object) -> int:
    """How many numbers the tensors and arrays of a saved state hold."""
    if isinstance(saved, dict):
        return sum(map(_numbers, saved.values()))
    if isinstance(saved, list | tuple | deque):
        return sum(map(_numbers, saved))
    return math.prod(saved.shape) if isinstance(saved, torch.Tensor | np.ndarray) else 0
