"""State is opt-out: every attribute of an object is saved unless its class names it in `transient`.

`state_dict()` gives a tree of plain values (None, bool, int, float, str), tuples, lists, dicts with string or
whole-number keys, deques, numpy arrays and scalars, and torch tensors; all of it copied, so that the tree
stays what it was while training goes on. What cannot be saved raises at once: to forget an attribute is loud.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.state.leaves import (
    NUMPY_DTYPES,
    PLAIN,
    ObjectState,
    copy_tensor,
    fill_tensor,
    refusal,
    require_array,
    require_same_keys,
    transient_names,
    varying_names,
)
from rl_training.state.modules import load_module_state, module_state


class Stateful:
    """An object whose attributes are its state.

    `transient` names what `__init__` rebuilds and what is never saved; `varying` what may change its type or shape
    while a run goes on, which nothing else may. Those of all base classes count too.
    """

    transient: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for what in ("transient", "varying"):
            if not isinstance(getattr(cls, what), tuple):
                raise TypeError(f"{cls.__name__}.{what} must be a tuple of names, not {getattr(cls, what)!r}")
        if vars(cls).get("__slots__"):
            raise TypeError(f"{cls.__name__} has __slots__, which state_dict() would not see")
        if issubclass(cls, nn.Module):
            raise TypeError(
                f"{cls.__name__}: an nn.Module is saved as it is; hold it in an attribute instead"
            )

    def state_dict(self) -> dict[str, Any]:
        """All attributes that are not transient, copied."""
        owner = type(self).__name__
        return ObjectState(
            {name: _save(value, f"{owner}.{name}", (self,)) for name, value in fields(self).items()}
        )

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take `state` over, into the tensors, arrays and objects that are there already.

        Views into flat parameters, memory formats and references held elsewhere therefore stay what they are.
        Raises ValueError when the attributes, their types, or the shapes and dtypes of tensors and arrays, are not
        the same. Only the lengths of lists, deques and dicts are free, and what is named in `varying`.
        """
        owner = type(self).__name__
        mine, varying = fields(self), varying_names(type(self))
        require_same_keys(set(mine), set(state), owner)
        for name, current in mine.items():
            setattr(self, name, _load(current, state[name], f"{owner}.{name}", name in varying))
        self.check_state()

    def check_state(self) -> None:
        """Refuse with `require` what was loaded and cannot be: the files of a checkpoint may be forged."""


def fields(thing: Stateful) -> dict[str, Any]:
    """What of an object is state, as it stands."""
    transient = transient_names(type(thing))
    return {name: value for name, value in vars(thing).items() if name not in transient}


def _copy_array(array: np.ndarray, where: str) -> np.ndarray:
    if type(array) is not np.ndarray or array.dtype not in NUMPY_DTYPES:
        raise refusal(
            where, f"is a numpy {type(array).__name__} of dtype {array.dtype}, which cannot be saved"
        )
    return array.copy(order="C")


