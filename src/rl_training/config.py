"""Configs: what the user wrote, checked before anything is made of it.

    load_config("ppo/cartpole", ["seed=3", "clip_range_schedule=linear"])
    PPOConfig(env_id="CartPole-v1", clip_range=0.1)

Each algorithm has one frozen class, a subclass of `Config`, with a sentence for each field. Unknown keys,
wrong types, numbers out of range and schedules that would leave a knob's range are refused with one line:
where it stands, what is wrong, and the nearest right name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from rl_training.config_text import KeyPath, parse_yaml, plain, read_text, to_yaml
from rl_training.errors import ConfigError, did_you_mean
from rl_training.foreign_names import elsewhere, hint_for, our_name
from rl_training.registry import (
    ALGORITHMS,
    algorithms_with,
    shipped_config_path,
    shipped_configs,
    trainer_class,
)
from rl_training.runtime.controls import (
    PARTS,
    SCHEDULE,
    WARMUP,
    KnobError,
    compile_knobs,
    find_control,
    split_key,
    two_spellings,
)
from rl_training.runtime.schedules import names_start

MAX_EXTENDS = 10

ENVIRONMENT_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
DEVICE = r"^(cpu|cuda(:[0-9]+)?)$"
Units = Annotated[int, Field(ge=1, le=65_536)]


class FieldError(ConfigError):
    """A refusal of one entry; the message begins with its name, and `path` leads to it."""

    def __init__(self, message: str, path: KeyPath = ()) -> None:
        super().__init__(message.replace("\n", " ")[:500])
        self.path = path

    def renamed(self, written: Mapping[str, str]) -> FieldError:
        """The same refusal under the name the user wrote, given field name -> written key."""
        if not self.path or self.path[0] not in written:
            return self
        name, key = str(self.path[0]), written[str(self.path[0])]
        return FieldError(re.sub(rf"^{name}\b", key, str(self)), (key, *self.path[1:]))


ATARI = "ALE/"  # with which the ids of Atari games begin
# Fields that the first runs did not have, and what those runs did.
YOUNGER = {"eval_sample": False, "small_pictures": False}


def field(default: Any, description: str, **limits: Any) -> Any:
    """One field: its default (`...` if it must be given), a sentence with the unit, limits like `ge=1`."""
    return Field(default, description=description, **limits)


class Config(BaseModel):
    """What every algorithm's config has."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    obeys_action_masks: ClassVar[bool] = False  # whether its policies read the action masks of environments
    samples_on_atari: ClassVar[bool] = False  # whether its policies are evaluated there with sampled actions
    # Knob -> the field that must be true for it to have an effect.
    switched_by: ClassVar[Mapping[str, str]] = {}
    # Defaults of fields that differ where the observation is a picture, unless the user writes them.
    for_pictures: ClassVar[Mapping[str, Any]] = {}
    # The fields that the state of a run is laid out by, besides the shapes of its networks, which show by themselves;
    # those of all base classes count too. A fork keeps them.
    laid_out_by: ClassVar[tuple[str, ...]] = (
        "algo",
        "env_id",
        "num_envs",
        "max_episode_steps",
        "env_kwargs",
        "activation",
    )

    algo: str = field(..., "The algorithm.")
    env_id: str = field(
        ...,
        "The environment: a registered Gymnasium id, module:EnvId, or FILE.py:Class beside the config.",
        min_length=1,
    )
    seed: int = field(1, "Where all randomness of the run comes from.", ge=0, le=2**63 - 1)
    total_timesteps: int = field(1_000_000, "Steps of the run, over all environments.", ge=1, le=10**15)
    num_envs: int = field(1, "Environments stepped side by side.", ge=1, le=65_536)
    max_episode_steps: int | None = field(None, "Steps after which an episode is cut; none: the env's.", ge=1)
    env_kwargs: dict[str, Any] = field({}, "Arguments for making the environment.")
    vectorization: Literal["sync", "async"] = field("sync", "Environments in this process, or in their own.")
    env_timeout: float | None = field(
        300.0, "Seconds without an answer after which an async environment counts as hung; none: never.", gt=0
    )
    normalize_observations: bool = field(False, "Whether observations get running mean 0 and deviation 1.")
    normalize_rewards: bool = field(False, "Whether rewards are divided by the return's running deviation.")
    hidden_sizes: tuple[Units, ...] = field((64, 64), "Units in each hidden layer.")
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = field("tanh", "What follows a hidden layer.")
    image_encoder: Literal["nature", "impala"] = field(
        "nature",
        "Convolutional network of images: the Nature CNN (a smaller one for small images), or IMPALA's.",
    )
    small_pictures: bool = field(
        True,
        "Whether grids of bits or floats, and of less than 11 pixels a side, have encoders of their own.",
    )
    precision: Literal["fp32", "bf16"] = field(
        "fp32", "Arithmetic of the networks; bf16 needs hardware that has it."
    )
    log_interval: int | None = field(None, "Steps between log lines; none: run / 200, or an iteration.", ge=1)
    eval_interval: int | None = field(None, "Steps between evaluations; none: a tenth of the run.", ge=1)
    eval_episodes: int = field(10, "Episodes per evaluation.", ge=1)
    eval_sample: bool | None = field(
        None, "Whether evaluations sample actions; none: on Atari, for policies that sample in training."
    )
    checkpoint_interval: int | None = field(
        None, "Steps between saves; none: run / 10, 20000 to 50000.", ge=1
    )
    tensorboard: bool = field(False, "Whether metrics are also written as TensorBoard events (an extra).")
    wandb: bool = field(False, "Whether metrics are also sent to Weights & Biases (an extra).")
    mlflow: bool = field(False, "Whether metrics are also written to MLflow (an extra).")
    keep_checkpoints: int = field(2, "How many of the newest checkpoints are kept.", ge=2)
    device: str = field("cpu", "Where networks are trained: cpu, cuda or cuda:N.", pattern=DEVICE)
    torch_threads: int | None = field(
        None, "Threads of torch; none: 1 for small nets, else all cores.", ge=1, le=256
    )

    def __init__(self, **data: Any) -> None:
        written: dict[str, str] = {}
        try:
            written = fold(type(self), data)
            values = {name: _soften(type(self), name, data[key]) for name, key in written.items()}
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _explain(type(self), error) from None
            _check_knobs(self)
        except FieldError as error:
            raise error.renamed(written) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(
            f"{name}: a config cannot be changed; make another with load_config(config, {name}={_show(value)})"
        )

    def __delattr__(self, name: str) -> None:
        raise ConfigError(f"{name}: a config cannot be changed; load_config makes another")

    @property
    def env_name(self) -> str:
        """The environment in a word, for the name of a run's directory and for headings."""
        return re.sub(r"(?:.*/)?([^/]+)\.py:", r"\1-", self.env_id)

    @classmethod
    def kept_by_forks(cls) -> frozenset[str]:
        """The fields of `laid_out_by`, of this class and of all its bases."""
        return frozenset(name for kind in cls.__mro__ for name in vars(kind).get("laid_out_by", ()))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of a policy that plays several and must be told which; () for all others."""
        return ()

    def of_task(self, name: str) -> Config:
        """The config of one of its tasks alone."""
        return self

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps between two updates: the unit in which a run moves on."""
        return self.num_envs

    @property
    def resumes_exactly(self) -> bool:
        """Whether a killed run, resumed, ends as if it had never been killed: noted in the run's manifest."""
        return True

    @property
    def log_every(self) -> int:
        """Steps between log lines."""
        return max(self.log_interval or self.total_timesteps // 200, self.steps_per_iteration)

    @property
    def eval_every(self) -> int:
        """Steps between evaluations."""
        return max(self.eval_interval or self.total_timesteps // 10, self.steps_per_iteration)

    @property
    def samples_evaluations(self) -> bool:
        """Whether evaluations during training sample their actions, and do not take the likeliest."""
        if self.eval_sample is None:
            return self.samples_on_atari and self.env_id.startswith(ATARI)
        return self.eval_sample

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints; by default so many that saving costs well under a hundredth of a run."""
        default = min(max(self.total_timesteps // 10, 20_000), 50_000)
        return max(self.checkpoint_interval or default, self.steps_per_iteration)


AnyConfig = TypeVar("AnyConfig", bound=Config)


def schedulable(config_class: type[AnyConfig]) -> type[AnyConfig]:
    """Give every knob of a config (a field named like a control) its `_schedule` and `_warmup_steps`."""
    extra: dict[str, Any] = {}
    for name in config_class.model_fields:
        if find_control(name) is not None and name + SCHEDULE not in config_class.model_fields:
            extra[name + SCHEDULE] = (Any, field(None, f"How {name} moves over the run; none: not at all."))
            extra[name + WARMUP] = (int, field(0, f"Steps over which {name} is ramped up from 0.", ge=0))
    made = create_model(
        config_class.__name__,
        __base__=config_class,
        __module__=config_class.__module__,
        __doc__=config_class.__doc__,
        **extra,
    )
    made.__qualname__ = config_class.__qualname__
    return made


@cache
def accepted_keys(config_class: type[Config]) -> dict[str, str]:
    """Every key a config of this class may hold -> the field it means."""
    fields = config_class.model_fields
    keys = {name: name for name in fields}
    for name in fields:
        control = find_control(name)
        for spelling in control.spellings if control else ():
            keys |= {spelling + part: name + part for part in PARTS if name + part in fields}
    return keys


def fold(config_class: type[Config], data: Mapping[str, Any]) -> dict[str, str]:
    """Field -> the key it was written under. Refuses unknown keys and two spellings of one knob."""
    accepted = accepted_keys(config_class)
    written: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for key in data:
        if key not in accepted:
            raise FieldError(_unknown_key(config_class, key), (key,))
        written[accepted[key]] = key
        knob = split_key(key)
        if knob is not None:
            control, spelling, _ = knob
            first = spellings.setdefault(control.name, spelling)
            if first != spelling:
                raise FieldError(two_spellings(first, spelling), (key,))
    return written


def _unknown_key(config_class: type[Config], key: str) -> str:
    algo = config_class.model_fields["algo"].default
    reader = algo if isinstance(algo, str) else config_class.__name__
    fields = config_class.model_fields
    if hint := hint_for(key, fields):
        return f"{key} is no key of {reader}; {hint}"
    knob = split_key(key)
    if knob is not None:
        return f"{key}: {reader} has no knob {knob[0].name}"
    others = [name for name in algorithms_with(key) if name != algo]
    if others:
        return f"{key} belongs to {', '.join(others)}, not to {reader}"
    for part in (SCHEDULE, WARMUP):
        written = key.removesuffix(part)
        name = our_name(written, fields) or written
        if written == key or name not in fields:
            continue
        if name + part in fields:
            return f"{key} is no key of {reader}; here it is {name}{part}"
        called = name if name == written else f"here {written} is {name}, which"
        knobs = ", ".join(field for field in fields if field + part in fields)
        return f"{key}: {called} is fixed for the whole run; what can move are {knobs}"
    if elsewhere(key):
        return f"{key} is no key of {reader}; algorithms that have it call it {elsewhere(key)}"
    return f"unknown key {key!r}{did_you_mean(key, accepted_keys(config_class))}"


def _soften(config_class: type[Config], name: str, value: Any) -> Any:
    """What YAML and numpy write a little differently from a field: 1e6 for an int, a list for a tuple."""
    annotation = config_class.model_fields[name].annotation
    if annotation is Any or get_origin(annotation) is dict:
        try:
            return plain(value)
        except ValueError as error:
            raise FieldError(f"{name} {error}", (name,)) from None
    return _soften_number(_alternatives(annotation), value)


def _soften_number(kinds: Sequence[Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        inner = [_alternatives(get_args(kind)[0])[0] for kind in kinds if get_origin(kind) is tuple]
        return tuple(_soften_number(inner, entry) for entry in value) if inner else value
    if isinstance(value, Real) and hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if int in kinds and float not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _alternatives(annotation: Any) -> Sequence[Any]:
    """The types a field may have: `int | None` -> (int, NoneType)."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


_WRONG = {  # pydantic's name of an error -> our words for it
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
}


def _explain(config_class: type[Config], failure: ValidationError) -> FieldError:
    """The first of pydantic's errors as one line."""
    error = failure.errors(include_url=False)[0]
    path, value = error["loc"], error.get("input")
    if not path:  # a check over several fields: its message names the one to change first
        text = error["msg"].removeprefix("Value error, ")
        named = next((word for word in re.findall(r"\w+", text) if word in config_class.model_fields), None)
        return FieldError(text, (named,) if named else ())
    name = str(path[0])
    entry = name + "".join(f"[{index}]" for index in path[1:])
    if error["type"] == "missing":
        return FieldError(f"{name} is missing", path)
    if error["type"] == "string_pattern_mismatch":
        what = config_class.model_fields[name].description or error["msg"]
        return FieldError(f"{name} cannot be {_show(value)}: {what}", path)
    what = _WRONG.get(error["type"], error["msg"].removeprefix("Value error, ")).format(
        **error.get("ctx", {})
    )
    hint = ""
    if error["type"] == "literal_error" and isinstance(value, str):
        hint = did_you_mean(value, re.findall(r"'([^']*)'", what))
    return FieldError(f"{entry} {what}, not {_show(value)}{hint}", path)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_knobs(config: Config) -> None:
    """Refuse knobs whose value or schedule leaves their range, now and not in the middle of a run."""
    for name in type(config).model_fields:
        control, value = find_control(name), getattr(config, name)
        if control is not None and control.integer and value is not None and value < control.low:
            # A schedule may fade a whole number out, but a fixed one below the minimum is a mistake.
            raise FieldError(f"{name} must be at least {control.low:g}, not {value}", (name,))
    try:
        compile_knobs(config)
    except KnobError as error:
        raise FieldError(str(error), (error.name + error.part, *([error.key] if error.key else []))) from None


class Layer(NamedTuple):
    """One source of values and where each stands: a file, a mapping or the command line's overrides."""

    values: dict[str, Any]
    places: dict[KeyPath, str]

    def refuse(self, error: FieldError) -> ConfigError:
        path = error.path
        while path and path not in self.places:
            path = path[:-1]
        place = self.places.get(path)
        return ConfigError(f"{place}: {error}" if place else str(error))


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    **more: Any,
) -> Any:
    """Read and check a config: a file, the name of a shipped one (`ppo/cartpole`), a mapping, or a config.

    overrides: `key=value` each, values in YAML, or a mapping, or keyword arguments.
    The layers, of which later ones win: what a file `extends`, the file itself, the overrides.
    Returns the algorithm's own config class. Raises ConfigError.
    """
    if isinstance(source, Config):
        # Only what its user set: the rest may still get other defaults, as on pictures.
        chosen = {"algo"} | source.model_fields_set
        source = {name: value for name, value in _written(source).items() if name in chosen}
    if isinstance(source, Mapping):
        values = {str(key): value for key, value in source.items()}
        parents = _extended(values, Layer(values, {}), Path(), ())
        files = [*parents, Layer(values, {})]
        _find_environment_file(files[-1], Path())
    elif not isinstance(source, str | os.PathLike):
        raise ConfigError(f"a config is a file, a name, a mapping or a Config, not {type(source).__name__}")
    else:
        files = _read_layers(_find(os.fspath(source), Path()), ())
    given = [_read_overrides(overrides), *([_given(more)] if more else [])]
    for layer in given:
        _find_environment_file(layer, Path())
    layers = [*files, *given]
    config_class = _config_class(layers)

    values = {}
    written: dict[str, str] = {}
    homes: dict[str, Layer] = {}
    for layer in layers:
        try:
            keys = fold(config_class, layer.values)
        except FieldError as error:
            raise layer.refuse(error) from None
        for name, key in keys.items():
            schedule = name + SCHEDULE
            if find_control(name) and schedule not in keys and names_start(values.get(schedule)):
                reason = f"{written[schedule]} has its own start; set {key}{SCHEDULE} too"
                raise layer.refuse(FieldError(f"{key} would have no effect, because {reason}", (key,)))
        for name, key in keys.items():
            values[name], written[name], homes[name] = layer.values[key], key, layer
    try:
        return config_class(**values)
    except FieldError as error:
        home = homes.get(str(error.path[0])) if error.path else None
        raise (home or files[-1]).refuse(error.renamed(written)) from None


def located(error: ConfigError, source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> ConfigError:
    """A refusal that came after reading, such as that of an unknown environment, with the place of the key it names."""
    layers = [*_read_layers(_find(os.fspath(source), Path()), ()), _read_overrides(overrides)]
    for word in re.findall(r"\w+", str(error)):
        for layer in reversed(layers):
            if (word,) in layer.places:
                return ConfigError(f"{layer.places[(word,)]}: {error}")
    return error


def _config_class(layers: Sequence[Layer]) -> type[Config]:
    for layer in reversed(layers):
        if "algo" in layer.values:
            try:
                config_class: type[Config] = trainer_class(layer.values["algo"]).config_class
            except ConfigError as error:
                raise layer.refuse(FieldError(str(error), ("algo",))) from None
            return config_class
    refusal = _missing_algo({key: value for layer in layers for key, value in layer.values.items()})
    raise next((layer for layer in layers[:-1] if refusal.path in layer.places), layers[0]).refuse(refusal)


def _missing_algo(values: Mapping[str, Any]) -> FieldError:
    slip = next((key for key in values if did_you_mean(key, ["algo"])), None)
    if slip is not None:
        return FieldError(f"unknown key {slip!r}; did you mean algo?", (slip,))
    return FieldError(f"algo is missing; there are: {', '.join(ALGORITHMS)}")


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
        own = ", ".join(name for name in shipped_configs() if name.startswith(f"{algo}/"))
        return f"; {algo} is an algorithm, and its shipped configs are {own}"
    beside = [each.name for each in path.parent.glob("*.yaml")]
    hint = did_you_mean(path.name, beside) or did_you_mean(source, shipped_configs())
    return hint or "; `rl-training list` shows the shipped configs"


def _read_layers(path: Path, children: tuple[Path, ...]) -> list[Layer]:
    """The layer of a file, after those of the files it extends."""
    values, lines = parse_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: a config is a mapping of keys to values")
    layer = Layer(values, {entry: f"{path}:{line}" for entry, line in lines.items()})
    _find_environment_file(layer, path.parent)
    parents = _extended(values, layer, path.parent, (*children, path.resolve()))
    return [*parents, layer]


def _find_environment_file(layer: Layer, folder: Path) -> None:
    """`my_env.py:MyEnv` names a file beside the config, or in the working directory where no file says it.

    From then on its full path stands there.
    """
    found = _relative_file(layer.values)
    if found is None:
        return
    if (folder / "manifest.json").exists():  # what came with a run is not the user's own, whoever names it
        raise layer.refuse(_refused_file(found[0]))
    layer.values["env_id"] = f"{(folder / found[1]).resolve()}:{found[2]}"


def _relative_file(values: Mapping[str, Any]) -> re.Match[str] | None:
    """The path and the class in an `env_id` that names a file, unless by its full path."""
    env_id = values.get("env_id")
    found = ENVIRONMENT_FILE.fullmatch(env_id) if isinstance(env_id, str) else None
    return None if found is None or Path(found[1]).is_absolute() else found


def _refused_file(env_id: str) -> FieldError:
    return FieldError(f"env_id {env_id!r}: a run names such a file by its full path", ("env_id",))


def _extended(values: dict[str, Any], layer: Layer, folder: Path, children: tuple[Path, ...]) -> list[Layer]:
    """The layers below one that says `extends`, which is taken out of it."""
    if "extends" not in values:
        return []
    parent = values.pop("extends")
    try:
        if not isinstance(parent, str):
            raise FieldError(f"extends must name one config, not {_show(parent)}", ("extends",))
        path = _find(parent, folder)
        if path.resolve() in children:
            raise FieldError(f"extends goes round in a circle: {parent} extends this config", ("extends",))
        if len(children) >= MAX_EXTENDS:
            raise FieldError(f"extends goes more than {MAX_EXTENDS} configs deep", ("extends",))
    except ConfigError as error:
        text = str(error) if isinstance(error, FieldError) else f"extends: {error}"
        raise layer.refuse(FieldError(text, ("extends",))) from None
    return _read_layers(path, children)


def _given(values: Mapping[str, Any]) -> Layer:
    """What a call in Python gives, as a layer."""
    values = {str(key): value for key, value in values.items()}
    if "extends" in values:
        raise ConfigError("extends belongs in a file")
    return Layer(values, {(key,): f"{key}={_show(value)}" for key, value in values.items()})


def _read_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> Layer:
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


def _written(config: Config) -> dict[str, Any]:
    """A config as the mapping one would write: all of it but schedules and warm-ups that are not there."""
    values = config.model_dump()
    written: dict[str, Any] = {}
    for name, value in values.items():
        parts = split_key(name)
        if parts is not None and parts[2]:
            continue  # beside its knob already
        written[name] = value
        if values.get(name + SCHEDULE) is not None:
            written[name + SCHEDULE] = values[name + SCHEDULE]
        if values.get(name + WARMUP):
            written[name + WARMUP] = values[name + WARMUP]
    return written


def load_run_config(
    source: Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Config:
    """The config of a run, as its files hold it; a field that is younger than the run is as the run did without it."""
    written = parse_yaml(read_text(source), str(source)).data if isinstance(source, Path) else source
    given = set(_read_overrides(overrides).values)
    # Of a file this is looked at where it is read.
    if isinstance(source, Mapping) and "env_id" not in given and (found := _relative_file(source)):
        raise _refused_file(found[0])
    missing = {name: YOUNGER[name] for name in YOUNGER if name not in given and name not in (written or ())}
    return load_config(source, overrides, **missing)


def as_begun(config: Config, written: Mapping[str, Any]) -> Config:
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


class FieldRow(NamedTuple):
    """One field of a config class, in words."""

    name: str
    type: str
    default: str
    range: str
    aliases: tuple[str, ...]
    sentence: str
    knob: bool  # whether it also has <name>_schedule and <name>_warmup_steps


def describe_config(config_class: type[Config]) -> list[FieldRow]:
    """A row for each field; those of schedules and warm-ups are told by their knob's `knob`."""
    rows = []
    fields = config_class.model_fields
    for name, info in fields.items():
        parts = split_key(name)
        if parts is not None and parts[2]:
            continue
        control = find_control(name)
        aliases = tuple(spelling for spelling in control.spellings if spelling != name) if control else ()
        default = (
            "required" if info.is_required() else "none" if info.default is None else to_yaml(info.default)
        )
        sentence = info.description or ""
        rows.append(
            FieldRow(
                name,
                _type_name(info.annotation),
                default,
                _range(name, info),
                aliases,
                sentence,
                bool(control),
            )
        )
    return rows


def _type_name(annotation: Any) -> str:
    simple = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}
    names = []
    for kind in _alternatives(annotation):
        if get_origin(kind) is Literal:
            names += [str(value) for value in get_args(kind)]
        elif get_origin(kind) is tuple:
            names.append(f"list of {_type_name(get_args(kind)[0])}s")
        else:
            names.append(simple.get(kind, "mapping"))
    return " or ".join(names)


def _range(name: str, info: FieldInfo) -> str:
    """The limits of a field: its own and its control's."""
    control = find_control(name)
    low, high = (control.low, control.high) if control else (None, None)
    words = []
    for limit in info.metadata:
        low = getattr(limit, "ge", low)
        high = getattr(limit, "le", high)
        words += [f"below {limit.lt:g}"] if hasattr(limit, "lt") else []
        words += [f"above {limit.gt:g}"] if hasattr(limit, "gt") else []
    if low is not None and high is not None and high != float("inf"):
        words.insert(0, f"{low:g} to {high:g}")
    elif low is not None:
        words.insert(0, f"at least {low:g}")
    return ", ".join(words)
