"""Rows of results: which config is trained with which seeds, how it is scored, and what it is compared with.

A row is a YAML file, `results/rows/<algo>/<name>.yaml`; its name is `<algo>/<name>`. See docs/results.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_training.errors import ConfigError, did_you_mean
from rl_training.registry import rows_folder
from rl_training.settings.yaml import parse_yaml, read_text


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evaluation(Entry):
    """How a trained policy is scored: the mean return of whole episodes."""

    episodes: int = 100
    actions: Literal["greedy", "sampled"] = "greedy"
    checkpoint: Literal["last", "best"] = "last"


class Reference(Entry):
    """A published figure, or one of our own: an expert's score, a goal.

    `goal: false` marks one of another protocol: for orientation, not to be reached.
    """

    score: float
    source: str
    steps: int | None = None
    spread: float | None = None  # ±, as published
    scores: tuple[float, ...] = ()  # of single runs, where they are published
    goal: bool = True


class Peer(Entry):
    """A library that is trained beside a row with `reproduce --peer`, by a script of benchmarks/peers."""

    library: str  # its environment is that of benchmarks/peers/<library>.txt
    settings: dict[str, Any]  # of the script, besides environment, steps, seed and evaluation
    script: str = "benchmarks.peers.sb3"


class Row(Entry):
    """One line of docs/results.md. A row with `not_run` has no result, and says why."""

    name: str
    family: str
    config: str
    overrides: tuple[str, ...] = ()
    task: str = ""  # which one is scored, where the config has several
    trained_with: str = ""  # another row with the same runs: one training, and a row for each of its tasks
    seeds: str = "11-15"
    chosen: str  # where the settings come from, and which seeds they were chosen on
    evaluation: Evaluation = Evaluation()
    references: tuple[Reference, ...] = ()
    zoo: bool = True  # whether its policy is small enough to be shipped
    peer: Peer | None = None
    beside: str = ""  # another row that it is compared with, at equal steps
    not_run: str = ""
    note: str = ""

    @property
    def runs(self) -> str:
        """The row whose name its runs have."""
        return self.trained_with or self.name


def row_names() -> list[str]:
    folder = rows_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


def read_row(name: str) -> Row:
    """The row of this name; ConfigError in one line where there is none, or where its file is wrong."""
    if name not in row_names():
        hint = did_you_mean(name, row_names()) or "; `rl-training reproduce --list` shows them"
        raise ConfigError(f"{name}: no such row{hint}")
    return parse_row(name, rows_folder() / f"{name}.yaml")


def parse_row(name: str, path: Path) -> Row:
    values = parse_yaml(read_text(path), str(path)).data
    if not isinstance(values, dict) or "name" in values:
        raise ConfigError(f"{path}: a row is a mapping, and its file's name is its name")
    try:
        return Row(name=name, **values)
    except ValidationError as error:
        first = error.errors()[0]
        entry = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {entry}: {first['msg']}") from None
