"""Every test has a folder and a home of its own, probe environments, one thread of torch; small runs are shared."""

import fcntl
import gc
import os
import shutil
import site
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# Where programs look for what a user keeps, and settings of theirs: none of it is for tests to see.
HOMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
SETTINGS = ("WANDB_", "MLFLOW_", "RAY_", "MINARI_", "MPL", "GIT_")


def set_up_libraries() -> None:
    """One thread for torch, the probes registered, and Hypothesis without its memory and its clock.

    In time: the package looks at the number of threads when it is imported, which modules of tests do. Hypothesis
    keeps what failed before in the folder that is worked in, and its deadlines measure the machine.
    """
    import hypothesis
    import torch

    torch.set_num_threads(1)
    import probes  # noqa: F401

    hypothesis.settings.register_profile("alone", database=None, deadline=None)
    hypothesis.settings.load_profile("alone")


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole session an empty home, before any library has looked for the user's."""
    user_base = site.getuserbase()
    patch, home = pytest.MonkeyPatch(), Path(tempfile.mkdtemp(prefix="home-"))
    for name in HOMES:
        patch.setenv(name, str(home / name.lower()))
        (home / name.lower()).mkdir()
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        patch.delenv(name)
    patch.setenv("PYTHONUSERBASE", user_base)  # packages that the user installed stay where they are
    # The process that only hands out tests to others needs none of it.
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        set_up_libraries()
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    config.add_cleanup(patch.undo)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays: garbage collectors, here and in forks, need not walk it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def generators_begin_alike() -> None:
    """What a test draws does not depend on the tests that ran before it."""
    from rl_training.state.seeding import seed_everything

    seed_everything(1)


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    """A file that a test imports may register an algorithm; pages and later tests are about the shipped ones."""
    from rl_training import registry

    before = dict(registry.ALGORITHMS)
    yield
    registry.ALGORITHMS.clear()
    registry.ALGORITHMS.update(before)


@pytest.fixture(scope="session", autouse=True)
def outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that tests share are made in an empty folder too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("shared"))
        yield


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Every test works in an empty folder: it does not see what lies in the checkout, and leaves nothing there."""
    monkeypatch.chdir(tmp_path)
    yield
    with suppress(FileNotFoundError):  # a test may have removed the folder it works in
        assert Path.cwd().is_relative_to(tmp_path_factory.getbasetemp()), f"the test went to {Path.cwd()}"


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a finished small run of tests/runs.py by its name, which nobody may change.

    It is trained when it is first asked for, once for all processes of the session.
    """
    from runs import train_small

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    folder.mkdir(exist_ok=True)

    def find(name: str) -> Path:
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).exists():
                shutil.rmtree(folder / f"{name}.part", ignore_errors=True)
                train_small(name, folder / f"{name}.part")
                (folder / f"{name}.part").rename(folder / name)
        return folder / name

    return find
