"""`njit` for the whole package, and a directory for numba's cache that no other user can write.

The index of the cache is pickled, so whoever can write to it runs code here. Four places are tried: what
`NUMBA_CACHE_DIR` names, the `__pycache__` folders of the package, the user's cache in the home directory, and, with a
warning, the temporary directory. There a folder of a name that others can guess counts only if it is this user's own.
`__pycache__` needs no such check: Python itself runs the bytecode that lies there.

numba renews what it keeps of a function when the file of that function has changed. Compiled functions call others of
other files, which become part of them, as constants do, so here it is renewed when any of these has changed. It is also
renewed when the module of the function has another name: numba keeps that name, and imports the module by it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import linecache
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache as once
from functools import partial
from inspect import getclosurevars
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import Event, Listener, register, unregister
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

PACKAGE = Path(__file__).parent
SETTINGS: Any = numba.config
PLAIN = {"OPT": 1, "LOOP_VECTORIZE": 0, "SLP_VECTORIZE": 0}  # numba's settings, read at every compilation
# What only compiled code calls needs no code by which Python calls it: a fifth of its compilation.
UNCALLED = {"no_cpython_wrapper": True}
FUNCTION_PARTS = ("code", "globals", "name", "defaults", "closure")
VARIABLE = "NUMBA_CACHE_DIR"
# Where compiled functions are, and, in algorithms, numbers that are compiled into them.
COMPILED_ROOMS = ("algorithms", "dynamics", "kernels")
CHOSEN = "RL_TRAINING_NUMBA_CACHE"  # tells processes to come that the folder was our choice, and who must not write
OTHERS, GROUP_AND_OTHERS = stat.S_IWOTH, stat.S_IWGRP | stat.S_IWOTH


class Cache(NamedTuple):
    """Where compiled functions are kept between runs."""

    folder: Path | None  # None: nowhere
    why: str
    problem: str = ""  # to warn of


def njit(calls: bool = False, borrows: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` whose result is kept in the cache, if there is one.

    Of a function that mostly `calls` others, loops are not vectorised or unrolled: that takes most of its compilation.
    One that `borrows` makes no array and returns none, so it need not count who holds them: an atomic instruction for
    every view of a row costs as much as the arithmetic of the row.
    """
    if borrows:
        options["_nrt"] = False
    settings = PLAIN if calls else {}

    def compiled(function: Callable[..., Any]) -> Any:
        made = _settled(_kept_on_disk(function, options), settings)
        apart = options | UNCALLED
        made.unwrapped = once(lambda: _settled(_kept_on_disk(_named_apart(function), apart), settings))
        return _called_apart(made)

    return compiled


def _called_apart(function: Any) -> Any:
    """The function, for which compiled ones that call it have one of their own, unless Python has called it first."""
    if not hasattr(function, "compile"):  # NUMBA_DISABLE_JIT
        return function
    usual, usual_overload = function.get_call_template, function.get_overload

    def template(kinds: Any, named: Any) -> Any:
        apart = function.unwrapped()
        known = tuple(kinds) in function.overloads or apart.is_compiling  # the latter where it calls itself
        return (usual if known else apart.get_call_template)(kinds, named)

    def overload(kinds: Any) -> Any:
        apart = function.unwrapped()
        return (apart.get_overload if tuple(kinds) in apart.overloads else usual_overload)(kinds)

    function.get_call_template, function.get_overload = template, overload
    return function


def _named_apart(function: Any) -> Any:
    """The same function under a name of its own, and so with a file of its own in the cache."""
    other = FunctionType(*(getattr(function, f"__{part}__") for part in FUNCTION_PARTS))
    other.__qualname__, other.__module__ = f"{function.__qualname__}_unwrapped", function.__module__
    return other


