"""Imports point one way: a room may import from its own layer and the layers below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rl_training

PACKAGE = Path(rl_training.__file__).parent
LAYERS = [
    {"algorithms", "search"},
    {"networks"},
    {"data", "envs", "state"},
    {"runtime", "fleet"},
    {"reporting", "tuning"},
    {"verbs", "cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Light enough for anything: they are read before torch is, so `--help` and a bad config answer at once.
WITHOUT_TORCH = [
    "errors.py",
    "config.py",
    "registry.py",
    "cli.py",
    "extras.py",
    *sorted(f"verbs/{path.name}" for path in (PACKAGE / "verbs").glob("*.py")),
    "runtime/schedules.py",
    "runtime/controls.py",
]
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """The dotted names of modules that the nodes of `tree` import."""
    here = ("rl_training", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) + 1 - node.level]) + "." if node.level else ""
            yield from (f"{base}{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    mine = LEVEL.get(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    for name in imports(ast.parse(path.read_text()), path):
        theirs = LEVEL.get(name.split(".")[1]) if name.startswith("rl_training.") else None
        assert mine is None or theirs is None or theirs <= mine, f"{path} may not import {name}"


def test_numba_compiles_through_one_module_which_knows_where_its_cache_may_be() -> None:
    compiles = {"numba", "numba.njit", "numba.jit"}
    found = {path.name for path in FILES if compiles & set(imports(ast.parse(path.read_text()), path))}
    assert found == {"compiling.py"}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_light_modules_import_no_torch_when_they_are_imported(name: str) -> None:
    path = PACKAGE / name
    top_level = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not [
        found for node in top_level for found in imports(node, path) if found.split(".")[0] == "torch"
    ]


def test_errors_imports_nothing_of_the_package() -> None:
    path = PACKAGE / "errors.py"
    assert not [name for name in imports(ast.parse(path.read_text()), path) if name.startswith("rl_training")]
