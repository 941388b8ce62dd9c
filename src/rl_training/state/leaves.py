"""Leaves of a state tree: supported types, and saving and loading of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

PLAIN = (type(None), bool, int, float, str)
WHOLE_NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = ("bool", "float16", "float32", "float64", *WHOLE_NUMBERS)
NUMPY_DTYPES = frozenset(np.dtype(name) for name in DTYPES)
TORCH_DTYPES = frozenset(getattr(torch, name) for name in [*DTYPES, "bfloat16"])


class ObjectState(dict[str, Any]):
    """The state of an object, as against a dict that is itself a value.

    It keeps an object from silently coming back as a dict where the loading side has no object to fill.
    """


def transient_names(cls: type) -> frozenset[str]:
    return _declared(cls, "transient")


def varying_names(cls: type) -> frozenset[str]:
    return _declared(cls, "varying")


def _declared(cls: type, what: str) -> frozenset[str]:
    return frozenset(name for base in cls.__mro__ for name in vars(base).get(what, ()))


def require(holds: object, what: str) -> None:
    """Refuse a saved state in which something does not hold: a checkpoint may be forged."""
    if not holds:
        raise ValueError(what)


def is_whole(value: object, low: int = 0, high: int = 2**62) -> bool:
    """Whether a saved value is a whole number in [low, high); a bool is none."""
    return type(value) is int and low <= value < high


def are_finite(values: Iterable[Any]) -> bool:
    """Whether saved values are finite numbers, every one."""
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)


def require_array(array: Any, shape: tuple[int, ...], dtype: Any, where: str) -> None:
    """Refuse what is no array of this shape and dtype: assignment would broadcast and cast it in silence."""
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        given = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{where}: an array of {shape} {np.dtype(dtype)} here, but {given} was saved")


def require_bools(array: np.ndarray, where: str) -> None:
    """Refuse a bool that is neither 0 nor 1: numpy and torch count on that when they index with one."""
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise ValueError(f"{where}: a bool that is neither true nor false")


def require_same_keys(mine: set[Any], saved: set[Any], where: str) -> None:
    if mine != saved:
        missing, unknown = sorted(map(str, mine - saved)), sorted(map(str, saved - mine))
        lists = [
            f"lacks {', '.join(missing)}" if missing else "",
            f"has unknown {', '.join(unknown)}" if unknown else "",
        ]
        raise ValueError(f"{where}: the saved state {' and '.join(filter(None, lists))}")


def refusal(where: str, what: str) -> TypeError:
    return TypeError(f"{where} {what}: give it a state or name it in `transient`")


def copy_tensor(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.dtype not in TORCH_DTYPES or tensor.device.type == "meta":
        raise refusal(
            where, f"is a tensor that cannot be saved ({tensor.dtype}, {tensor.layout}, {tensor.device})"
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def fill_tensor(current: torch.Tensor, saved: object, where: str) -> torch.Tensor:
    if not isinstance(saved, torch.Tensor):
        raise ValueError(f"{where}: a tensor here, but a {type(saved).__name__} was saved")
    if current.shape != saved.shape or current.dtype != saved.dtype:
        here, there = f"{tuple(current.shape)} {current.dtype}", f"{tuple(saved.shape)} {saved.dtype}"
        raise ValueError(f"{where}: a tensor of {here} here, but {there} was saved")
    # Training never saves a NaN or an infinity where none belongs: the loss would have been refused before.
    if saved.is_floating_point() and not saved.isfinite().all() and current.isfinite().all():
        raise ValueError(f"{where}: a number that is not finite was saved")
    with torch.no_grad():
        current.copy_(saved)
    return current
