"""The doctor: what it shows, what is missing, and a self-test that can fail."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from test_cli import cli, refused

from rl_training.compiling import Cache
from rl_training.errors import UserError
from rl_training.extras import EXTRAS, require_extra
from rl_training.state import checkpoints
from rl_training.tools import checkup

ROOT = Path(__file__).parents[2]


def test_it_shows_versions_devices_extras_and_a_passed_self_test():
    done = cli("doctor")
    assert done.exit_code == 0, done.output
    for words in ("torch ", "gymnasium ", "cpu ", "usable cores", "self-test"):
        assert words in done.stdout
    assert re.search(r"ok +resumes from the middle, byte for byte", done.stdout)
    for name in EXTRAS:
        assert re.search(rf"(ok|missing) +{name} ", done.stdout)


def test_it_shows_the_cache_of_numba_and_whose_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "self_test", list)
    monkeypatch.setattr(checkup, "cache", lambda: Cache(tmp_path, "NUMBA_CACHE_DIR names it"))
    shown = cli("doctor").stdout.partition("\ncache\n")[2].partition("\nextras\n")[0]
    assert re.search(rf"folder +{re.escape(str(tmp_path))}$", shown, re.MULTILINE)
    assert re.search(r"chosen +NUMBA_CACHE_DIR names it$", shown, re.MULTILINE)
    assert re.search(r"writable +yes$", shown, re.MULTILINE)
    try:
        owner = tmp_path.owner()
    except KeyError:  # this user has no name
        owner = f"uid {os.getuid()}"
    assert re.search(rf"owner +{owner}$", shown, re.MULTILINE)
    monkeypatch.setattr(checkup, "cache", lambda: Cache(None, "there is no folder"))
    found = json.loads(cli("doctor", "--json").stdout)["cache"]
    assert found == {"folder": "none: every start compiles", "chosen": "there is no folder"}


def test_a_missing_extra_comes_with_the_command_that_adds_it(monkeypatch):
    monkeypatch.setattr(checkup, "self_test", list)
    monkeypatch.setitem(sys.modules, "minari", None)
    done = cli("doctor")
    assert done.exit_code == 0
    assert re.search(r"missing +minari ", done.stdout)
    assert "install it with: pip install -c constraints.txt -e '.[minari]'" in done.stdout
    found = json.loads(cli("doctor", "--json").stdout)
    assert found["extras"]["minari"]["missing"] == ["minari"]
    with pytest.raises(UserError, match=r"^this needs minari: `pip install .*\[minari\]'`$"):
        require_extra("minari", "this")


@pytest.mark.parametrize("fault", ["train", "fork"])
def test_a_self_test_that_fails_is_code_1(fault, monkeypatch):
    def broken(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkup, fault, broken)
    done = cli("doctor")
    assert done.exit_code == 1
    assert re.search(r"FAILED +\w+ .*No space left on device", done.stdout)


def test_a_wrong_argument_is_one_line():
    refused(cli("doctor", "--jsn"), "--jsn")


def test_the_table_of_extras_is_that_of_the_project():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(written) - {"test", "docs", "dev"}  # which are for who works on the project
    for name, extra in EXTRAS.items():
        text = " ".join(written[name])
        for package in extra.packages:
            assert re.search(rf"\b{package}\b|\[{package}\]", text) or package == "h5py", (name, package)
    tested = next(line for line in written["test"] if line.startswith("rl-training["))
    # Large, or they bring pandas or scipy; no test plays popgym.
    left_out = {"mujoco", "dm-control", "minatar", "pettingzoo", "popgym"}
    assert set(re.findall(r"\w+", tested.partition("[")[2])) - {"docs"} == set(EXTRAS) - left_out


def test_it_shows_the_disk_space_of_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "self_test", list)
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        tree = {"policy": {"weights": torch.zeros(2**18)}}
        checkpoints.save_checkpoint(tmp_path / "runs" / "mine" / "checkpoints", step, tree, 2)
    shown = cli("doctor").stdout.partition("\ndisk\n")[2].partition("\nextras\n")[0]
    assert re.search(r"free +[\d,.]+ [MG]B", shown) and re.search(
        r"runs/mine +2.0 MB in 2 checkpoints", shown
    )
