"""Loading configs: files with extends, overrides, and the config of a run; and writing them.

load_config("ppo/cartpole", ["seed=3", "clip_range_schedule=linear"])
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_training import parts
from rl_training.errors import ConfigError, KeyPath, UntrustedError, did_you_mean
from rl_training.parts import brought_by, is_name
from rl_training.registry import ALGORITHMS, algorithms, config_class_of, shipped_config_path, shipped_configs
from rl_training.runtime.controls import SCHEDULE, WARMUP
from rl_training.runtime.schedules import names_start
from rl_training.settings.config import Config
from rl_training.settings.keys import fields_of
from rl_training.settings.refusals import FieldError, show
from rl_training.settings.yaml import parse_yaml, read_text, to_yaml
from rl_training.trust import Foreign, refusal

MAX_EXTENDS = 10
# Fields that the first runs did not have, and what those runs did; those of one algorithm are in `Config.younger`.
YOUNGER = {"eval_sample": False, "small_pictures": False, "compiled_updates": False, "vectorization": "sync"}


class Layer(NamedTuple):
    """One source of values and where each stands: a file, a mapping or the command line's overrides."""

    values: dict[str, Any]
    places: dict[KeyPath, str]
    folder: Path = Path()  # from which files in it are seen
    of_run: bool = False  # whether it came with a run, and so perhaps from someone else

    def refuse(self, error: FieldError) -> ConfigError:
        path = error.path
        while path and path not in self.places:
            path = path[:-1]
        place = self.places.get(path)
        return ConfigError(f"{place}: {error}" if place else str(error))


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config,
    overrides: Sequence[str] | Mapping[str, object] = (),
    **more: object,
) -> Any:
    """Load and validate a config: a file, the name of a shipped one (`ppo/cartpole`), a mapping, or a config.

    overrides: a list of `key=value` with values in YAML, a mapping, or keyword arguments.
    Later layers override earlier ones: what a file `extends`, the file itself, the overrides.
    Returns an instance of the algorithm's config class. Raises ConfigError.
    """
    return _load(source, overrides, more)


def _load(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config,
    overrides: Sequence[str] | Mapping[str, object],
    more: Mapping[str, object],
    *,
    of_run: bool = False,
    trust: bool = True,
) -> Any:
    """As `load_config`; of a run, whose config may import the class of its algorithm only with `trust`."""
    if isinstance(source, Config):
        # Only what its user set: the rest may still get other defaults, as on pictures.
        chosen = {"algo"} | source.model_fields_set
        source = {name: value for name, value in _written(source).items() if name in chosen}
    if isinstance(source, Mapping):
        values = {str(key): value for key, value in source.items()}
        parents = _extended(values, Layer(values, {}), Path(), ())
        files = [*parents, Layer(values, {}, of_run=of_run)]
    elif not isinstance(source, str | os.PathLike):
        raise ConfigError(f"a config is a file, a name, a mapping or a Config, not {type(source).__name__}")
    else:
        files = _read_layers(_find(os.fspath(source), Path()), ())
    layers = [*files, _read_overrides(overrides), *([_given(more)] if more else [])]
    config_class = _config_class(layers, trust)
    if of_run:
        layers.append(_given(_before(config_class, layers)))
    for layer in layers:
        _record_parts(layer, config_class)

    values = {}
    written: dict[str, str] = {}
    homes: dict[str, Layer] = {}
    for layer in layers:
        try:
            keys = fields_of(config_class, layer.values)
        except FieldError as error:
            raise layer.refuse(error) from None
        for name, key in keys.items():
            schedule = name + SCHEDULE
            if schedule not in keys and names_start(values.get(schedule)):
                reason = f"{written[schedule]} has its own start; set {key}{SCHEDULE} too"
                raise layer.refuse(FieldError(f"{key} would have no effect, because {reason}", (key,)))
        for name, key in keys.items():
            values[name], written[name], homes[name] = layer.values[key], key, layer
    try:
        return config_class(**values)
    except FieldError as error:
        home = homes.get(str(error.path[0])) if error.path else None
        raise (home or files[-1]).refuse(error.renamed(written)) from None


def _before(config_class: type[Config], layers: Sequence[Layer]) -> dict[str, object]:
    """The younger fields that no layer has, as a run did without them."""
    given = {key for layer in layers for key in layer.values}
    younger = dict(YOUNGER)
    for base in reversed(config_class.__mro__):
        younger |= vars(base).get("younger", {})
    return {name: value for name, value in younger.items() if name not in given}


