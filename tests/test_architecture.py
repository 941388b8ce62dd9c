"""Imports point one way: a room may import from its own layer and the layers below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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


def imported_from_above(path: Path) -> Iterator[str]:
    """Each import of a file that leads to a higher layer."""
    mine = LEVEL.get(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    for name in imports(ast.parse(path.read_text()), path):
        theirs = LEVEL.get(name.split(".")[1]) if name.startswith("rl_training.") else None
        if mine is not None and theirs is not None and theirs > mine:
            yield f"{path.relative_to(PACKAGE)} may not import {name}"


def test_imports_point_one_way() -> None:
    assert len(FILES) > 100
    assert [wrong for path in FILES for wrong in imported_from_above(path)] == []


def test_light_modules_import_no_torch_when_they_are_imported() -> None:
    assert [
        f"{name} imports {found}"
        for name in WITHOUT_TORCH
        for node in ast.parse((PACKAGE / name).read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for found in imports(node, PACKAGE / name)
        if found.split(".")[0] == "torch"
    ] == []


def test_errors_imports_nothing_of_the_package() -> None:
    path = PACKAGE / "errors.py"
    assert not [name for name in imports(ast.parse(path.read_text()), path) if name.startswith("rl_training")]
