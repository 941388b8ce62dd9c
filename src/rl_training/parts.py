"""User code named in a config: a class or function by name, `module:Name` or `FILE.py:Name`, and its arguments.

    network: my_net.py:Net                   a file beside the config
    network: {my_net.py:Net: {width: 64}}    with arguments
    wrappers: [lib.wrappers:Clip, {low: 0}]  in a list, a mapping that names no part holds the arguments before it

A config field that holds parts is annotated with `Brought`. Its value is recorded as text, or as a mapping with the
name as its only key; a file by its full path. `trust.py` asks about the names of a config from elsewhere before
anything here imports them. Of a file only the file itself is loaded, from its path: `sys.path` stays as it is, so
that nothing that lies beside it can take the place of an installed module.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from rl_training.errors import ConfigError, one_line

FILE = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")
NAME = re.compile(r".+\.py:[A-Za-z_]\w*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.]*(#\d+)?")
GIVEN = "given:"  # before the name of an object that only a call in Python holds
FORMS = "module:Name or FILE.py:Name, alone or as the one key of a mapping whose value holds its arguments"

Doing = Literal["acting", "playing", "training"]
Written = Any  # "name", or {"name": {argument: value}}


class Brought(NamedTuple):
    """Marks a config field that holds a part, or a list of them.

    when: what needs it: any policy that acts, environments that are made, or training alone
    """

    when: Doing
    many: bool = False

    def recorded(self, value: Any, folder: Path | None = Path()) -> Any:
        """The value in the form that a run keeps; relative files are seen from `folder`, or stay where it is None."""
        if self.many:
            return [_recorded(entry, folder) for entry in _entries(value)]
        return None if value is None else _recorded(value, folder)

    def names(self, value: Any) -> list[str]:
        """The names in a recorded value."""
        entries = value if self.many else [] if value is None else [value]
        return [split(entry)[0] for entry in entries]


@cache
def brought_by(config_class: Any) -> dict[str, Brought]:
    """The fields of a config class that hold parts."""
    found = {
        name: [mark for mark in info.metadata if isinstance(mark, Brought)]
        for name, info in config_class.model_fields.items()
    }
    return {name: marks[0] for name, marks in found.items() if marks}


def split(written: Written) -> tuple[str, dict[str, Any]]:
    """The name of a part and its arguments."""
    if isinstance(written, Mapping):
        ((name, arguments),) = written.items()
        return name, dict(arguments or {})
    return written, {}


def is_name(text: Any) -> bool:
    """Whether text has the form of a part's name."""
    return isinstance(text, str) and NAME.fullmatch(text) is not None


_ADMITTED: set[str] = set()


def admit(name: str) -> None:
    """The user vouches for this very name, as long as the process lives."""
    _ADMITTED.add(name)


def is_admitted(name: str) -> bool:
    return name in _ADMITTED


def is_relative(name: Any) -> bool:
    """Whether a name leads to a file that is found only from where its config lies."""
    found = FILE.fullmatch(name) if isinstance(name, str) else None
    return found is not None and not Path(found["path"]).is_absolute()


def located(name: str, folder: Path) -> str:
    """The name with the full path of its file, seen from a folder; other names stay as they are."""
    found = FILE.fullmatch(name)
    return name if found is None else f"{(folder / found['path']).resolve()}:{found['name']}"


def short_name(name: str) -> str:
    """A part's name in a word, without its folders: `my_net-Net`."""
    return re.sub(r"(?:.*/)?([^/]+)\.py:", r"\1-", name)


