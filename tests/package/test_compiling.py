"""Where numba keeps what it compiled: never in a folder that another user can write."""

from __future__ import annotations

import importlib
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import pytest
from runs import in_child, small_config
from users import NOBODY, STRANGER, become, needs_root, public_folder

from rl_training import compiling, fork, parts, resume, train
from rl_training.compiling import Cache, njit, private, telling
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime import workflows
from rl_training.tools import experiments, forking
from rl_training.tools.experiment_display import QuietSeeds


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine in small: the package and the home directory cannot be written, `tmp` is everybody's."""
    njit()(plus_one)(
        1
    )  # a child that is another user may be unable to read what numba imports when it compiles
    with public_folder() as folder:
        for name in ("package/room", "home", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "package/room/module.py").touch()
        (folder / "tmp").chmod(0o1777)
        monkeypatch.setattr(compiling, "PACKAGE", folder / "package")
        monkeypatch.setattr(compiling.SETTINGS, "CACHE_DIR", "")
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        monkeypatch.setenv("HOME", str(folder / "home"))
        for name in ("XDG_CACHE_HOME", compiling.VARIABLE, compiling.CHOSEN):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        yield folder


def plus_one(number: int) -> int:
    return number + 1


def choose() -> tuple[Cache, list[str]]:
    """Choose anew, and what was warned of."""
    compiling.cache.cache_clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        chosen = compiling.cache()
    return chosen, [str(warning.message) for warning in warned]


def as_user(user: int, test: Callable[[], None]) -> None:
    """Run the test in a fork that is this user."""

    def child() -> None:
        become(user)
        os.umask(0o022)
        test()

    assert in_child(child) == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@needs_root
def test_without_a_writable_home_it_is_the_users_own_folder_with_one_warning(place):
    own = place / f"tmp/rl_training-numba-{NOBODY}"

    def test() -> None:
        chosen, warned = choose()
        assert chosen.folder == own
        assert mode(own) == 0o700
        assert own.lstat().st_uid == NOBODY
        assert len(warned) == 1
        assert str(own) in warned[0]
        assert "\n" not in warned[0]
        assert njit()(plus_one)(1) == 2
        assert list(own.rglob("*.nbi"))
        # What this process starts has the choice from the environment and says nothing.
        assert os.environ["NUMBA_CACHE_DIR"] == str(own)
        assert choose() == (Cache(own, "NUMBA_CACHE_DIR names it"), [])

    as_user(NOBODY, test)
    as_user(NOBODY, test)  # the second process finds the folder that the first one made


@needs_root
@pytest.mark.parametrize("made", ["by another user", "a link", "a file", "open to others", "open to readers"])
def test_a_folder_that_may_be_anothers_is_not_used(place, made):
    guessed = place / f"tmp/rl_training-numba-{NOBODY}"

    def plant() -> None:
        os.umask(0)
        if made == "a link":
            (place / "tmp/theirs").mkdir(mode=0o777)
            guessed.symlink_to(place / "tmp/theirs")
        elif made == "a file":
            guessed.touch()
        else:
            guessed.mkdir(mode=0o755 if made == "open to readers" else 0o777)

    def test() -> None:
        chosen, warned = choose()
        assert chosen.folder is not None
        assert chosen.folder.parent == place / "tmp"
        assert chosen.folder != guessed
        assert private(chosen.folder)
        assert mode(chosen.folder) == 0o700
        assert len(warned) == 1
        assert str(guessed) in warned[0]
        assert njit()(plus_one)(1) == 2
        assert list(chosen.folder.rglob("*.nbi"))
        compiling._remove(chosen.folder, os.getppid())  # another process leaves it alone
        assert chosen.folder.exists()
        compiling._remove(chosen.folder, os.getpid())
        assert not chosen.folder.exists()

    as_user(NOBODY if made.startswith("open") else STRANGER, plant)
    as_user(NOBODY, test)
    assert not list(guessed.rglob("*")), "something was written to a folder that may be another's"


