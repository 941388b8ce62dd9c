"""State of an nn.Module, with a refusal of state that `nn.Module.state_dict` does not see."""

from __future__ import annotations

import enum
import functools
import math
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.state.leaves import (
    PLAIN,
    ObjectState,
    copy_tensor,
    fill_tensor,
    refusal,
    require_same_keys,
    transient_names,
    varying_names,
)

# Attributes of a module that no iteration changes and that the constructor makes again.
CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
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


def module_state(module: nn.Module) -> ObjectState:
    """Parameters, buffers and plain attributes of a module and all modules inside it, by their dotted names.

    A module can hide state from `nn.Module.state_dict`: buffers that are not persistent, lists, arrays,
    tensors that are not registered. Those raise TypeError. Numbers, strings and flags are saved and restored.
    """
    owner = type(module).__name__
    state = ObjectState(
        {name: copy_tensor(tensor, f"{owner}.{name}") for name, tensor in _module_tensors(module)}
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
    require_same_keys((tensors.keys() | attributes.keys()) - free, state.keys() - free, where)
    for name, tensor in tensors.items():
        fill_tensor(tensor, state[name], f"{where}.{name}")
    for name, (owner, attribute) in attributes.items():
        if name in state:
            _load_attribute(owner, attribute, state[name], f"{where}.{name}")


def _load_attribute(module: nn.Module, name: str, saved: Any, where: str) -> None:
    """Floats, `training` and what is `varying` come back; shapes hang on all else, which stays as it was made.

    In torch's own layers that may differ from what was saved: another version of torch may have called it otherwise.
    """
    current, torch_layer = getattr(module, name), _is_torch_layer(module)
    if name == "training" or name in varying_names(type(module)):
        fits = _is_plain(saved) and type(saved) is type(current)
    elif type(current) is float:
        fits = type(saved) in (int, float) and math.isfinite(saved)
        if torch_layer and 0.0 <= current <= 1.0:  # a probability, a momentum, an ε
            fits = fits and 0.0 <= saved <= 1.0
    elif torch_layer:
        return
    else:
        fits = _same(current, saved)
    if not fits:
        raise ValueError(f"{where}: {current!r} here, but {saved!r:.40} was saved")
    setattr(module, name, saved)


def _same(current: Any, saved: Any) -> bool:
    if type(current) is tuple:
        fits = type(saved) is tuple and len(saved) == len(current)
        return fits and all(_same(*pair) for pair in zip(current, saved, strict=True))
    return type(saved) is type(current) and bool(saved == current)


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
        transient = transient_names(type(part))
        for name in sorted(part._non_persistent_buffers_set - transient):
            raise refusal(f"{type(part).__name__}.{name}", "is a buffer that is not persistent")
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise refusal(f"{type(part).__name__}.get_extra_state", "is state outside parameters and buffers")
        yield prefix, part
        inside = [
            (f"{prefix}{name}.", child) for name, child in part._modules.items() if name not in transient
        ]
        pending.extend((name, child) for name, child in reversed(inside) if child is not None)


def _module_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each once even where it is shared."""
    seen = set()
    for prefix, part in _parts(module):
        transient = transient_names(type(part))
        for name, tensor in (part._parameters | part._buffers).items():
            if tensor is not None and name not in transient and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


def _module_attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """(dotted name, module it belongs to, attribute, value) of all plain attributes; refuses hidden state."""
    for prefix, part in _parts(module):
        skipped = MODULE_INTERNALS | LAYER_INTERNALS | transient_names(type(part))
        for name, value in vars(part).items():
            if name in skipped:
                continue
            if _is_plain(value):
                yield prefix + name, part, name, value
            elif not _is_constant(value):
                raise refusal(f"{type(part).__name__}.{name}", f"is a {type(value).__name__} in an nn.Module")


def _is_plain(value: object) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(_is_plain(part) for part in value))


def _is_constant(value: object) -> bool:
    if type(value) is tuple:
        return all(_is_plain(part) or _is_constant(part) for part in value)
    return isinstance(value, CONSTANTS)


class Checksum:
    """CRC-32 over all parameters of the modules that some objects have as attributes, in their order.

    Where they lie is looked up again only when a module, a part of one or the memory of a parameter was exchanged.
    Between two calls a run goes through more memory than a cache holds, so finding that out costs as much as the
    checksum, object by object that is touched. Networks that optimizers have laid out as one vector are therefore not
    walked through: who exchanges a part of these must lay them out anew, or it is not learned.
    """

    def __init__(self) -> None:
        self._look(())

    def __deepcopy__(self, memo: object) -> Checksum:
        return Checksum()  # what it remembers is of the original's memory

    def __call__(self, *holders: object) -> int:
        now = self._now(holders)
        exchanged = len(now) != len(self.seen) or not all(map(is_, now, self.seen))
        if exchanged or self._places() != self.places:
            self._look(holders)
        value = 0
        for piece in self.pieces:
            value = zlib.crc32(piece if isinstance(piece, memoryview) else _bytes(piece), value)
        return value

    def _look(self, holders: Sequence[object]) -> None:
        attributes = [pair for holder in holders for pair in vars(holder).items()]
        self.optimizers = [
            part for _, part in attributes if isinstance(getattr(part, "parameters", None), Tensor)
        ]
        vectors = {each.parameters.untyped_storage().data_ptr() for each in self.optimizers}
        modules = [part for _, part in held_modules(*holders)]
        loose = [part for module in modules if not _is_laid(module, vectors) for part in module.modules()]
        tables = [(part, table) for part in loose for table in (part._modules, part._parameters)]
        self.tables: list[dict[str, Any]] = [table for part, table in tables if table or not _is_leaf(part)]
        self.parameters = [each for part in loose for each in part._parameters.values() if each is not None]
        # Only what is none yet becomes a module.
        kept = {id(part) for part in (*modules, *self.optimizers, None)}
        self.fields = [
            (vars(holder).get, name)
            for holder in holders
            for name, part in vars(holder).items()
            if id(part) in kept
        ]
        self.seen, self.places = self._now(holders), self._places()
        self.held = [each.detach() for module in modules for each in module.parameters()]
        self.pieces = _pieces(self.held)

    def _now(self, holders: Sequence[object]) -> list[object]:
        """All that shows an exchange: modules, optimizers and their vectors, and what may become one of them."""
        now: list[object] = [*holders, *(get(name) for get, name in self.fields)]
        now += [each.parameters for each in self.optimizers]
        now += chain.from_iterable(map(dict.values, self.tables))
        return now

    def _places(self) -> list[object]:
        """Where parameters lie, and whether row by row; with another size no checkpoint could be loaded."""
        places, rows = map(Tensor.data_ptr, self.parameters), map(Tensor.is_contiguous, self.parameters)
        return [*places, *rows]


def _is_laid(module: nn.Module, vectors: Set[int]) -> bool:
    """Whether a module has parameters and these vectors hold all of them."""
    places = {each.untyped_storage().data_ptr() for each in module.parameters()}
    return bool(places) and places <= vectors


def held_modules(*holders: object) -> list[tuple[str, nn.Module]]:
    """The modules among the attributes of some objects, by name."""
    held = chain.from_iterable(vars(holder).items() for holder in holders)
    return [(name, part) for name, part in held if isinstance(part, nn.Module)]


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module is a layer of torch, which gets neither parts nor parameters that it was made without."""
    return _is_torch_layer(module) and type(module).__module__ != nn.Sequential.__module__


def _pieces(tensors: Sequence[Tensor]) -> list[memoryview | Tensor]:
    """The memory of tensors; neighbours, as an optimizer lays them, are one piece."""
    pieces: list[memoryview | Tensor] = []
    storage = first = end = 0
    for each in tensors:
        if not each.nbytes:
            continue
        if each.device.type != "cpu" or not each.is_contiguous():
            pieces.append(each)
            end = 0
            continue
        if each.data_ptr() == end and each.untyped_storage().data_ptr() == storage:
            pieces.pop()
        else:
            first, storage = each.data_ptr(), each.untyped_storage().data_ptr()
        end = each.data_ptr() + each.nbytes
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(each.untyped_storage(), first - storage, (end - first,), (1,))
        pieces.append(whole.numpy().data)
    return pieces


def _bytes(tensor: Tensor) -> memoryview:
    """What it holds, row by row, wherever it lies."""
    data = tensor.detach().cpu().contiguous()
    return data.view(-1).view(torch.uint8).numpy().data  # numpy has no bfloat16
