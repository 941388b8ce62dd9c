"""What is shipped: the public names, loaded lazily, the pinned set, and the hook that fills wheels."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rl_training

ROOT = Path(__file__).parents[2]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_public_names_come_from_where_they_live() -> None:
    from rl_training import evaluate_checkpoint, load_config, load_policy, resume, train
    from rl_training.runtime import workflows

    assert load_config("ppo/cartpole").env_id == "CartPole-v1"
    assert (train, resume) == (workflows.train, workflows.resume)
    assert (evaluate_checkpoint, load_policy) == (workflows.evaluate_checkpoint, workflows.load_policy)
    assert set(dir(rl_training)) == set(rl_training.__all__)
    with pytest.raises(AttributeError, match="trian"):
        rl_training.trian  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, rl_training; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_constraints_pin_everything_the_package_and_its_tests_ask_for() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in lines
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    assert len(pinned) == len(lines), "a line that pins nothing, or a package twice"
    assert "rl-training" not in pinned
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [line for lines in project["optional-dependencies"].values() for line in lines]
    required += project["dependencies"]
    wanted = {normal(re.split(r"[^\w.-]", line)[0]) for line in required} - {"rl-training"}
    assert {"torch", "gymnasium", "pydantic", "matplotlib", "pytest", "ruff", "pre-commit"} <= wanted
    assert wanted <= pinned


@pytest.mark.parametrize(
    ("version", "shipped"),
    [
        (
            "standard",
            {
                "configs": "rl_training/configs",
                "results/rows": "rl_training/rows",
                "zoo": "rl_training/zoo",
            },
        ),
        ("editable", {}),
    ],
)
def test_the_build_hook_ships_configs_rows_and_policies_in_wheels_only(
    version: str, shipped: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run without hatchling, which is only there while a wheel is built."""
    source = (ROOT / "hatch_build.py").read_text()
    assert "from hatchling.builders.hooks.plugin.interface import BuildHookInterface" in source
    name = "hatchling.builders.hooks.plugin.interface"
    for index in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:index])
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    sys.modules[name].BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.syspath_prepend(ROOT)
    import hatch_build

    build_data: dict[str, Any] = {"force_include": {}}
    hatch_build.ShipConfigs().initialize(version, build_data)
    assert build_data["force_include"] == shipped


# Package -> the first version without a published hole that concerns this package.
FIRST_SAFE = {"torch": "2.13", "onnx": "1.21", "ray": "2.54", "mlflow-skinny": "3.10"}


def test_no_version_with_a_published_hole_is_admitted() -> None:
    from packaging.requirements import Requirement
    from packaging.version import Version

    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10"
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    floors = {
        asked.name: Version(next(part.version for part in asked.specifier if part.operator == ">="))
        for asked in map(Requirement, [*project["dependencies"], *extras])
        if asked.name in FIRST_SAFE
    }
    assert floors.keys() == FIRST_SAFE.keys()
    assert all(floor >= Version(FIRST_SAFE[name]) for name, floor in floors.items()), floors
    pinned = re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert all(Version(version) >= floors[name] for name, version in pinned if name in floors)
