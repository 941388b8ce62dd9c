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
    require_same_keys,
    transient_names,
)
from rl_training.state.modules import load_module_state, module_state


class Stateful:
    """An object whose attributes are its state.

    `transient` names what `__init__` rebuilds and what is never saved; those of all base classes count too.
    """

    transient: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not isinstance(cls.transient, tuple):
            raise TypeError(f"{cls.__name__}.transient must be a tuple of names, not {cls.transient!r}")
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
            {name: _save(value, f"{owner}.{name}", (self,)) for name, value in _fields(self).items()}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take `state` over, into the tensors, arrays and objects that are there already.

        Views into flat parameters, memory formats and references held elsewhere therefore stay what they are.
        Raises ValueError when the attributes, or the shapes and dtypes of tensors, are not the same.
        """
        owner = type(self).__name__
        fields = _fields(self)
        require_same_keys(set(fields), set(state), owner)
        for name, current in fields.items():
            setattr(self, name, _load(current, state[name], f"{owner}.{name}"))


def _fields(thing: Stateful) -> dict[str, Any]:
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
        raise refusal(where, f"leads back to the {type(value).__name__} it is a part of")
    holders = (*holders, value)
    if isinstance(value, Stateful):
        if type(value).state_dict is not Stateful.state_dict:  # the object knows better
            return ObjectState(value.state_dict())
        owner = type(value).__name__
        return ObjectState(
            {name: _save(part, f"{owner}.{name}", holders) for name, part in _fields(value).items()}
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


def _load(current: Any, saved: Any, where: str) -> Any:
    """What the place of `current` shall hold: `current` itself, filled, wherever that is possible."""
    if isinstance(current, Stateful | nn.Module):
        if not isinstance(saved, dict):
            raise ValueError(f"{where}: no state was saved for this {type(current).__name__}")
        if isinstance(current, Stateful):
            current.load_state_dict(saved)
        else:
            load_module_state(current, saved, where)
        return current
    if isinstance(current, torch.Tensor) and saved is not None:
        return fill_tensor(current, saved, where)
    if isinstance(current, np.ndarray) and isinstance(saved, np.ndarray):
        if current.shape != saved.shape or current.dtype != saved.dtype or not current.flags.writeable:
            return saved.copy()
        current[...] = saved
        return current
    if type(current) is type(saved) and isinstance(current, list | tuple | deque):
        return _load_sequence(current, saved, where)
    if type(current) is dict and type(saved) is dict:
        loaded = {
            key: _load(current[key], value, f"{where}[{key!r}]") if key in current else _fresh(value, where)
            for key, value in saved.items()
        }
        _no_object_lost((value for key, value in current.items() if key not in saved), where)
        current.clear()
        current.update(loaded)
        return current
    _no_object_lost([current], where)
    return _fresh(saved, where)


def _load_sequence(current: Any, saved: Any, where: str) -> Any:
    if isinstance(current, deque) and current.maxlen != saved.maxlen:
        raise ValueError(f"{where}: saved with maxlen {saved.maxlen}, but it is {current.maxlen} here")
    if len(current) == len(saved):
        pairs = enumerate(zip(current, saved, strict=True))
        loaded = [_load(mine, value, f"{where}[{i}]") for i, (mine, value) in pairs]
    else:
        _no_object_lost(current, where)
        loaded = [_fresh(value, where) for value in saved]
    if isinstance(current, tuple):
        return tuple(loaded)
    current.clear()
    current.extend(loaded)
    return current


def _fresh(saved: Any, where: str) -> Any:
    """A copy of a saved value for a place that holds nothing to fill."""
    if isinstance(saved, ObjectState):
        raise ValueError(f"{where}: the state of an object was saved, and there is no object here to take it")
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