@needs_root
def test_a_cache_that_another_user_made_first_runs_no_code_here(place):
    guessed, marker = place / f"tmp/rl_training-numba-{NOBODY}", place / "tmp/marker"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(marker),)

    def plant() -> None:
        os.umask(0)
        guessed.mkdir(mode=0o777)
        os.environ["NUMBA_CACHE_DIR"] = compiling.SETTINGS.CACHE_DIR = str(guessed)
        choose()
        assert njit()(plus_one)(1) == 2
        for index in guessed.rglob("*.nbi"):
            index.write_bytes(pickle.dumps(Evil()))

    def test(named: bool) -> None:
        if named:
            os.environ["NUMBA_CACHE_DIR"] = compiling.SETTINGS.CACHE_DIR = str(guessed)
        choose()
        try:
            assert njit()(plus_one)(1) == 2
        except Exception:
            assert named  # what it has read is no index

    as_user(STRANGER, plant)
    as_user(NOBODY, lambda: test(named=False))
    assert not marker.exists()
    as_user(NOBODY, lambda: test(named=True))
    assert marker.exists(), "the attack would not have worked anyway"


@needs_root
def test_where_others_can_replace_every_folder_nothing_is_kept(place):
    (place / "tmp").chmod(0o777)  # not sticky: whoever likes can move entries of others away

    def test() -> None:
        chosen, warned = choose()
        assert chosen.folder is None
        assert len(warned) == 1
        assert "compiled again at every start" in warned[0]
        assert njit()(plus_one)(1) == 2
        assert "NUMBA_CACHE_DIR" not in os.environ

    as_user(NOBODY, test)
    assert not [path for path in (place / "tmp").rglob("*") if path.is_file()]


@needs_root
def test_a_home_is_used_if_others_cannot_write_there(place):
    cache = place / "home/.cache/numba"
    os.chown(place / "home", NOBODY, NOBODY)

    def test() -> None:
        assert choose()[0].folder == cache
        assert choose()[1] == []

    as_user(NOBODY, test)
    cache.chmod(0o777)
    as_user(NOBODY, lambda: _assert_not(cache))
    # A home in a folder of everybody's, as with HOME=/tmp: another user may have made what lies in it.
    cache.chmod(0o700)
    os.chown(place / "home/.cache", STRANGER, STRANGER)
    as_user(NOBODY, lambda: _assert_not(cache))


def _assert_not(folder: Path) -> None:
    assert choose()[0].folder not in (None, folder)


@needs_root
def test_a_user_without_a_home_leaves_nothing_in_the_current_folder(place, monkeypatch):
    monkeypatch.delenv("HOME")
    (place / "work").mkdir()
    os.chown(place / "work", STRANGER, STRANGER)

    def test() -> None:  # no name, no home
        os.chdir(place / "work")
        assert choose()[0].folder == place / f"tmp/rl_training-numba-{STRANGER}"
        assert njit()(plus_one)(1) == 2

    as_user(STRANGER, test)
    assert not list((place / "work").iterdir())


@needs_root
def test_a_folder_that_the_user_names_is_used_if_it_can_be_written(place, monkeypatch):
    (place / "named").mkdir()

    def test() -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(place / "named"))
        chosen, warned = choose()
        assert chosen.folder == place / f"tmp/rl_training-numba-{NOBODY}"
        assert len(warned) == 1
        assert str(place / "named") in warned[0]

    as_user(NOBODY, test)
    os.chown(place / "named", NOBODY, NOBODY)

    def test_again() -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(place / "named"))
        assert choose() == (Cache(place / "named", "NUMBA_CACHE_DIR names it"), [])

    as_user(NOBODY, test_again)


@needs_root
@pytest.mark.parametrize("since", ["another user's", "gone", "open to others"])
def test_a_choice_that_was_inherited_is_looked_at_again(place, since):
    """The process that chose may be long gone, its folder cleaned away, and the name taken by another user."""
    own = place / f"tmp/rl_training-numba-{NOBODY}"
    as_user(NOBODY, lambda: choose() and None)
    if since == "gone":
        own.rmdir()
    elif since == "another user's":
        os.chown(own, STRANGER, STRANGER)
        own.chmod(0o777)
    else:
        own.chmod(0o777)

    def test() -> None:
        os.environ["NUMBA_CACHE_DIR"] = compiling.SETTINGS.CACHE_DIR = str(own)
        os.environ[compiling.CHOSEN] = f"{compiling.GROUP_AND_OTHERS} {own}"
        chosen, warned = choose()
        assert (chosen.folder == own) == (since == "gone")
        assert private(chosen.folder)
        assert os.environ["NUMBA_CACHE_DIR"] == compiling.SETTINGS.CACHE_DIR == str(chosen.folder)
        assert len(warned) == 1
        assert njit()(plus_one)(1) == 2

    as_user(NOBODY, test)
    assert since == "gone" or not list(own.rglob("*")), "something was written to a folder that is another's"


