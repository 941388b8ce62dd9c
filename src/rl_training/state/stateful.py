"""State is opt-out: every attribute of an object is saved unless its class names it in `transient`.

`state_dict()` gives a tree of plain values (None, bool, int, float, str), tuples, lists, dicts with string or
whole-number keys, deques, numpy arrays and scalars, and torch tensors; all of it copied, so that the tree
stays what it was while training goes on. What cannot be saved raises at once: to forget an attribute is loud.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

PLAIN = (type(None), bool, int, float, str)
WHOLE_NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = ("bool", "float16", "float32", "float64", *WHOLE_NUMBERS)
NUMPY_DTYPES = frozenset(np.dtype(name) for name in DTYPES)
TORCH_DTYPES = frozenset(getattr(torch, name) for name in [*DTYPES, "bfloat16"])

# Attributes of a module that no iteration changes and that the constructor makes again.
CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"}
# Lists that torch's own layers derive from their parameters and arguments.
LAYER_INTERNALS = frozenset(
    {
        "_flat_weights",
        "_flat_weights_names",
        "_flat_weight_refs",
        "_all_weights",
        "_reversed_padding_repeated_twice",
    }
)


class ObjectState(dict[str, Any]):
    """The state of an object, as against a dict that is itself a value.

    It keeps an object from silently coming back as a dict where the loading side has no object to fill.
    """


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
        _same_keys(set(fields), set(state), owner)
        for name, current in fields.items():
            setattr(self, name, _load(current, state[name], f"{owner}.{name}"))


def _transient(cls: type) -> frozenset[str]:
    return frozenset(name for base in cls.__mro__ for name in vars(base).get("transient", ()))


def _fields(thing: Stateful) -> dict[str, Any]:
    transient = _transient(type(thing))
    return {name: value for name, value in vars(thing).items() if name not in transient}


def _same_keys(mine: set[Any], saved: set[Any], where: str) -> None:
    if mine != saved:
        missing, unknown = sorted(map(str, mine - saved)), sorted(map(str, saved - mine))
        lists = [
            f"lacks {', '.join(missing)}" if missing else "",
            f"has unknown {', '.join(unknown)}" if unknown else "",
        ]
        raise ValueError(f"{where}: the saved state {' and '.join(filter(None, lists))}")


def _refusal(where: str, what: str) -> TypeError:
    return TypeError(f"{where} {what}: give it a state or name it in `transient`")


def _copy_tensor(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.dtype not in TORCH_DTYPES or tensor.device.type == "meta":
        raise _refusal(
            where, f"is a tensor that cannot be saved ({tensor.dtype}, {tensor.layout}, {tensor.device})"
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _copy_array(array: np.ndarray, where: str) -> np.ndarray:
    if type(array) is not np.ndarray or array.dtype not in NUMPY_DTYPES:
        raise _refusal(
            where, f"is a numpy {type(array).__name__} of dtype {array.dtype}, which cannot be saved"
        )
    return array.copy(order="C")


def _save(value: Any, where: str, holders: tuple[Any, ...]) -> Any:
    """A copy of `value` as a tree; `holders` are the objects around it, to notice a way back to one."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _copy_tensor(value, where)
    if isinstance(value, np.ndarray):
        return _copy_array(value, where)
    if isinstance(value, np.generic) and value.dtype in NUMPY_DTYPES:
        return value
    if any(value is holder for holder in holders):
        raise _refusal(where, f"leads back to the {type(value).__name__} it is a part of")
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
                raise _refusal(where, f"has the key {key!r}, which is neither a string nor a whole number")
        return {key: _save(part, f"{where}[{key!r}]", holders) for key, part in value.items()}
    raise _refusal(where, f"is a {type(value).__name__}")


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
        return _fill_tensor(current, saved, where)
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
        # The same tuple when nothing in it was replaced, so that references to it stay good.
        return (
            current
            if all(a is b for a, b in zip(current, loaded, strict=False)) and loaded
            else tuple(loaded)
        )
    current.clear()
    current.extend(loaded)
    return current