def _save(value: Any, where: str, holders: tuple[Any, ...]) -> Any:
    """A copy of `value` as a tree; `holders` are the objects around it, to notice a way back to one."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return copy_tensor(value, where)
    if isinstance(value, np.ndarray):
        return _copy_array(value, where)
    if isinstance(value, np.generic) and value.dtype in NUMPY_DTYPES:
        return value
    if any(value is holder for holder in holders):
        raise refusal(where, f"refers back to the {type(value).__name__} that contains it")
    holders = (*holders, value)
    if isinstance(value, Stateful):
        if type(value).state_dict is not Stateful.state_dict:  # the object knows better
            return ObjectState(value.state_dict())
        owner = type(value).__name__
        return ObjectState(
            {name: _save(part, f"{owner}.{name}", holders) for name, part in fields(value).items()}
        )
    if isinstance(value, nn.Module):
        return module_state(value)
    if type(value) in (list, tuple):
        return type(value)(_save(part, f"{where}[{i}]", holders) for i, part in enumerate(value))
    if type(value) is deque:
        return deque((_save(part, f"{where}[{i}]", holders) for i, part in enumerate(value)), value.maxlen)
    if type(value) is dict:
        for key in value:
            if type(key) not in (str, int):
                raise refusal(where, f"has the key {key!r}, which is neither a string nor a whole number")
        return {key: _save(part, f"{where}[{key!r}]", holders) for key, part in value.items()}
    raise refusal(where, f"is a {type(value).__name__}")


def _load(current: object, saved: object, where: str, varying: bool = False) -> Any:
    """What the place of `current` shall hold: `current` itself, filled, wherever that is possible."""
    if isinstance(current, Stateful | nn.Module):
        if not isinstance(saved, dict):
            raise ValueError(f"{where}: no state was saved for this {type(current).__name__}")
        if isinstance(current, Stateful):
            current.load_state_dict(saved)
        else:
            load_module_state(current, saved, where)
        return current
    if isinstance(current, torch.Tensor) and not (varying and saved is None):
        return fill_tensor(current, saved, where)
    if isinstance(current, np.ndarray) and isinstance(saved, np.ndarray):
        return _load_array(current, saved, where, varying)
    if type(current) is type(saved) and isinstance(current, list | tuple | deque):
        return _load_sequence(current, saved, where, varying)
    if type(current) is dict and type(saved) is dict:
        loaded = {
            key: _load(current[key], value, f"{where}[{key!r}]", varying)
            if key in current
            else _fresh(value, where)
            for key, value in saved.items()
        }
        _no_object_lost((value for key, value in current.items() if key not in saved), where)
        current.clear()
        current.update(loaded)
        return current
    _no_object_lost([current], where)
    if not varying:
        _require_same_kind(current, saved, where)
    return _fresh(saved, where)


def _load_array(current: np.ndarray, saved: np.ndarray, where: str, varying: bool) -> np.ndarray:
    if not varying:
        require_array(saved, current.shape, current.dtype, where)
    if current.shape != saved.shape or current.dtype != saved.dtype or not current.flags.writeable:
        return saved.copy()
    current[...] = saved
    return current


def _load_sequence(current: Any, saved: Any, where: str, varying: bool) -> Any:
    if isinstance(current, deque) and current.maxlen != saved.maxlen:
        raise ValueError(f"{where}: saved with maxlen {saved.maxlen}, but it is {current.maxlen} here")
    if isinstance(current, tuple) and len(current) != len(saved) and not varying:
        raise ValueError(f"{where}: a tuple of {len(current)} here, but one of {len(saved)} was saved")
    if len(current) == len(saved):
        pairs = enumerate(zip(current, saved, strict=True))
        loaded = [_load(mine, value, f"{where}[{i}]", varying) for i, (mine, value) in pairs]
    else:
        _no_object_lost(current, where)
        loaded = [_fresh(value, where) for value in saved]
    if isinstance(current, tuple):
        return tuple(loaded)
    current.clear()
    current.extend(loaded)
    return current


def _require_same_kind(current: object, saved: Any, where: str) -> None:
    here, there = _kind(current), _kind(saved)
    if here is not there and not (here is float and there is int):
        names = f"{here.__name__} here, but {there.__name__} was saved"
        raise ValueError(f"{where}: {names}; if it changes during a run, name it in `varying`")
    if there is int and not -(2**63) <= int(saved) < 2**63:
        raise ValueError(f"{where}: a whole number beyond 64 bits was saved")


def _kind(value: object) -> type:
    """bool, int or float for a number of Python's or of numpy's; arithmetic turns arrays [] into scalars."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return {"b": bool, "i": int, "u": int, "f": float}[value.dtype.kind]
    return type(value)


def _fresh(saved: object, where: str) -> Any:
    """A copy of a saved value for a place that holds nothing to fill."""
    if isinstance(saved, ObjectState):
        raise ValueError(f"{where}: the state of an object was saved, but there is no object to load it into")
    if isinstance(saved, torch.Tensor):
        return saved.clone()
    if isinstance(saved, np.ndarray):
        return saved.copy()
    if isinstance(saved, list | tuple):
        return type(saved)(_fresh(part, where) for part in saved)
    if isinstance(saved, deque):
        return deque((_fresh(part, where) for part in saved), saved.maxlen)
    if isinstance(saved, dict):
        return {key: _fresh(part, where) for key, part in saved.items()}
    return saved


def _no_object_lost(values: Any, where: str) -> None:
    for value in values:
        if isinstance(value, Stateful | nn.Module):
            raise ValueError(f"{where}: no state was saved for a {type(value).__name__} it holds")
        if isinstance(value, list | tuple | deque):
            _no_object_lost(value, where)
        elif isinstance(value, dict):
            _no_object_lost(value.values(), where)
