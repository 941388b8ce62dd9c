"""The package as containers have it: a user without a name, a home that is read-only, and the Dockerfile itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from users import STRANGER, needs_root, public_folder, run_as

ROOT = Path(__file__).parents[2]
# Everything in one process: importing torch is most of the time.
USE = """
import json, os, sys
from rl_training.cli import main

def command(line):
    sys.argv = ["rl-training", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (line, end.code)

command("train ppo/cartpole total_timesteps=256 num_envs=2 num_steps=64 eval_episodes=2 --quiet --run-dir run")
command("evaluate run --episodes 2")

import numpy as np
from rl_training import load_policy
from rl_training.compiling import cache

action = load_policy("run").act(np.zeros(4, np.float32))
print(json.dumps({"action": int(action), "cache": str(cache().folder), "user": os.getuid()}))
"""


@needs_root
def test_a_user_without_a_writable_home_trains_evaluates_and_loads_a_policy():
    with public_folder() as folder:
        package, home, tmp, work = (folder / name for name in ("package", "home", "tmp", "work"))
        shutil.copytree(
            ROOT / "src/rl_training", package / "rl_training", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copytree(ROOT / "configs", package / "rl_training/configs")
        for path in (home, tmp, work):
            path.mkdir()
        home.chmod(0o555)
        tmp.chmod(0o1777)
        os.chown(work, STRANGER, STRANGER)
        environment = {"HOME": str(home), "TMPDIR": str(tmp), "PYTHONPATH": str(package), "PATH": os.defpath}
        done = run_as(STRANGER, sys.executable, "-c", USE, cwd=work, env=environment)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer == {
            "action": answer["action"],
            "cache": str(tmp / f"rl_training-numba-{STRANGER}"),
            "user": STRANGER,
        }
        assert answer["action"] in (0, 1)
        assert "run, last checkpoint" in done.stdout  # what was evaluated
        assert len(done.stderr.splitlines()) == 1, "one warning, and nothing else"
        assert done.stderr.startswith("warning: neither the package's folders nor the home directory")
        assert not list(home.iterdir())
        assert not list(package.rglob("*.nbi"))


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_dockerfile_copies_what_is_there_and_what_its_install_needs():
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = {name for word, rest in instructions() if word == "COPY" for name in shlex.split(rest)[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    readme = re.search(r'^readme = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert readme
    assert {"pyproject.toml", "constraints.txt", "hatch_build.py", "configs", "src", readme[1]} == copied


def test_the_dockerfile_pins_versions_names_no_index_and_ends_as_a_user_without_privileges():
    words = instructions()
    assert all("-c /opt/rl-training/constraints.txt" in rest for _, rest in words if "pip install" in rest)
    assert "://" not in (ROOT / "Dockerfile").read_text()
    user = [rest for word, rest in words if word == "USER"][-1]
    made = next(
        re.search(r"useradd --uid (\d+) .*\b(\w+) &&", rest) for _, rest in words if "useradd" in rest
    )
    assert made
    assert user == made[2]
    assert int(made[1]) > 0