def _fill_tensor(current: torch.Tensor, saved: Any, where: str) -> torch.Tensor:
    if not isinstance(saved, torch.Tensor):
        raise ValueError(f"{where}: a tensor here, but a {type(saved).__name__} was saved")
    if current.shape != saved.shape or current.dtype != saved.dtype:
        here, there = f"{tuple(current.shape)} {current.dtype}", f"{tuple(saved.shape)} {saved.dtype}"
        raise ValueError(f"{where}: a tensor of {here} here, but {there} was saved")
    with torch.no_grad():
        current.copy_(saved)
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


def module_state(module: nn.Module) -> ObjectState:
    """Parameters, buffers and plain attributes of a module and all modules inside it, by their dotted names.

    A module can hide state from `nn.Module.state_dict`: buffers that are not persistent, lists, arrays,
    tensors that are not registered. Those raise TypeError. Numbers, strings and flags are saved and restored.
    """
    owner = type(module).__name__
    state = ObjectState(
        {name: _copy_tensor(tensor, f"{owner}.{name}") for name, tensor in _module_tensors(module)}
    )
    state.update((name, value) for name, _, _, value in _module_attributes(module))
    return state


def load_module_state(module: nn.Module, state: Mapping[str, Any], where: str = "") -> None:
    """Copy what `module_state` gave into the storage of `module`; ValueError where the two do not fit."""
    where = where or type(module).__name__
    tensors = dict(_module_tensors(module))
    attributes = {name: (owner, attribute) for name, owner, attribute, _ in _module_attributes(module)}
    # The plain attributes of torch's own layers differ between torch versions; those of others may not.
    free = {name for name, (owner, _) in attributes.items() if _is_torch_layer(owner)}
    free |= {
        name
        for name, value in state.items()
        if not isinstance(value, torch.Tensor) and _is_torch_layer(_owner_of(module, name))
    }
    _same_keys((tensors.keys() | attributes.keys()) - free, state.keys() - free, where)
    for name, tensor in tensors.items():
        _fill_tensor(tensor, state[name], f"{where}.{name}")
    for name, (owner, attribute) in attributes.items():
        if name in state:
            if isinstance(state[name], torch.Tensor | np.ndarray | list | dict):
                raise ValueError(
                    f"{where}.{name}: a plain value here, but a {type(state[name]).__name__} was saved"
                )
            setattr(owner, attribute, state[name])


def _is_torch_layer(module: nn.Module | None) -> bool:
    return module is not None and type(module).__module__.startswith("torch.nn.")


def _owner_of(module: nn.Module, name: str) -> nn.Module | None:
    for part in name.split(".")[:-1]:
        inside = module._modules.get(part)
        if inside is None:
            return None
        module = inside
    return module


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module and those inside it, each once, with dotted prefixes; refuses what hides state."""
    pending, seen = [("", module)], set()
    while pending:
        prefix, part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        transient = _transient(type(part))
        for name in sorted(part._non_persistent_buffers_set - transient):
            raise _refusal(f"{type(part).__name__}.{name}", "is a buffer that is not persistent")
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise _refusal(
                f"{type(part).__name__}.get_extra_state", "is state outside parameters and buffers"
            )
        yield prefix, part
        inside = [
            (f"{prefix}{name}.", child) for name, child in part._modules.items() if name not in transient
        ]
        pending.extend((name, child) for name, child in reversed(inside) if child is not None)


def _module_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each once even where it is shared."""
    seen = set()
    for prefix, part in _parts(module):
        transient = _transient(type(part))
        for name, tensor in (part._parameters | part._buffers).items():
            if tensor is not None and name not in transient and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


def _module_attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """(dotted name, module it belongs to, attribute, value) of all plain attributes; refuses hidden state."""
    for prefix, part in _parts(module):
        skipped = MODULE_INTERNALS | LAYER_INTERNALS | _transient(type(part))
        for name, value in vars(part).items():
            if name in skipped:
                continue
            if _is_plain(value):
                yield prefix + name, part, name, value
            elif not _is_constant(value):
                raise _refusal(
                    f"{type(part).__name__}.{name}", f"is a {type(value).__name__} in an nn.Module"
                )


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(_is_plain(part) for part in value))


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(_is_plain(part) or _is_constant(part) for part in value)
    return isinstance(value, CONSTANTS)
