"""The suite sees nothing of the checkout and of the user's home, whatever lies there."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from runs import in_child

from rl_training.runtime.trainer import PHYSICAL_CORES

TESTS = Path(__file__).parents[1]
# Tests, and fixtures of every scope, as files of this folder would hold them.
INNER = """
import os
from pathlib import Path

import pytest


def seen():
    home = Path.home()
    assert sorted({"WANDB_MODE", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"}.intersection(os.environ)) == []
    return [*Path.cwd().iterdir(), *home.iterdir(), *Path(os.environ["XDG_CONFIG_HOME"]).iterdir()]


@pytest.fixture(scope="session")
def of_the_session():
    return seen()


@pytest.fixture(scope="module")
def of_the_module():
    return seen()


@pytest.mark.parametrize("again", [1, 2])
def test_nothing_is_seen(of_the_session, of_the_module, again):
    assert (seen(), of_the_session, of_the_module) == ([], [], [])
    Path("runs").mkdir()
"""
WANDERS = """
import os


def test_it_goes_to_the_checkout():
    os.chdir(os.path.dirname(os.path.dirname(__file__)))
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout in which its user trained, and a home that is lived in."""
    for folder in ("checkout/runs", "checkout/tests", "home/config"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("checkout/ppo.yaml", "checkout/pytest.ini", "home/.gitconfig", "home/config/settings"):
        (tmp_path / file).touch()
    shutil.copy(TESTS / "conftest.py", tmp_path / "checkout/tests")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/config"))
    for name, value in dict(WANDB_MODE="online", MLFLOW_TRACKING_URI="http://a", RAY_ADDRESS="b").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "checkout"


def run_pytest(checkout: Path) -> None:
    os.chdir(checkout)
    os._exit(
        pytest.main(
            [
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "--basetemp",
                str(checkout.parent / "base"),
                "tests",
            ]
        )
    )


def test_a_test_sees_neither_the_checkout_nor_the_home_of_its_user(checkout):
    (checkout / "tests/test_inner.py").write_text(INNER)
    assert in_child(run_pytest, checkout) == pytest.ExitCode.OK


def test_a_test_that_goes_to_the_checkout_fails(checkout):
    (checkout / "tests/test_inner.py").write_text(WANDERS)
    assert in_child(run_pytest, checkout) == pytest.ExitCode.TESTS_FAILED


def test_runs_of_tests_have_one_thread():
    """With more, threads that wait for each other on a busy machine cost many times the work."""
    assert (torch.get_num_threads(), PHYSICAL_CORES) == (1, 1)
