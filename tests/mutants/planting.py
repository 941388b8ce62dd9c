"""Plant a change of a source file into this process: live functions get the code that the changed file would have.

Nothing is imported again, so tests and modules that hold the functions see the change as if the file had been
written so. Meant for a fork: there is no way back.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

PACKAGE = "rl_training"


class NotPlanted(Exception):
    """The change is where no live function takes it over, such as a default or a class body."""


def plant(path: Path, changed: ast.Module) -> None:
    """Give all functions of the file at `path` the code of the changed tree, and its constants their values."""
    tree = ast.parse(path.read_text())
    module = module_of(path)
    moved = _plant_functions(path, tree, changed) + _plant_constants(module, tree, changed)
    if not moved:
        raise NotPlanted(str(path))
    _compile_anew(module)


def module_of(path: Path) -> ModuleType:
    found = [m for m in _modules() if getattr(m, "__file__", None) == str(path)]
    return found[0]


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """All code inside a code object, in the order of the source."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from code_objects(part)


@cache
def live_functions() -> dict[str, list[FunctionType]]:
    """The functions of this process by the file they were written in; numba's are there as they were written."""
    found: dict[str, list[FunctionType]] = {}
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # what is frozen is not listed
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            found.setdefault(thing.__code__.co_filename, []).append(thing)
    if frozen:
        gc.freeze()
    return found


def _plant_functions(path: Path, tree: ast.Module, changed: ast.Module) -> int:
    before, after = (list(code_objects(compile(part, str(path), "exec"))) for part in (tree, changed))
    if [code.co_name for code in before] != [code.co_name for code in after]:
        raise NotPlanted("functions came or went")
    new = {
        (old.co_name, old.co_firstlineno): code
        for old, code in zip(before, after, strict=True)
        if not same_code(old, code)
    }
    moved = 0
    for function in live_functions().get(str(path), []):
        code = new.get((function.__code__.co_name, function.__code__.co_firstlineno))
        if code is not None and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
            moved += 1
    return moved


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, wherever their lines are."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=True)
    return all(same_code(a, b) if isinstance(a, CodeType) else repr(a) == repr(b) for a, b in pairs)


def _plant_constants(module: ModuleType, tree: ast.Module, changed: ast.Module) -> int:
    """Set the plain constants of a module that changed, here and where they were imported."""
    moved = 0
    for old, new in zip(tree.body, changed.body, strict=True):
        if not isinstance(new, ast.Assign) or ast.dump(old) == ast.dump(new):
            continue
        space = dict(vars(module))
        exec(compile(ast.Module([new], []), "<planted>", "exec"), space)
        for target in new.targets:
            for name in (node.id for node in ast.walk(target) if isinstance(node, ast.Name)):
                before = getattr(module, name)
                for holder in _modules():
                    if vars(holder).get(name) is before:
                        setattr(holder, name, space[name])
                        moved += 1
    return moved


def _compile_anew(module: ModuleType) -> None:
    """Let numba forget the machine code of a module's functions, and of those that may have them built in.

    What it compiles from here on it keeps to itself: on disk, machine code with another constant has the same name.
    """
    Dispatcher.enable_caching = lambda dispatcher: None
    dirty, grown = {module.__name__}, True
    own = [each for each in _modules() if each.__name__.startswith(PACKAGE)]
    while grown:
        grown = False
        for each in own:
            if each.__name__ not in dirty and any(_belongs(part, dirty) for part in vars(each).values()):
                dirty.add(each.__name__)
                grown = True
    for each in own:
        if each.__name__ in dirty:
            for part in vars(each).values():
                if isinstance(part, Dispatcher):
                    part._cache = NullCache()
                    part._reset_overloads()


def _belongs(part: Any, names: set[str]) -> bool:
    return isinstance(part, Dispatcher) and part.py_func.__module__ in names