def located(error: ConfigError, source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> ConfigError:
    """A refusal that came after reading, such as that of an unknown environment, with the place of its entry."""
    if not error.path:
        return error
    layers = [*_read_layers(_find(os.fspath(source), Path()), ()), _read_overrides(overrides)]
    config_class = _config_class(layers)
    for layer in reversed(layers):
        written = fields_of(config_class, layer.values)
        if error.path[0] in written:
            key = written[str(error.path[0])]
            placed: ConfigError = layer.refuse(FieldError(str(error), (key, *error.path[1:])))
            return placed
    return error


def _config_class(layers: Sequence[Layer], trust: bool = True) -> type[Config]:
    for layer in reversed(layers):
        if "algo" in layer.values:
            try:
                _record_name(layer, "algo")
                algo = layer.values["algo"]
                if is_name(algo):
                    if not trust and not parts.is_admitted(algo):
                        raise refusal(Foreign("algo", algo, parts.deed(algo)))
                    parts.admit(algo)
                found: type[Config] = config_class_of(algo)
                return found
            except UntrustedError:
                raise
            except ConfigError as error:
                raise layer.refuse(FieldError(str(error), ("algo",))) from None
    missing = _missing_algo({key: value for layer in layers for key, value in layer.values.items()})
    raise next((layer for layer in layers[:-1] if missing.path in layer.places), layers[0]).refuse(missing)


def _missing_algo(values: Mapping[str, object]) -> FieldError:
    slip = next((key for key in values if did_you_mean(key, ["algo"])), None)
    if slip is not None:
        return FieldError(f"unknown key {slip!r}; did you mean algo?", (slip,))
    return FieldError(f"algo is missing; there are: {', '.join(algorithms())}")


def _find(source: str, folder: Path) -> Path:
    """The file a source means: a path, seen from a folder, or else the name of a shipped config."""
    path = folder / source
    try:
        if path.is_file():
            return path
    except OSError as error:  # a name too long for a file, say
        raise ConfigError(f"{source[:60]}: {error.strerror}") from None
    if source in shipped_configs():
        return shipped_config_path(source)
    if path.exists():
        raise ConfigError(f"{path}: is not a file")
    raise ConfigError(f"{path}: no such file{_instead_of(source, path)}")


def _instead_of(source: str, path: Path) -> str:
    """What may be meant by a config that is not there."""
    algo = source.lower()
    if algo in ALGORITHMS:
        configs = ", ".join(name for name in shipped_configs() if name.startswith(f"{algo}/"))
        return f"; {algo} is an algorithm, and its shipped configs are {configs}"
    beside = [each.name for each in path.parent.glob("*.yaml")]
    hint = did_you_mean(path.name, beside) or did_you_mean(source, shipped_configs())
    return hint or "; `rl-training list` shows the shipped configs"


def _read_layers(path: Path, children: tuple[Path, ...]) -> list[Layer]:
    """The layer of a file, after those of the files it extends."""
    values, lines = parse_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: a config is a mapping of keys to values")
    places = {entry: f"{path}:{line}" for entry, line in lines.items()}
    # What came with a run is not the user's own, whoever names it.
    layer = Layer(values, places, path.parent, of_run=(path.parent / "manifest.json").exists())
    parents = _extended(values, layer, path.parent, (*children, path.resolve()))
    return [*parents, layer]


def _record_parts(layer: Layer, config_class: type[Config]) -> None:
    """Give what a layer names the form that a run keeps: `my_net.py:Net` is a file beside the config.

    Where no file says it, it is one of the working directory. From then on its full path stands there.
    """
    _record_name(layer, "env_id")
    for key, brought in brought_by(config_class).items():
        if key in layer.values:
            try:
                named = brought.names(brought.recorded(layer.values[key], None))
                _refuse_relative(layer, key, named)
                layer.values[key] = brought.recorded(layer.values[key], layer.folder)
            except ValueError as error:
                raise layer.refuse(FieldError(f"{key} {error}", (key,))) from None


def _record_name(layer: Layer, key: str) -> None:
    name = layer.values.get(key)
    if name is not None and not isinstance(name, str) and callable(name):
        try:
            name = layer.values[key] = parts.name_of(name)
        except ValueError as error:
            raise layer.refuse(FieldError(f"{key} {error}", (key,))) from None
    if isinstance(name, str):
        _refuse_relative(layer, key, [name])
        layer.values[key] = parts.located(name, layer.folder)


def _refuse_relative(layer: Layer, key: str, names: Sequence[str]) -> None:
    for name in filter(parts.is_relative, names):
        if layer.of_run:
            raise layer.refuse(
                FieldError(f"{key} {name!r}: a run names such a file by its full path", (key,))
            )


def _extended(
    values: dict[str, object], layer: Layer, folder: Path, children: tuple[Path, ...]
) -> list[Layer]:
    """The layers below one that says `extends`, which is taken out of it."""
    if "extends" not in values:
        return []
    parent = values.pop("extends")
    try:
        if not isinstance(parent, str):
            raise FieldError(f"extends must name one config, not {show(parent)}", ("extends",))
        path = _find(parent, folder)
        if path.resolve() in children:
            raise FieldError(f"extends goes in a circle: {parent} extends this config", ("extends",))
        if len(children) >= MAX_EXTENDS:
            raise FieldError(f"extends goes more than {MAX_EXTENDS} configs deep", ("extends",))
    except ConfigError as error:
        text = str(error) if isinstance(error, FieldError) else f"extends: {error}"
        raise layer.refuse(FieldError(text, ("extends",))) from None
    return _read_layers(path, children)


def _given(values: Mapping[str, object]) -> Layer:
    """What a call in Python gives, as a layer."""
    values = {str(key): value for key, value in values.items()}
    if "extends" in values:
        raise ConfigError("extends belongs in a file")
    return Layer(values, {(key,): f"{key}={show(value)}" for key, value in values.items()})


def _read_overrides(overrides: Sequence[str] | Mapping[str, object]) -> Layer:
    """The command line's `key=value` as a layer; of one key given twice, the last counts."""
    if isinstance(overrides, Mapping):
        return _given(overrides)
    if isinstance(overrides, str):
        raise ConfigError(f"{overrides}: overrides are a list of key=value, or a mapping")
    layer = Layer({}, {})
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{override}: an override is written key=value")
        if key == "extends":
            raise ConfigError(f"{override}: extends belongs in a file")
        if len(text) > 10_000:
            raise ConfigError(f"{override[:40]}...: too long for an override")
        try:
            layer.values[key] = parse_yaml(text, "").data
        except ConfigError as error:
            raise ConfigError(f"{override}: {re.sub(r'^:[0-9]+: ', '', str(error))}") from None
        layer.places[(key,)] = override.replace("\n", " ")
    return layer


def given_keys(overrides: Sequence[str] | Mapping[str, object]) -> list[str]:
    """The keys of overrides as they were written."""
    return list(_read_overrides(overrides).values)


def _written(config: Config) -> dict[str, Any]:
    """A config as the mapping one would write: all of it but schedules and warm-ups that are not there."""
    values = config.model_dump()
    written: dict[str, Any] = {}
    beside = {name + part for name in type(config).controls for part in (SCHEDULE, WARMUP)}
    for name, value in values.items():
        if name in beside:  # beside its knob already
            continue
        written[name] = value
        if values.get(name + SCHEDULE) is not None:
            written[name + SCHEDULE] = values[name + SCHEDULE]
        if values.get(name + WARMUP):
            written[name + WARMUP] = values[name + WARMUP]
    return written


def load_run_config(
    source: Path | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    trust: bool = False,
) -> Config:
    """The config of a run, as its files hold it; a field that is younger than the run is as the run did without it.

    The class of its algorithm is imported by name only with `trust`, or where it was trusted in this process before.
    """
    config: Config = _load(source, overrides, {}, of_run=True, trust=trust)
    return config


def as_begun(config: Config, written: Mapping[str, object]) -> Config:
    """A config as it would have been read by the version that wrote these settings, perhaps without younger fields."""
    fields = type(config).model_fields
    values = config.model_dump(mode="json")
    younger = {name for name in values if name not in written and name in fields}
    kept = {
        name: value
        for name, value in values.items()
        if name not in younger or getattr(config, name) != fields[name].default
    }
    return load_run_config(kept)


def dump_config(config: Config) -> str:
    """The config as YAML, one line per field, which `load_config` reads back equal."""
    return "".join(f"{name}: {to_yaml(value)}\n" for name, value in _written(config).items())
