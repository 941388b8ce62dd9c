"""Imports point one way: a room may import from its own layer and the layers below it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rl_training
from rl_training.registry import SHIPPED, config_class_of
from rl_training.settings.config import Config

PACKAGE = Path(rl_training.__file__).parent
LAYERS = [
    {"settings"},
    {"algorithms"},
    {"networks", "kernels", "search", "dynamics"},
    {"data", "envs", "state"},
    {"policies"},
    {"runtime", "fleet", "monitoring"},
    {"tools", "reporting", "tuning"},
    {"commands", "cli"},
]
LEAVES = ("rl_training.runtime.controls", "rl_training.runtime.schedules")  # which anything may import
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Light enough for anything: they are read before torch is, so `--help` and a bad config answer at once.
WITHOUT_TORCH = [
    "errors.py",
    "registry.py",
    "cli.py",
    "extras.py",
    "parts.py",
    "trust.py",
    *sorted(
        f"{room}/{path.name}" for room in ("settings", "commands") for path in (PACKAGE / room).glob("*.py")
    ),
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
        if mine is not None and theirs is not None and theirs > mine and not name.startswith(LEAVES):
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


# What is asked -> the exit code and words of the answer. None of it may need more than the settings.
LIGHT = {
    "--help": (0, "describe"),
    "train ppo/cartpole clip_rnage=0.1": (2, "did you mean clip_range?"),
    "train ppo/cartpole algo=pop": (2, "did you mean ppo?"),
    "describe ppo": (0, "clip_coef or clip_range"),
    "schedule ppo/cartpole": (0, "learning_rate"),
    "list": (0, "ppo/cartpole"),
}
ASKING = """
import sys
from rl_training.cli import app
try:
    app(sys.argv[1:], prog_name="rl-training")
finally:
    print("loaded:", sorted({"torch", "numba", "gymnasium"} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", LIGHT)
def test_what_needs_the_settings_alone_loads_neither_torch_nor_numba_nor_gymnasium(command: str) -> None:
    code, words = LIGHT[command]
    ran = subprocess.run([sys.executable, "-c", ASKING, *command.split()], capture_output=True, text=True)
    assert ran.returncode == code
    assert words in ran.stdout + ran.stderr
    assert ran.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize("name", ["schedules", "controls"])
def test_schedules_and_controls_are_leaves(name: str) -> None:
    path = PACKAGE / "runtime" / f"{name}.py"
    ours = {found for found in imports(ast.parse(path.read_text()), path) if found.startswith("rl_training")}
    allowed = ("rl_training.errors", "rl_training.runtime.schedules")
    assert [found for found in ours if not found.startswith(allowed)] == []


def test_settings_import_only_leaves_of_the_runtime() -> None:
    allowed = tuple(f"rl_training.{name}" for name in ("errors", "parts", "registry", "settings", "trust"))
    allowed += ("rl_training.runtime.controls", "rl_training.runtime.schedules")
    assert [
        f"{path.name} imports {found}"
        for path in (PACKAGE / "settings").glob("*.py")
        for found in imports(ast.parse(path.read_text()), path)
        if found.startswith("rl_training") and not found.startswith(allowed)
    ] == []


def test_the_walk_of_a_value_names_files_and_what_they_define() -> None:
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    walk = page.partition("### From a YAML key to a logged metric")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| `(\S+\.py)` \| `(\w+)` \|", walk, re.M)
    assert len(steps) > 10
    defined = ast.ClassDef, ast.FunctionDef
    for name, definition in steps:
        nodes = ast.walk(ast.parse((PACKAGE / name).read_text("utf-8")))
        assert definition in {node.name for node in nodes if isinstance(node, defined)}, (name, definition)


def test_configs_are_at_most_three_deep() -> None:
    for name in SHIPPED:
        assert depth(config_class_of(name)) <= 3, name


def depth(config_class: type) -> int:
    """Classes from `Config` to this one, both counted, on the longest way."""
    if config_class is Config:
        return 1
    return 1 + max(depth(base) for base in config_class.__bases__ if issubclass(base, Config))
