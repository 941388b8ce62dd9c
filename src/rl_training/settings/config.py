"""Config: the fields of every algorithm.

    PPOConfig(env_id="CartPole-v1", clip_range=0.1)

Each algorithm has one frozen class, a subclass of `Config`, with a sentence for each field. Unknown keys,
wrong types, numbers out of range and schedules that would leave a knob's range are refused with one line:
where it stands, what is wrong, and the nearest right name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_training.errors import ConfigError, did_you_mean
from rl_training.parts import Brought, brought_by, short_name
from rl_training.runtime.controls import Control, KnobError, compile_knobs
from rl_training.settings.fields import ConfigMeta, Units, field, knob
from rl_training.settings.keys import fields_of
from rl_training.settings.refusals import FieldError, explain, show
from rl_training.settings.yaml import plain

DEVICE = r"^(cpu|cuda(:[0-9]+)?)$"
ATARI = "ALE/"  # with which the ids of Atari games begin


class Config(BaseModel, metaclass=ConfigMeta):
    """What every algorithm's config has."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    controls: ClassVar[Mapping[str, Control]]  # its knobs, by the names of their fields

    counts: ClassVar[str] = "environment steps"  # what its steps are
    checkpoints_apart: ClassVar[int] = 20_000  # least steps between checkpoints, unless given
    obeys_action_masks: ClassVar[bool] = False  # whether its policies read the action masks of environments
    samples_on_atari: ClassVar[bool] = False  # whether its policies are evaluated there with sampled actions
    # Knob -> the field that must be true, or above 0, for it to have an effect.
    switched_by: ClassVar[Mapping[str, str]] = {}
    # Defaults of fields that differ where the observation is a picture, unless the user writes them.
    for_pictures: ClassVar[Mapping[str, Any]] = {}
    # Fields that its first runs did not have, and what those runs did.
    younger: ClassVar[Mapping[str, object]] = {}
    # The fields that the state of a run is laid out by, besides the shapes of its networks, which show by themselves;
    # those of all base classes count too. A fork keeps them.
    laid_out_by: ClassVar[tuple[str, ...]] = (
        "algo",
        "env_id",
        "num_envs",
        "max_episode_steps",
        "env_kwargs",
        "wrappers",
        "action_repeat",
        "frame_stack",
        "time_limit",
        "activation",
    )

    algo: str = field(..., "The algorithm.")
    env_id: str = field(
        ...,
        "The environment: a registered Gymnasium id, module:EnvId, or FILE.py:Class next to the config.",
        min_length=1,
    )
    seed: int = field(1, "Seed of all randomness in the run.", ge=0, le=2**63 - 1)
    total_timesteps: int = field(
        1_000_000, "Total environment steps, summed over all environments.", ge=1, le=10**15
    )
    learning_rate: float = knob(3e-4, "Learning rate of the optimizer.", aliases=("lr",))
    gamma: float = knob(0.99, "Discount factor γ.", high=1.0, aliases=("discount",))
    num_envs: int = field(1, "Number of parallel environments.", ge=1, le=65_536)
    max_episode_steps: int | None = field(
        None, "Time limit of an episode in steps; none: the environment's own.", ge=1
    )
    env_kwargs: dict[str, Any] = field({}, "Keyword arguments of the environment's constructor.")
    env_kwargs_schedule: dict[str, Any] = field(
        {},
        "Schedules of numbers in env_kwargs, evaluated when an episode begins.",
    )
    wrappers: Annotated[Any, Brought("playing", many=True)] = field(
        [], "Wrappers of the environment, innermost first: module:Class or FILE.py:Class, with arguments."
    )
    action_repeat: int = field(1, "Environment steps per action; their rewards are summed.", ge=1, le=1000)
    frame_stack: int = field(1, "Number of stacked observations.", ge=1, le=1000)
    time_limit: int | None = field(
        None, "Time limit of an episode in actions of the policy, after wrappers and action repeat.", ge=1
    )
    vectorization: Literal["auto", "sync", "async", "compiled"] = field(
        "auto",
        "Environments: sync (in this process), async (one process each), compiled, or auto (compiled or sync).",
    )
    env_timeout: float | None = field(
        300.0, "Seconds without a reply until an async environment counts as hung; none: never.", gt=0
    )
    normalize_observations: bool = field(
        False, "Normalise observations by their running mean and standard deviation."
    )
    normalize_rewards: bool = field(False, "Divide rewards by the running standard deviation of the return.")
    hidden_sizes: tuple[Units, ...] = field((64, 64), "Units in each hidden layer.")
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = field(
        "tanh", "Activation of the hidden layers."
    )
    image_encoder: Literal["nature", "impala"] = field(
        "nature",
        "Encoder of images: the Nature CNN (a smaller one for small images) or the IMPALA ResNet.",
    )
    small_pictures: bool = field(
        True,
        "Encode binary or float grids, and images under 11 pixels a side, with small CNNs.",
    )
    precision: Literal["fp32", "bf16"] = field(
        "fp32", "Floating-point precision of the networks; bf16 needs hardware support."
    )
    compiled_updates: bool = field(
        True, "Train dense networks in compiled code where possible; false: with torch."
    )
    log_interval: int | None = field(
        None, "Steps between log lines; none: 1/200 of the run, at least one iteration.", ge=1
    )
    eval_interval: int | None = field(None, "Steps between evaluations; none: 1/10 of the run.", ge=1)
    eval_episodes: int = field(10, "Episodes per evaluation.", ge=1)
    eval_sample: bool | None = field(
        None, "Sample actions in evaluations; none: only on Atari, for stochastic policies."
    )
    checkpoint_interval: int | None = field(
        None,
        "Steps between checkpoints; none: 1/10 of the run, but 20000 (slow steps: 1000) to 50000.",
        ge=1,
    )
    info_metrics: tuple[str, ...] = field(
        (), "Entries of the environment's info to report at the end of an episode, such as is_success."
    )
    observers: Annotated[Any, Brought("training", many=True)] = field(
        [], "Observers of the run: module:Class or FILE.py:Class, with arguments."
    )
    stop_at: dict[str, Any] | None = field(
        None, "Stop early: {metric: NAME, at_least: NUMBER} or {metric: NAME, at_most: NUMBER}."
    )
    tensorboard: bool = field(False, "Also write metrics as TensorBoard events (extra `tensorboard`).")
    wandb: bool = field(False, "Also log metrics to Weights & Biases (extra `wandb`).")
    mlflow: bool = field(False, "Also log metrics to MLflow (extra `mlflow`).")
    keep_checkpoints: int = field(2, "Number of latest checkpoints to keep.", ge=2)
    keep: Literal["ladder", "all"] | Annotated[int, Field(ge=2)] | None = field(
        None, "Checkpoints to keep: a number, ladder (fewer of the older) or all; none: keep_checkpoints."
    )
    keep_bytes: int | None = field(
        None, "Bytes that checkpoints and replay segments may take; the newest two stay in any case.", ge=1
    )
    device: str = field("cpu", "Device of the networks: cpu, cuda or cuda:N.", pattern=DEVICE)
    torch_threads: int | None = field(
        None, "Number of torch threads; none: 1 for small networks, otherwise all cores.", ge=1, le=256
    )

    def __init__(self, **data: Any) -> None:
        written: dict[str, str] = {}
        try:
            written = fields_of(type(self), data)
            values = {name: _soften(type(self), name, data[key]) for name, key in written.items()}
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise explain(type(self).model_fields, error) from None
            _check_knobs(self)
            _check_stop(self)
        except FieldError as error:
            raise error.renamed(written) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"{name}: a config cannot be changed; make another with load_config(config, {name}={show(value)})"
        )

    def __delattr__(self, name: str) -> None:
        raise ConfigError(f"{name}: a config cannot be changed; load_config makes another")

    @property
    def env_name(self) -> str:
        """The environment in a word, for the name of a run's directory and for headings."""
        return short_name(self.env_id)

    @property
    def algo_name(self) -> str:
        """The algorithm in a word, for the name of a run's directory and for headings."""
        return short_name(self.algo)

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
        default = min(max(self.total_timesteps // 10, self.checkpoints_apart), 50_000)
        return max(self.checkpoint_interval or default, self.steps_per_iteration)


def _soften(config_class: type[Config], name: str, value: object) -> Any:
    """What YAML and numpy write a little differently from a field: 1e6 for an int, a list for a tuple."""
    annotation = config_class.model_fields[name].annotation
    brought = brought_by(config_class).get(name)
    if annotation is Any or get_origin(annotation) is dict:
        try:
            return plain(value if brought is None else brought.recorded(value))
        except ValueError as error:
            raise FieldError(f"{name} {error}", (name,)) from None
    return _soften_number(alternatives(annotation), value)


def _soften_number(kinds: Sequence[object], value: object) -> Any:
    if isinstance(value, list | tuple):
        inner = [alternatives(get_args(kind)[0])[0] for kind in kinds if get_origin(kind) is tuple]
        return tuple(_soften_number(inner, entry) for entry in value) if inner else value
    if isinstance(value, Real) and hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if int in kinds and float not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def alternatives(annotation: object) -> Sequence[Any]:
    """The types a field may have: `int | None` -> (int, NoneType)."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


EVALUATED = ("mean_return", "std_return", "min_return", "max_return", "mean_length", "episodes")


def _check_stop(config: Config) -> None:
    """Refuse a `stop_at` that says too little, or waits for a number that no evaluation gives."""
    if (stop := config.stop_at) is None:
        return
    for key in stop:
        if key not in ("metric", "at_least", "at_most"):
            hint = did_you_mean(key, ("metric", "at_least", "at_most"))
            raise FieldError(f"stop_at has no {key!r}{hint}", ("stop_at", key))
    limits = [stop[key] for key in ("at_least", "at_most") if key in stop]
    numbers = all(type(limit) in (int, float) for limit in limits)
    if not isinstance(stop.get("metric"), str) or not limits or not numbers:
        raise FieldError("stop_at needs a metric and a number at_least or at_most", ("stop_at",))
    known = [f"eval/{name}" for name in (*EVALUATED, *(f"info/{name}" for name in config.info_metrics))]
    metric = stop["metric"]
    if metric.startswith("eval/") and metric not in known and not metric.startswith("eval/task/"):
        hint = did_you_mean(metric, known) or f"; there are {', '.join(known)}"
        raise FieldError(f"stop_at: no evaluation logs {metric}{hint}", ("stop_at", "metric"))


def _check_knobs(config: Config) -> None:
    """Refuse knobs whose value or schedule leaves their range, now and not in the middle of a run."""
    for name, control in type(config).controls.items():
        value = getattr(config, name)
        if control.integer and value is not None and value < control.low:
            # A schedule may fade a whole number out, but a fixed one below the minimum is a mistake.
            raise FieldError(f"{name} must be at least {control.low:g}, not {value}", (name,))
    try:
        compile_knobs(config)
    except KnobError as error:
        raise FieldError(str(error), (error.name + error.part, *([error.key] if error.key else []))) from None