def _kept_on_disk(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    if cache().folder is not None:
        try:
            kept = {"cache": True, "no_cfunc_wrapper": True} | options  # numba's types lack the second
            return numba.njit(**kept)(function)
        except RuntimeError as error:
            if "no locator" not in str(error):
                raise
            # The folder is there, but has no room for a file: a full disk.
            warnings.warn(
                "numba's cache is not writable: functions are compiled again at every start", stacklevel=3
            )
    return numba.njit(**options)(function)


def _settled(function: Any, settings: dict[str, int]) -> Any:
    """The function, compiled with these settings of numba."""
    if not hasattr(function, "compile"):  # NUMBA_DISABLE_JIT
        return function
    usual, stamp = function.compile, once(partial(_stamp, function))

    def compile_so(signature: Any) -> Any:
        with global_compiler_lock, _uncollected():
            stamp()
            before = {name: getattr(SETTINGS, name) for name in settings}
            try:
                for name, value in settings.items():
                    setattr(SETTINGS, name, value)
                return usual(signature)
            finally:
                for name, value in before.items():
                    setattr(SETTINGS, name, value)

    function.compile = compile_so
    return function


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: in all that torch has loaded it finds nothing, for a tenth of numba's time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _stamp(function: Any) -> None:
    """Let what is kept of a function be valid only for all that has become part of it, as it is now.

    When it is compiled and not when it is made: by then its module has all the names that it uses.
    """
    parts = (function.py_func.__module__, sources(), used_by(function.py_func))
    with suppress(AttributeError):  # numba's own business: another version may keep it elsewhere
        kept = function._cache._cache_file
        kept._source_stamp = (kept._source_stamp, *parts)


@once
def sources() -> str:
    """A digest of all files of the package that hold compiled functions, or what is put into them."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted([*PACKAGE.glob("*/*.py"), *PACKAGE.glob(Path(__file__).name)]):
        text = file.read_bytes()
        if file.parent.name in COMPILED_ROOMS or b"njit" in text:
            digest.update(hashlib.blake2b(text).digest())
    return digest.hexdigest()


def used_by(function: FunctionType) -> str:
    """A digest of all that a function from outside of the package uses of other modules; that of `sources` is apart."""
    digest = hashlib.blake2b(digest_size=16)
    for value in () if _is_ours(function) else _reached(function, set()):
        digest.update(hashlib.blake2b(_described(value)).digest())
    return digest.hexdigest()


def _is_ours(function: FunctionType) -> bool:
    return Path(function.__code__.co_filename).is_relative_to(PACKAGE)


def _reached(function: FunctionType, seen: set[int]) -> Iterator[Any]:
    """The values of all names in a function, behind modules too, and in the compiled functions that they name."""
    inner = getclosurevars(function).nonlocals
    names = sorted({*_names_in(function.__code__), *inner})
    spaces = [{**function.__globals__, **inner}]
    for space in spaces:
        for value in (space[name] for name in names if name in space):
            yield value
            if isinstance(value, ModuleType):
                if not any(vars(value) is known for known in spaces):
                    spaces.append(vars(value))
            elif hasattr(value, "py_func") and id(value) not in seen and not _is_ours(value.py_func):
                seen.add(id(value))
                yield from _reached(value.py_func, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _described(value: Any) -> bytes:
    """A constant itself; of anything else the name and the text of its module."""
    if isinstance(value, tuple):
        return repr([_described(part) for part in value]).encode()
    if isinstance(value, np.ndarray):
        return repr((value.dtype, value.shape)).encode() + value.tobytes()
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return repr((type(value), value)).encode()
    named = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    home = sys.modules.get(named or "")
    file = getattr(home, "__file__", None) or ""
    linecache.checkcache(file)
    return "".join([getattr(home, "__name__", ""), *linecache.getlines(file)]).encode()


# By identity: to hash a signature takes longer than many a compiled call.
_addresses: dict[tuple[int, int], tuple[Any, Signature, int]] = {}


def address(function: Any, signature: Signature) -> int:
    """The address of a function compiled for this signature; its result is converted."""
    key = (id(function), id(signature))
    if key not in _addresses:
        bare = (
            function.unwrapped() if hasattr(function, "unwrapped") else function
        )  # a user's may be numba's own
        compiled = bare.get_compile_result(signature)
        where = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        _addresses[key] = (function, signature, where)  # both are kept, so that no other gets their identity
    return _addresses[key][2]


def call_at(signature: Signature) -> Any:
    """What calls a compiled function of this signature, given its address and its arguments.

    numba compiles a loop anew for each function that it is given, and cannot keep the result between processes. Given
    an address instead, one compiled loop is kept for them all; an indirect call costs some nanoseconds.
    """

    def generate(context: Any, build: ir.IRBuilder, typed: Any, values: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        place = build.inttoptr(values[0], kind.as_pointer())
        arguments = cgutils.unpack_tuple(build, values[1])
        status, returned = convention.call_function(
            build, place, signature.return_type, signature.args, arguments
        )
        with cgutils.if_unlikely(build, status.is_error):
            convention.return_status_propagate(build, status)
        return returned

    @intrinsic
    def call(typing: Any, where: Any, arguments: Any) -> Any:
        return signature.return_type(types.intp, types.Tuple(signature.args)), generate

    return call


class _Told(Listener):
    """Calls a function when something is compiled, and not when it comes out of the cache; once."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell: Callable[[], None] | None = tell

    def on_start(self, event: Event) -> None:
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()

    def on_end(self, event: Event) -> None:
        pass


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once if a function is compiled in here: numba takes seconds for some."""
    listener = _Told(tell)
    register("numba:compile", listener)
    try:
        yield
    finally:
        unregister("numba:compile", listener)


@once
def cache() -> Cache:
    """The cache of this process. Processes that it starts inherit the choice through the environment."""
    if _inherited_in_vain():
        del os.environ[VARIABLE]
        SETTINGS.CACHE_DIR = ""
    named = os.environ.get(VARIABLE) or SETTINGS.CACHE_DIR
    if named and can_write(Path(named)):
        return Cache(Path(named), f"{VARIABLE} names it")
    chosen = _in_package() or _outside()
    problem = f"{VARIABLE} names {named}, which cannot be written" if named else chosen.problem
    if problem:
        instead = (
            f"numba's cache is {chosen.folder}"
            if chosen.folder
            else "functions are compiled again at every start"
        )
        warnings.warn(f"{problem}: {instead}; {VARIABLE} chooses another place", stacklevel=2)
    return chosen


def _inherited_in_vain() -> bool:
    """Whether the variable is the choice of a process before this one, and the folder now another's or gone.

    What the user names is the user's to answer for; a folder in the temporary directory may have been cleaned away
    since, and its name taken.
    """
    writers, _, folder = os.environ.get(CHOSEN, "").partition(" ")
    if not folder or folder != os.environ.get(VARIABLE):
        return False
    return _kept(lambda: Path(folder), OTHERS if writers == str(OTHERS) else GROUP_AND_OTHERS) is None


def _in_package() -> Cache | None:
    rooms = {file.parent for file in PACKAGE.glob("*/*.py")}
    if all(can_write(room / "__pycache__") for room in rooms):
        return Cache(PACKAGE, "the __pycache__ folders of the package")
    return None


def _outside() -> Cache:
    if folder := _kept(_in_home, OTHERS):
        return _use(Cache(folder, "the user's cache, since the package's folders cannot be written"), OTHERS)
    problem = "neither the package's folders nor the home directory can be written"
    if folder := _kept(_of_this_user, GROUP_AND_OTHERS):
        return _use(Cache(folder, "this user's folder in the temporary directory", problem), GROUP_AND_OTHERS)
    if folder := _kept(_fresh, GROUP_AND_OTHERS):
        problem += f", and {_name_of_this_user()} is not this user's alone"
        return _use(Cache(folder, "until this process ends", problem), GROUP_AND_OTHERS)
    return Cache(None, "there is no folder that only this user can write", problem)


def _use(chosen: Cache, writers: int) -> Cache:
    # The variable for numba, which reads it again when it compiles, and for processes to come.
    os.environ[VARIABLE] = SETTINGS.CACHE_DIR = str(chosen.folder)
    os.environ[CHOSEN] = f"{writers} {chosen.folder}"
    return chosen


def _kept(make: Callable[[], Path], writers: int) -> Path | None:
    """The folder that `make` makes or finds, if it can be written and only by this user."""
    try:
        folder = make()
        if private(folder, writers):
            tempfile.TemporaryFile(dir=folder).close()  # where there is no room, numba would refuse
            return folder
    except OSError:
        pass
    return None


def private(folder: Path, writers: int = GROUP_AND_OTHERS) -> bool:
    """Whether the folder is this user's, and none of `writers` can write to it or put another in its place.

    Root can always do so. The path must hold no link.
    """
    here, above = folder.lstat(), [parent.lstat() for parent in folder.parents]
    return (
        here.st_uid == os.geteuid()
        and not here.st_mode & writers
        and all(stat.S_ISDIR(status.st_mode) for status in (here, *above))
        and all(status.st_uid in (0, os.geteuid()) for status in above)
        # In a sticky folder, as /tmp is, an entry can be moved by its owner alone.
        and all(status.st_mode & stat.S_ISVTX or not status.st_mode & writers for status in above)
    )


def _in_home() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    if not folder.is_absolute():
        raise FileNotFoundError("the home directory is unknown")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()  # a link of the user's own is followed here, and never again


def _name_of_this_user() -> Path:
    return Path(tempfile.gettempdir()).resolve() / f"rl_training-numba-{os.geteuid()}"


def _of_this_user() -> Path:
    folder = _name_of_this_user()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(handle).st_uid != os.geteuid() or os.fstat(handle).st_mode & 0o077:
        os.close(handle)
        raise PermissionError(f"{folder} is not private to this user")
    # Held while the process lives: systemd leaves a locked folder in /tmp alone, so nobody can take its name.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return folder


def _fresh() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rl_training-numba-")).resolve()
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # and not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


def can_write(folder: Path) -> bool:
    """Whether files can be written there once the folder has been made."""
    while not os.path.exists(folder) and folder != folder.parent:  # False also where one may not look
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