def test_a_package_that_can_be_written_keeps_its_own(place):
    chosen, warned = choose()
    assert chosen.folder == place / "package"
    assert warned == []
    assert "NUMBA_CACHE_DIR" not in os.environ
    compiling.cache.cache_clear()


def test_a_cache_without_room_is_no_reason_to_stop(monkeypatch):
    def njit_of_numba(**options: object) -> Callable[..., object]:
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'plus_one': no locator available for file 'x.py'")
        return lambda function: function

    monkeypatch.setattr(compiling.numba, "njit", njit_of_numba)
    with pytest.warns(UserWarning, match="compiled again at every start"):
        assert njit()(plus_one)(1) == 2


def test_the_digest_of_sources_is_that_of_all_compiled_ones(tmp_path, monkeypatch):
    """A compiled function has others inlined, so an edit of any of their files counts, and no other edit."""
    for name in (
        "kernels/layers.py",
        "algorithms/masking.py",
        "data/tree.py",
        "data/plain.py",
        "compiling.py",
        "cli.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("@njit()\n" if name in ("data/tree.py", "compiling.py") else "")
    monkeypatch.setattr(compiling, "PACKAGE", tmp_path)
    digest = compiling.sources.__wrapped__
    before = digest()
    for name in ("data/plain.py", "cli.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert digest() == before
    seen = {before}
    for name in ("kernels/layers.py", "algorithms/masking.py", "data/tree.py", "compiling.py"):
        (tmp_path / name).write_text("@njit(inline='always')\n" if name == "data/tree.py" else "x = 1\n")
        seen.add(digest())
    assert len(seen) == 5


def compiles(function):
    """Whether a call of a function compiles it."""
    told = []
    with telling(lambda: told.append(1)):
        function(1)
        function(1.5)
    assert len(told) <= 1
    return bool(told)


@njit()
def doubled(number):
    return number + number


@njit()
def factorial(number):
    return number * factorial(number - 1) if number > 1 else 1


@njit()
def twice_doubled(number):
    return doubled(doubled(number)) + factorial(number)


def test_what_compiled_code_calls_can_be_called_by_python_too():
    assert twice_doubled(3) == 18
    assert not doubled.overloads  # it was compiled without what Python calls
    assert doubled(3) == 6
    assert factorial(4) == 24
    before = len(doubled.unwrapped().overloads)
    assert doubled(1.5) == 3.0
    assert twice_doubled(1.0) == 5.0  # Python's own of the first call is used
    assert len(doubled.unwrapped().overloads) == before


def test_what_was_kept_of_other_sources_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling.SETTINGS, "CACHE_DIR", str(tmp_path))
    assert compiles(njit()(plus_one))
    assert not compiles(njit()(plus_one))
    monkeypatch.setattr(compiling, "sources", lambda: "another digest")
    assert compiles(njit()(plus_one))


USER = "from rl_training.compiling import njit\n"
WALK = USER + "{imports}\n\n@njit()\ndef step(number):\n    return ahead(number)\n\n\n"
AHEAD = "@njit()\ndef ahead(number):\n    return number + {pushed}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, whose modules can be imported and keep what is compiled beside them."""
    monkeypatch.setattr(compiling.SETTINGS, "CACHE_DIR", "")
    monkeypatch.delenv(compiling.VARIABLE, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "here")
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def as_in_a_new_process(path):
    """A user's module, with nothing loaded of what a process before has."""
    for name in ("walk", "wind", "strength", *[name for name in sys.modules if name.startswith(parts.TITLE)]):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return parts.file_module(str(path))


@pytest.mark.parametrize(
    ("imports", "pushed", "wind", "strength"),
    [
        ("from wind import gust", "gust()", "@njit()\ndef gust():\n    return {}\n", ""),
        ("import wind", "wind.gust()", "@njit()\ndef gust():\n    return {}\n", ""),
        ("from wind import GUST", "GUST", "GUST = {}\n", ""),
        ("import wind", "wind.GUSTS[1]", "GUSTS = (0, {})\n", ""),
        ("from wind import GUSTS", "GUSTS[1]", "import numpy\nGUSTS = numpy.array([0, {}])\n", ""),
        (
            "from wind import gust",
            "gust()",
            "from strength import *\n@njit()\ndef gust():\n    return base()\n",
            "@njit()\ndef base():\n    return {}\n",
        ),
        (
            "import wind",
            "wind.CALM + within()\n\n@njit()\ndef within():\n    return wind.gust()",
            "from strength import gust\nCALM = 0\n",
            "@njit()\ndef gust():\n    return {}\n",
        ),
    ],
    ids=["a function", "of a module", "a number", "a tuple", "an array", "of a third file", "of one by two"],
)
def test_what_was_kept_of_a_users_function_is_not_used_when_another_file_of_it_has_changed(
    imports, pushed, wind, strength, folder
):
    # `ahead` comes behind `step`, so that it is not yet there when that is decorated.
    (folder / "walk.py").write_text(WALK.format(imports=imports) + AHEAD.format(pushed=pushed))

    def stepped(blown):
        (folder / "wind.py").write_text(USER + wind.format(blown))
        (folder / "strength.py").write_text(USER + strength.format(blown))
        step, told = as_in_a_new_process(folder / "walk.py").step, []
        with telling(lambda: told.append(1)):
            return step(1), bool(told)

    assert [stepped(blown) for blown in (1, 1, 100)] == [(2, True), (2, False), (101, True)]


def test_what_was_kept_of_a_users_function_is_not_used_under_another_name_of_its_module(folder):
    """numba keeps the name, and imports the module by it."""

    def stepped(module, place):
        call = f"from rl_training import parts; print(({module}).step(1))"
        done = subprocess.run([sys.executable, "-c", call], cwd=place, capture_output=True, text=True)
        assert done.stdout == "2\n", done.stderr

    (folder / "walk.py").write_text(WALK.format(imports="") + AHEAD.format(pushed=1))
    stepped(f"parts.file_module('{folder}/walk.py')", folder)
    moved = folder.rename(folder.parent / "there")
    stepped(f"parts.file_module('{moved}/walk.py')", moved)
    stepped("__import__('walk')", moved)
    stepped("__import__('there.walk').walk", moved.parent)


@pytest.mark.parametrize("what", ["train", "resume", "fork", "seeds"])
def test_it_is_told_once_also_where_the_trainer_is_what_compiles(what, tmp_path, monkeypatch):
    config = small_config("ppo-cartpole", total_timesteps=256, checkpoint_interval=128)
    if what in ("resume", "fork"):
        workflows.train_until_stopped(config, run_dir=tmp_path / "run", until=128)
    make, said = workflows.make_trainer, []

    def compile_and_make(*args):
        for _ in range(2):
            numba.njit(lambda number: number + 1)(1)
        said.append("made")
        return make(*args)

    display = QuietSeeds() if what == "seeds" else QuietDisplay()
    display.message = said.append
    for module in (workflows, forking):
        monkeypatch.setattr(module, "make_trainer", compile_and_make)
    monkeypatch.setattr(experiments, "_run_all", lambda *_: None)
    if what == "train":
        train(config, run_dir=tmp_path / "run", display=display)
    elif what == "resume":
        resume(tmp_path / "run", display=display)
    elif what == "fork":
        fork(tmp_path / "run", run_dir=tmp_path / "fork", display=display)
    else:
        experiments.train_seeds(config, [1, 2], run_dir=tmp_path / "all", display=display)
    assert said[:2] == ["compiling (once)", "made"] and said.count("compiling (once)") == 1


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_second_process_compiles_nothing(tmp_path, algo):
    command = [sys.executable, "-m", "rl_training", "train", f"{algo}/cartpole", "total_timesteps=256"]
    starts = ["learning_starts=50"] if algo == "dqn" else []
    for name in ("first", "second"):
        run = [*command, *starts, "--run-dir", str(tmp_path / name)]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "updates: compiled" in done.stdout
    assert "compiling (once)" not in done.stdout
