"""Search space, written like a config with a range or list in place of a value.

    learning_rate: {low: 1e-4, high: 1e-2, log: true}          numbers of a range
    num_minibatches: [2, 4, 8]                                 one of several
    ent_coef_schedule: {type: [linear, cosine], start: {low: 0, high: 0.1}, end: 0}

A list is a choice everywhere, and what is chosen may hold ranges and choices again. Everything else is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rl_training.errors import ConfigError, KeyPath, did_you_mean
from rl_training.runtime.controls import split_key
from rl_training.settings.config import Config
from rl_training.settings.keys import accepted_keys
from rl_training.settings.loading import load_config
from rl_training.settings.yaml import parse_yaml, read_text, to_yaml

RANGE_KEYS = ("low", "high", "log", "step")
WHOLE_KEYS = ("steps", "delay", "every")  # entries of a schedule that count steps


class Ask(Protocol):
    """What is asked for each value: an Optuna trial, or a stand-in that gives the ends of every range."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None, log: bool
    ) -> float: ...

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


class Fixed(NamedTuple):
    value: Any

    def ask(self, trial: Ask, name: str) -> Any:
        return self.value


class Range(NamedTuple):
    low: float
    high: float
    log: bool
    step: float | None
    whole: bool

    def ask(self, trial: Ask, name: str) -> Any:
        if self.whole:
            step = int(self.step or 1)
            return trial.suggest_int(name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(name, float(self.low), float(self.high), step=self.step, log=self.log)


class Choice(NamedTuple):
    options: tuple[Any, ...]
    labels: tuple[Any, ...]  # under which Optuna knows them

    def ask(self, trial: Ask, name: str) -> Any:
        index = self.labels.index(trial.suggest_categorical(name, self.labels))
        return self.options[index].ask(trial, f"{name}[{index}]")


class Parts(NamedTuple):
    entries: dict[str, Any]

    def ask(self, trial: Ask, name: str) -> Any:
        return {key: part.ask(trial, f"{name}.{key}") for key, part in self.entries.items()}


class Space(NamedTuple):
    """What to try for each key of a config."""

    entries: dict[str, Any]

    def ask(self, trial: Ask) -> dict[str, Any]:
        """One value for every key."""
        return {key: node.ask(trial, key) for key, node in self.entries.items()}

    def config(self, base: Config, values: Mapping[str, object]) -> Config:
        """The config with these values in the place of its own."""
        config: Config = load_config(base, [f"{key}={to_yaml(value)}" for key, value in values.items()])
        return config


def read_space(path: str | Path, base: Config) -> Space:
    """Read and check a space. Raises ConfigError: where, what is wrong, and the nearest right name.

    Both ends of every range and every choice are tried with the config, so that a search does not stumble over them.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"--space {path}: no such file")
    data, lines = parse_yaml(read_text(path), str(path))
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path}:1: a search space must be a mapping of keys to ranges or lists")
    keys = accepted_keys(type(base))
    reader = Reader(str(path), lines)
    for key in data:
        if key == "algo":  # the fields of a config, and what a foreign name would import, hang on it
            raise ConfigError(f"{path}:{lines[(key,)]}: a search cannot change algo")
        if key not in keys:
            raise ConfigError(f"{path}:{lines[(key,)]}: unknown key {key!r}{did_you_mean(key, keys)}")
    whole = {key: _is_whole(base, keys[key]) for key in data}
    space = Space({key: reader.read(value, (key,), whole[key]) for key, value in data.items()})
    if not reader.searched:
        raise ConfigError(f"{path}:1: the search space is empty: add a range or a list")
    for corner in (
        Corner(low=True),
        Corner(low=False),
        *(Corner(True, name, i) for name, i in _choices(space)),
    ):
        try:
            space.config(base, space.ask(corner))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return space


def _is_whole(base: Config, name: str) -> bool:
    """Whether a field, or what a schedule gives for it, is a whole number."""
    knob = split_key(name)
    if knob is not None and knob[2] == "_schedule":
        return knob[0].integer
    annotation = str(type(base).model_fields[name].annotation)
    return "int" in annotation and "float" not in annotation


class Reader:
    """From the plain data of a file to nodes."""

    def __init__(self, place: str, lines: Mapping[KeyPath, int]) -> None:
        self.place, self.lines = place, lines
        self.searched = 0

    def refuse(self, path: KeyPath, what: str) -> ConfigError:
        while path and path not in self.lines:
            path = path[:-1]
        return ConfigError(f"{self.place}:{self.lines.get(path, 1)}: {path[0]} {what}")

    def read(self, value: object, path: KeyPath, whole: bool) -> Any:
        if isinstance(value, list):
            return self.choice(value, path, whole)
        if not isinstance(value, dict):
            return Fixed(value)
        if value.keys() == {"choices"} and isinstance(value["choices"], list):
            return self.choice(value["choices"], (*path, "choices"), whole)
        if "low" in value or "high" in value:
            return self.range(value, path, whole)
        return Parts(
            {
                key: self.read(part, (*path, key), key in WHOLE_KEYS or (whole and key != "power"))
                for key, part in value.items()
            }
        )

    def choice(self, options: list[object], path: KeyPath, whole: bool) -> Choice:
        if not options:
            raise self.refuse(path, "has an empty list of choices")
        nodes = tuple(self.read(option, (*path, index), whole) for index, option in enumerate(options))
        simple = (type(None), bool, int, float, str)
        labels = tuple(option if isinstance(option, simple) else to_yaml(option) for option in options)
        if len({(type(label), label) for label in labels}) < len(labels):
            raise self.refuse(path, "has the same choice twice")
        self.searched += 1
        return Choice(nodes, labels)

    def range(self, value: dict[str, Any], path: KeyPath, whole: bool) -> Range:
        for key, entry in value.items():
            if key not in RANGE_KEYS:
                raise self.refuse(
                    (*path, key), f"has an unknown entry {key!r}{did_you_mean(key, RANGE_KEYS)}"
                )
            right = isinstance(entry, bool) if key == "log" else _is_number(entry, whole)
            if not right:
                kind = "true or false" if key == "log" else "a whole number" if whole else "a number"
                raise self.refuse((*path, key), f"has {key}: {entry}, which must be {kind}")
        if not {"low", "high"} <= value.keys():
            raise self.refuse(path, "is a range that needs both low and high")
        low, high, log, step = value["low"], value["high"], value.get("log", False), value.get("step")
        if not low < high:
            raise self.refuse(path, f"goes from {low} to {high}; low must be below high")
        if log and low <= 0:
            raise self.refuse(path, f"begins at {low}; a range with log must begin above 0")
        if step is not None and (log or step <= 0):
            raise self.refuse(path, "has a step, which must be above 0 and cannot go with log")
        self.searched += 1
        return Range(low, high, log, step, whole)


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not whole or float(value).is_integer()


class Corner:
    """Answers with the lower or the upper end of everything, but for one choice if it is named."""

    def __init__(self, low: bool, name: str | None = None, index: int = 0) -> None:
        self.low, self.name, self.index = low, name, index

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int:
        return low if self.low else high

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None, log: bool) -> float:
        return low if self.low else high

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return choices[self.index if name == self.name else 0 if self.low else -1]


def _choices(space: Space) -> list[tuple[str, int]]:
    """Every option of every choice, by name and index."""
    choices: list[tuple[str, int]] = []

    def walk(node: object, name: str) -> None:
        if isinstance(node, Choice):
            for index, option in enumerate(node.options):
                choices.append((name, index))
                walk(option, f"{name}[{index}]")
        elif isinstance(node, Parts):
            for key, part in node.entries.items():
                walk(part, f"{name}.{key}")

    for key, node in space.entries.items():
        walk(node, key)
    return choices
