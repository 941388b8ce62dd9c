"""Digests that tell whether the code which made a result has changed since."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rl_training
from rl_training.registry import trainer_class

PACKAGE = Path(rl_training.__file__).parent
# What every run goes through besides its trainer.
COMMON = ("rl_training.runtime.engine", "rl_training.runtime.evaluation", "rl_training.envs.making")
# Rooms that show, keep or compare what was computed, and compute nothing of it.
ASIDE = ("commands", "monitoring", "reporting", "tools", "tuning")


def code_digest(algo: str) -> str:
    """SHA-256 over all modules that a run of this algorithm can import, without their comments and docstrings.

    Another algorithm's trainer is not among them: mending DQN leaves the results of PPO as they are.
    """
    whole = hashlib.sha256()
    for path in sorted(_reached((trainer_class(algo).__module__, *COMMON))):
        whole.update(f"{path.relative_to(PACKAGE).as_posix()} {_digest(path)}\n".encode())
    return whole.hexdigest()


def _reached(names: tuple[str, ...]) -> set[Path]:
    """The files of these modules and of all that they import of the package, at once or later."""
    waiting, found = [path for name in names for path in _files(name)], set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [each for name in _imports(path) for each in _files(name)]
    return found


def _files(name: str) -> Iterator[Path]:
    """The file of a module of the package, or of the module that defines what is imported by this name."""
    room, _, rest = name.removeprefix("rl_training.").partition(".")
    if not name.startswith("rl_training.") or room in ASIDE:
        return
    for inner in (f"{room}.{rest}".strip("."), f"{room}.{rest.rpartition('.')[0]}".strip(".")):
        path = PACKAGE / f"{inner.replace('.', '/')}.py"
        if path.is_file():
            yield path
            return


@cache
def _imports(path: Path) -> tuple[str, ...]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(code_of(path.read_text("utf-8")).encode()).hexdigest()


def code_of(source: str) -> str:
    """A module without comments, docstrings and empty lines: what is left is what runs."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                for row in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
