"""Observations are arrays, or dicts of observations (Dict spaces): helpers that treat both alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Arrays: TypeAlias = "np.ndarray | dict[str, Arrays]"
Tensors: TypeAlias = "Tensor | dict[str, Tensors]"


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`function` on every array of a tree, and on those at the same place of `others`."""
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return function(tree, *others)


def tree_leaves(tree: object, name: str) -> Iterator[tuple[str, Any]]:
    """Every array of a tree with its name, such as ("obs/camera", array)."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from tree_leaves(value, f"{name}/{key}")
    else:
        yield name, tree


def put_rows(tree: object, rows: object, where: Any) -> None:
    """tree[where] = rows, in every array."""

    def put(column: Any, new: Any) -> None:
        column[where] = new

    tree_map(put, tree, rows)


def space_leaves(space: object) -> Iterator[Any]:
    """Every plain space of a Tuple or Dict space, in their order; a plain space itself."""
    for _, leaf in named_space_leaves(space, ""):
        yield leaf


def named_space_leaves(space: object, name: str) -> Iterator[tuple[str, Any]]:
    """The same with their names: `name/key` in a Dict, `name/0` in a Tuple."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        yield name, space
        return
    for key, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
        yield from named_space_leaves(part, f"{name}/{key}")
