"""Shortcuts: faster implementations of modules, valid only for exactly the classes they were written for.

A shortcut reads the parameters of modules and never calls their `forward`. So it may stand in for them only where
nothing would be called that is not ours: no subclass, no hook, no parametrization, no method put on an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Generic, TypeGuard, TypeVar

import torch
from torch import nn

Path = TypeVar("Path")
Module = TypeVar("Module", bound=nn.Module)

SETTINGS = ("alpha", "approximate", "eps")  # of activations and norms, which are read once
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_exact(module: object, *kinds: type[Module]) -> TypeGuard[Module]:
    """Whether a module is of one of these very classes and is called as they say; its parts are not looked at.

    A parametrization gives a module a class of its own.
    """
    if type(module) not in kinds or any(getattr(module, name) for name in HOOKS):
        return False
    return not any(callable(getattr(type(module), name, None)) for name in vars(module))


def is_ours(owner: object, home: str | tuple[str, ...], *methods: str) -> bool:
    """Whether methods are functions of modules named so: no subclass's own, and none that was put on the instance."""
    kind, own = type(owner), vars(owner)
    return all(name not in own and _home_of(getattr(kind, name)).startswith(home) for name in methods)


def _home_of(function: Any) -> str:
    """The module that a function was written in: a wrapper may bear the `__module__` of what it wraps."""
    home: str = getattr(function, "__globals__", {}).get("__name__", "")
    return home


class Shortcut(Generic[Path]):
    """What `make` makes of a module, or None where it cannot; made again when the module or a part of it changes.

    Looking takes some 3 µs for a small network, so that every call can be preceded by it, unless the module is
    `unchanging`.
    """

    path: Path | None = None
    settled = False  # whether there is nothing to look for

    def __init__(self, module: nn.Module, make: Callable[[Any], Path | None]) -> None:
        self.module, self.make = module, make
        self._look()

    @classmethod
    def of(cls, module: nn.Module, make: Callable[[Any], Path | None]) -> Shortcut[Path] | None:
        """None where there is no shortcut for the module as it is."""
        shortcut = cls(module, make)
        return None if shortcut.path is None else shortcut

    def __call__(self) -> Path | None:
        if self.settled:
            return self.path
        if torch.compiler.is_compiling():  # nothing can look into this; what is compiled stays as it is
            return self.path
        if not self.parts or self._changed():
            self._look()
        return self.path

    def _look(self) -> None:
        self.parts = list(self.module.modules())
        self.attributes = [vars(part) for part in self.parts]
        self.children = [part._modules for part in self.parts if part._modules]
        self.settings = [(own, name) for own in self.attributes for name in SETTINGS if name in own]
        self.hooks = [getattr(part, name) for part in self.parts for name in HOOKS]
        self.seen = self._now()
        self.path = None if any(self.hooks) else self.make(self.module)

    def _changed(self) -> bool:
        return self._now() != self.seen

    def _now(self) -> tuple[Any, ...]:
        """All that a change would show in: classes, methods put on an instance, settings, parts exchanged, hooks."""
        inside = chain.from_iterable(map(dict.values, self.children))
        kinds, counts = list(map(type, self.parts)), list(map(len, self.attributes))
        settings = [own.get(name) for own, name in self.settings]
        return kinds, counts, settings, list(inside), any(self.hooks)

    def __getstate__(self) -> Mapping[str, Any]:
        """A copy looks for itself: it belongs to a copy of the module."""
        return {"module": self.module, "make": self.make, "parts": []}


@contextmanager
def unchanging(owner: object) -> Iterator[None]:
    """Steps in a row between which an owner's modules stay as they are: its shortcuts look at them once, before."""
    shortcuts = [part for part in vars(owner).values() if isinstance(part, Shortcut)]
    try:
        for each in shortcuts:
            each()
            each.settled = True
        yield
    finally:
        for each in shortcuts:
            each.settled = False


def taken(shortcut: Shortcut[Path] | None) -> Path | None:
    """The path of a shortcut, if there is one."""
    return None if shortcut is None else shortcut()