def name_of(thing: Any) -> str:
    """The name by which a class or function can be found again."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    home = sys.modules.get(module) if isinstance(module, str) else None
    if not isinstance(name, str) or getattr(home, name, None) is not thing:
        raise ValueError(
            f"cannot record {thing!r}: only a class or function at the top of a module or file has a name "
            "to be found by again"
        )
    path = getattr(home, "__file__", None)
    in_file = module == "__main__" or str(module).startswith(TITLE)
    return f"{Path(path).resolve()}:{name}" if in_file and path else f"{module}:{name}"


def _recorded(value: Any, folder: Path | None) -> Written:
    name, arguments = value, {}  # type: Any, Any
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, arguments),) = value.items()
    if not isinstance(name, str | Mapping | Sequence):
        name = name_of(name)
    if not is_name(name) or not isinstance(arguments, Mapping | None):
        raise ValueError(f"must be {FORMS}, not {str(value)[:80]!r}")
    name = name if folder is None else located(name, folder)
    return {name: dict(arguments)} if arguments else name


def _entries(value: Any) -> list[Any]:
    """The parts of a list, each with its arguments; None is no part."""
    if value is None:
        return []
    entries: list[Any] = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        arguments = isinstance(entry, Mapping) and not any(is_name(key) or callable(key) for key in entry)
        if arguments and entries and not isinstance(entries[-1], Mapping):
            entry = {entries.pop(): entry}
        entries.append(entry)
    return entries


def load(name: str, key: str = "") -> Any:
    """The class or function of a name; `key` is the config's field, for the refusal."""
    try:
        if name.startswith(GIVEN):
            return _held(name)
        found = FILE.fullmatch(name)
        module, _, inside = name.partition(":")
        home = import_module(module) if found is None else file_module(found["path"])
        thing: Any = home
        for step in (inside if found is None else found["name"]).split("."):
            thing = getattr(thing, step)
        return thing
    except ConfigError:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and FILE.fullmatch(name) is None
        hint = "; a class of a file beside the config is named FILE.py:Class" if missing else ""
        raise ConfigError(
            f"{key} {name!r} cannot be loaded: {one_line(error)}{hint}".strip(), (key,)
        ) from error


def make(written: Written, *given: Any, key: str, **more: Any) -> Any:
    """A part, made from what it is given here and the arguments it was written with."""
    name, arguments = split(written)
    maker = load(name, key)
    if name.startswith(GIVEN) and not callable(maker):
        return maker
    try:
        return maker(*given, **more, **arguments)
    except ConfigError:
        raise
    except Exception as error:
        told = f" with {arguments}" if arguments else ""
        raise ConfigError(f"{key} {name!r} cannot be created{told}: {one_line(error)}", (key,)) from error


_HELD: ContextVar[Mapping[str, Any] | None] = ContextVar("held", default=None)


@contextmanager
def holding(things: Sequence[Any]) -> Iterator[list[str]]:
    """Objects of Python under names, `given:Class`, for as long as a call lasts."""
    held = dict(_HELD.get() or {})
    names = []
    for thing in things:
        title = getattr(thing, "__name__", type(thing).__name__)
        title = title if title.isidentifier() else "function"
        count = sum(name.partition("#")[0] == GIVEN + title for name in held)
        names.append(f"{GIVEN}{title}#{count + 1}" if count else GIVEN + title)
        held[names[-1]] = thing
    token = _HELD.set(held)
    try:
        yield names
    finally:
        _HELD.reset(token)


def _held(name: str) -> Any:
    held = _HELD.get() or {}
    if name not in held:
        raise ConfigError(
            f"{name.removeprefix(GIVEN)} was given to this run as an object in Python; give it again"
        )
    return held[name]


TITLE = "rl_training file "  # before the path, in the names of modules that no installed module has


def file_module(path: str) -> ModuleType:
    """A file as a module; a script that runs is not run again."""
    title = TITLE + path
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if main is not None and script and Path(script).resolve() == Path(path):
        return main
    if title not in sys.modules:
        spec = importlib.util.spec_from_file_location(title, path)
        if spec is None or spec.loader is None or not Path(path).is_file():
            raise ModuleNotFoundError(f"no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[title]
            raise
    return sys.modules[title]


def names_in(config: Any) -> Iterator[tuple[str, Brought, str]]:
    """Every part of a config: its field, the field's mark, and its name."""
    kind: Any = type(config)
    for key, brought in brought_by(kind).items():
        for name in brought.names(getattr(config, key)):
            yield key, brought, name


def deed(name: str) -> str:
    """What a name from elsewhere would do."""
    found = FILE.fullmatch(name)
    return (
        f"imports the module {name.partition(':')[0]!r}"
        if found is None
        else f"runs the file {found['path']!r}"
    )


def files(config: Any) -> dict[str, str]:
    """The files that a config names, and the SHA-256 of each."""
    names = [config.algo, *config.env_id.split("+"), *(name for *_, name in names_in(config))]
    paths = {found["path"] for found in map(FILE.fullmatch, names) if found is not None}
    return {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for path in sorted(paths)
        if Path(path).is_file()
    }
