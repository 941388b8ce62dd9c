"""Imports point one way: a room may import from its own layer and the layers below it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import rl_training
from rl_training.registry import SHIPPED, config_class_of
from rl_training.settings.config import Config

PACKAGE = Path(rl_training.__file__).parent
LAYERS = [
    {"settings"},
    {"algorithms"},
    {"networks", "kernels", "search", "dynamics"},
    {"data", "envs", "state"},
    {"policies"},
    {"runtime", "fleet", "monitoring"},
    {"tools", "reporting", "tuning"},
    {"commands", "cli"},
]
LEAVES = ("rl_training.runtime.controls", "rl_training.runtime.schedules")  # which anything may import
OF_SETTINGS = tuple(f"rl_training.{name}" for name in ("errors", "parts", "registry", "settings", "trust"))
OF_SETTINGS += LEAVES
# Files of which little else is wanted -> all of the package that they may import.
ALONE: dict[str, tuple[str, ...]] = {
    "errors.py": (),
    "runtime/schedules.py": ("rl_training.errors", "rl_training.runtime.schedules"),
    "runtime/controls.py": ("rl_training.errors", "rl_training.runtime.schedules"),
}
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Light enough for anything: they are read before torch is, so `--help` and a bad config answer at once.
WITHOUT_TORCH = [
    "errors.py",
    "registry.py",
    "cli.py",
    "extras.py",
    "parts.py",
    "trust.py",
    *sorted(
        f"{room}/{path.name}" for room in ("settings", "commands") for path in (PACKAGE / room).glob("*.py")
    ),
    "runtime/schedules.py",
    "runtime/controls.py",
]
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """The dotted names of modules that the nodes of `tree` import."""
    here = ("rl_training", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) + 1 - node.level]) + "." if node.level else ""
            yield from (f"{base}{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names)


def imported_from_above(path: Path) -> Iterator[str]:
    """Each import of a file that leads to a higher layer."""
    mine = LEVEL.get(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    for name in imports(ast.parse(path.read_text()), path):
        theirs = LEVEL.get(name.split(".")[1]) if name.startswith("rl_training.") else None
        if mine is not None and theirs is not None and theirs > mine and not name.startswith(LEAVES):
            yield name


def imported_torch(path: Path) -> Iterator[str]:
    """Each import of torch that runs when the file is imported."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name for name in imports(node, path) if name.split(".")[0] == "torch")


def imported_beyond(path: Path, allowed: tuple[str, ...]) -> Iterator[str]:
    """Each import of the package's own that is not among those a file may have."""
    for name in imports(ast.parse(path.read_text()), path):
        if name.startswith("rl_training") and not name.startswith(allowed):
            yield name


def wrong_imports() -> Iterator[tuple[str, str]]:
    """The file and the name of every import that breaks a rule."""
    found = [(path, imported_from_above(path)) for path in FILES]
    found += [(PACKAGE / name, imported_torch(PACKAGE / name)) for name in WITHOUT_TORCH]
    found += [(path, imported_beyond(path, OF_SETTINGS)) for path in (PACKAGE / "settings").glob("*.py")]
    found += [(PACKAGE / name, imported_beyond(PACKAGE / name, allowed)) for name, allowed in ALONE.items()]
    for path, wrong in found:
        yield from ((str(path.relative_to(PACKAGE)), name) for name in wrong)


def test_imports_point_one_way_and_light_modules_stay_light() -> None:
    assert len(FILES) > 100
    assert list(wrong_imports()) == []


# What is asked -> the exit code and words of the answer. None of it may need more than the settings.
LIGHT = {
    "--help": (0, "describe"),
    "train ppo/cartpole clip_rnage=0.1": (2, "did you mean clip_range?"),
    "train ppo/cartpole algo=pop": (2, "did you mean ppo?"),
    "describe ppo": (0, "clip_coef or clip_range"),
    "schedule ppo/cartpole": (0, "learning_rate"),
    "list": (0, "ppo/cartpole"),
}
# One process answers all of them, one after the other, and says after each what is loaded by then.
ASKING = """
import json, sys
from typer.testing import CliRunner
from rl_training.cli import app
for command in sys.argv[1:]:
    answer = CliRunner().invoke(app, command.split(), prog_name="rl-training")
    loaded = sorted({"torch", "numba", "gymnasium"} & set(sys.modules))
    print(json.dumps([command, answer.exit_code, answer.output, loaded]))
"""


def test_what_needs_the_settings_alone_loads_neither_torch_nor_numba_nor_gymnasium() -> None:
    ran = subprocess.run([sys.executable, "-c", ASKING, *LIGHT], capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [command for command, *_ in answers] == list(LIGHT)
    wrong = [
        (command, code, loaded)
        for command, code, text, loaded in answers
        if loaded or code != LIGHT[command][0] or LIGHT[command][1] not in text
    ]
    assert wrong == []


def test_the_walk_of_a_value_names_files_and_what_they_define() -> None:
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    walk = page.partition("### From a YAML key to a logged metric")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| `(\S+\.py)` \| `(\w+)` \|", walk, re.M)
    assert len(steps) > 10
    assert [(name, definition) for name, definition in steps if definition not in defined_in(name)] == []


def defined_in(name: str) -> set[str]:
    nodes = ast.walk(ast.parse((PACKAGE / name).read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def test_no_kernel_names_an_algorithm() -> None:
    """Neither its module nor its paper: kernels state mathematics."""
    wrong = [(path.name, found) for path in (PACKAGE / "kernels").glob("*.py") for found in named_in(path)]
    assert wrong == []


def test_no_trainer_knows_of_kernels() -> None:
    """A trainer asks for the fastest update of its loss; what that is made of is none of its business."""
    trainers = sorted((PACKAGE / "runtime").glob("*_trainer.py"))
    assert len(trainers) >= len(SHIPPED)
    assert [path.name for path in trainers if "kernels" in path.read_text("utf-8")] == []


def named_in(path: Path) -> list[str]:
    """The names of algorithms in a file, its comments and those in names of classes and modules included."""
    names = "|".join(name.replace("_", "[_ ]?") for name in SHIPPED)
    return re.findall(rf"(?<![A-Za-z])(?i:{names})(?![a-z])", path.read_text("utf-8"))


def test_an_algorithm_is_found_in_words_modules_and_classes_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "from rl_training.algorithms.dreamer import UNIMIX  # as DreamerV3 has it\n"
        "class PPOUpdate(EfficientZeroNetwork):  # of supports, abc, gumbel muzero\n"
    )
    found = ["dreamer", "Dreamer", "PPO", "EfficientZero", "gumbel muzero"]
    assert named_in(tmp_path / "kernel.py") == found


def test_configs_are_at_most_three_deep() -> None:
    assert [name for name in SHIPPED if depth(config_class_of(name)) > 3] == []


def depth(config_class: type) -> int:
    """Classes from `Config` to this one, both counted, on the longest way."""
    if config_class is Config:
        return 1
    return 1 + max(depth(base) for base in config_class.__bases__ if issubclass(base, Config))
