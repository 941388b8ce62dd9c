"""Controls: every knob of every algorithm can be fixed, scheduled and warmed up, by one mechanism.

For a knob `clip_coef` a config may hold, under any of the knob's spellings,

    clip_coef               its fixed value
    clip_coef_schedule      how it moves over the run (see schedules.py)
    clip_coef_warmup_steps  steps over which it is ramped up from 0

and its value at a step is

    value(step) = schedule(step) · clip((step - b + 1) / warmup_steps, 0, 1),

never below the knob's lower bound; b is 0, or `learning_starts` where the config says `warmup_begins: learning`. A
whole-number knob is rounded (a half goes to the even neighbour) and then held within its range; any other knob whose
value or schedule leaves its range is refused when it is read. To hold a value for a while and not ramp it, give its
schedule a `delay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from rl_training.errors import did_you_mean
from rl_training.runtime.schedules import (
    DECIDED,
    Constant,
    KLAdaptive,
    Plateau,
    Schedule,
    ScheduleError,
    Standing,
    number,
    parse_schedule,
    whole,
)

SCHEDULE = "_schedule"
WARMUP = "_warmup_steps"
AUTO = "auto"  # what a knob says that the algorithm tunes by itself
PARTS = ("", SCHEDULE, WARMUP)  # what follows a knob's name in a config
BEGINS = "warmup_begins"  # the key that says where warm-ups begin
LEARNING = "learning"  # its value for: where learning begins
ARGUMENT = "env_kwargs/"  # before the name of an environment's argument that moves
ARGUMENTS = "env_kwargs_schedule"


class Control(NamedTuple):
    """One knob: its name, its other spellings, and the numbers it may take (bounds included)."""

    name: str
    aliases: tuple[str, ...]
    default: float | None
    low: float
    high: float
    integer: bool
    description: str
    limit: bool = False  # of how far an update may go: close to 0 nothing is learned
    sizes: bool = False  # memory is sized by its highest value, so that a run cannot be told to go beyond it

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class KnobError(ValueError):
    """A knob that cannot be used: its name, the suffix of the entry at fault, the key inside a schedule."""

    def __init__(self, message: str, name: str, part: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.part = part
        self.key = key


class Knob(NamedTuple):
    """A compiled knob: call it with the step. Its arguments were checked by `compile_knob`."""

    control: Control
    schedule: Schedule | None
    warmup_steps: int
    total: int | None
    warmup_begins: int = 0

    def __call__(self, step: int) -> float | int | None:
        return None if self.schedule is None else self.held(self.schedule(step, self.total), step)

    def held(self, value: float, step: int) -> float | int:
        """What its schedule says at a step, warmed up and within its range."""
        warmed = step - self.warmup_begins + 1
        if self.warmup_steps > 1 and warmed < self.warmup_steps:
            value *= max(0, warmed) / self.warmup_steps
        if self.control.integer:
            value = round(value)
        # The upper bound only matters to whole numbers: others that could pass it were refused.
        return min(max(value, self.control.low), self.control.high)

    @property
    def highest(self) -> float:
        """The highest value it can take; 0 if it is off."""
        return self.schedule.extremes(self.total)[1] if self.schedule is not None else 0.0

    @property
    def decided_by(self) -> Plateau | KLAdaptive | None:
        """Its schedule, if it is decided in the run and not by the step alone."""
        return self.schedule if isinstance(self.schedule, DECIDED) else None

    @property
    def moves(self) -> bool:
        return self.warmup_steps > 1 or not isinstance(self.schedule, Constant | None)

    @property
    def values(self) -> set[float]:
        """Its schedule's values at the steps of the run where it begins, turns and ends; none if it is off."""
        if self.schedule is None or self.total is None:
            return set()
        turns = (0, *self.schedule.turns(self.total), self.total)
        return {self.schedule(step, self.total) for step in turns if step <= self.total}


@cache
def vocabulary() -> dict[str, Control]:
    """Spelling -> control of every knob of the shipped algorithms: what a name means where no config class says it.

    Their config classes declare them, and are imported when this is first asked for and not before.
    """
    return {spelling: control for control in _shipped().values() for spelling in control.spellings}


@cache
def _shipped() -> dict[str, Control]:
    known: dict[str, Control] = import_module("rl_training.settings.vocabulary").vocabulary()
    return known


def find_control(spelling: str) -> Control | None:
    """The control of a shipped algorithm that goes by this name or alias."""
    return vocabulary().get(spelling)


def controls_of(config_class: Any) -> Mapping[str, Control]:
    """The knobs of a config class by field: those it declares, or else those of its fields that are named like one."""
    declared: Mapping[str, Control] | None = getattr(config_class, "controls", None)
    if declared is not None:
        return declared
    return {name: known for name in config_class.model_fields if (known := find_control(name)) is not None}


def split_key(key: str) -> tuple[Control, str, str] | None:
    """A config key in parts: `clip_range_schedule` -> (the control clip_coef, "clip_range", "_schedule")."""
    for part in (SCHEDULE, WARMUP, ""):
        spelling = key.removesuffix(part)
        if key.endswith(part) and spelling in vocabulary():
            return vocabulary()[spelling], spelling, part
    return None


def compile_knob(
    control: Control, name: str, value: Any, schedule: Any, warmup_steps: Any, total: Any, begins: int = 0
) -> Knob:
    """Check one knob and compile it; `name` is how messages call it. Raises KnobError, a ValueError.

    begins: the step at which its warm-up begins
    """
    part = ""
    try:
        if value is not None:
            value = number(value, name)
            _check_range(control, name, value, value)
        part = WARMUP
        warmup_steps = whole(warmup_steps or 0, f"{name}{part}")
        part = SCHEDULE
        compiled: Schedule | None = None if value is None else Constant(value)
        if schedule is not None:
            compiled = parse_schedule(schedule, value)
            total = None if total is None else whole(total, "total_timesteps", low=1)
            _check_range(control, f"{name}{part}", *compiled.extremes(total))
    except ScheduleError as error:
        text = str(error) if str(error).startswith(name) else f"{name}{part}: {error}"
        raise KnobError(text, name, part, error.key) from None
    return Knob(control, compiled, warmup_steps, total, begins)


def _check_range(control: Control, name: str, low: float, high: float) -> None:
    """Refuse values outside the range; a whole-number knob is clamped instead, so that it may fade to 0."""
    if control.integer:
        return
    if low < control.low:
        raise ScheduleError(f"{name} must be at least {control.low:g}, not {low:g}")
    if high > control.high:
        raise ScheduleError(f"{name} must be at most {control.high:g}, not {high:g}")
    if not math.isfinite(high):
        raise ScheduleError(f"{name} grows without bound")


def resolve(name: str, config: object, step: int) -> Any:
    """The value of a knob, under any spelling, at a step.

    config: an object or a mapping that may hold the knob's value, schedule and warm-up under one of its
            spellings, and total_timesteps, which a schedule without `steps` of its own needs.
    Absent, the knob has the table's default; None without a schedule stays None. Raises ValueError.
    """
    declared: Mapping[str, Control] = getattr(config, "controls", {})
    control = next((known for known in declared.values() if name in known.spellings), find_control(name))
    if control is None:
        raise ValueError(f"unknown knob {name!r}{did_you_mean(name, vocabulary())}")

    def read(key: str, default: Any = None) -> Any:
        return config.get(key, default) if isinstance(config, Mapping) else getattr(config, key, default)

    used = [name for name in control.spellings if any(read(name + part) is not None for part in PARTS)]
    if len(used) > 1:
        raise KnobError(two_spellings(used[0], used[1]), used[0])
    if used:
        spelling = used[0]
        value = read(spelling, control.default)
    else:  # either switched off by a None under one of its names, or not there at all
        spelling = control.name
        value = None if any(read(name, 0) is None for name in control.spellings) else control.default
    schedule, warmup_steps = read(spelling + SCHEDULE), read(spelling + WARMUP)
    total, begins = read("total_timesteps"), _warmup_begins(read)
    knob = compile_knob(control, spelling, value, schedule, warmup_steps, total, begins)
    return knob(whole(step, "step"))


def _warmup_begins(read: Callable[[str], Any]) -> int:
    """The step at which the warm-ups of a config begin, whose keys `read` gives."""
    return whole(read("learning_starts") or 0, "learning_starts") if read(BEGINS) == LEARNING else 0


def two_spellings(first: str, second: str) -> str:
    """What is wrong with a config that writes one knob under two names."""
    return f"{second} and {first} are two spellings of one knob; keep one of them"


def resolve_entropy_coefficient(config: object, step: int) -> Any:
    """The weight of the entropy bonus at a step (`ent_coef`, `entropy_coef`); at least 0."""
    return resolve("ent_coef", config, step)


def resolve_clip_coefficient(config: object, step: int) -> Any:
    """How far the probability ratio may leave 1 at a step (`clip_coef`, `clip_range`); at least 0."""
    return resolve("clip_coef", config, step)


def resolve_temperature(config: object, step: int) -> Any:
    """The temperature at a step; at least 0."""
    return resolve("temperature", config, step)


def resolve_num_simulations(config: object, step: int) -> Any:
    """Simulations per search at a step: a whole number, at least 1."""
    return resolve("num_simulations", config, step)


def __getattr__(name: str) -> Any:
    """`resolve_<spelling>` for every spelling of every knob, called as `resolve_gamma(config, step=...)`.

    And `CONTROLS`, the shipped knobs by name.
    """
    if name == "CONTROLS":
        return _shipped()
    spelling = name.removeprefix("resolve_")
    if spelling == name or name.startswith("__") or spelling not in vocabulary():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def resolver(config: object, step: int) -> Any:
        return resolve(spelling, config, step)

    resolver.__name__ = resolver.__qualname__ = name
    resolver.__doc__ = vocabulary()[spelling].description
    return resolver


class Now:
    """The knobs at one step, as attributes under the config's own names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not there; declared so that type checkers accept the ones that are.
        raise AttributeError(f"this algorithm has no knob {name!r}; it has {', '.join(self.__dict__)}")

    def __repr__(self) -> str:
        return f"Now({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


class Knobs:
    """The knobs during one iteration, which began at `step`."""

    def __init__(self, controls: Controls, step: int) -> None:
        self._controls = controls
        self._began = step
        self._step = step

    def after(self, steps: int) -> Now:
        """The knobs as they stand `steps` environment steps into this iteration."""
        self._step = self._began + steps
        return Now(self._controls.values(self._step))

    def arguments_after(self, steps: int) -> dict[str, float | int]:
        """What an episode that begins `steps` environment steps into this iteration is made with."""
        return self._controls.arguments(self._began + steps)

    @property
    def used(self) -> dict[str, float | int]:
        """Every knob that has a value, at the step last asked for (or at the iteration's first)."""
        return self._controls.used(self._step)


class Controls:
    """The knobs of one config over its run, compiled once; some are decided in the run, by what its log lines say."""

    def __init__(self, knobs: Mapping[str, Knob]) -> None:
        decided = {name: knob.decided_by for name, knob in knobs.items()}
        self._decided = {name: schedule for name, schedule in decided.items() if schedule is not None}
        self._standing = {name: Standing(schedule.start) for name, schedule in self._decided.items()}
        self._moving = {name: knob for name, knob in knobs.items() if knob.moves}
        self._arguments = {name: knob for name, knob in knobs.items() if name.startswith(ARGUMENT)}
        self._first = {name: knob(0) for name, knob in knobs.items()}
        self._knobs = knobs
        self._set: dict[str, list[tuple[int, float | int | None]]] = {}

    @classmethod
    def of(cls, config: Any) -> Controls:
        """The knobs of a config: those of its fields whose name is a spelling of a control."""
        return cls(compile_knobs(config))

    def at(self, step: int) -> Knobs:
        """The knobs of the iteration that begins at this step."""
        return Knobs(self, step)

    def values(self, step: int) -> dict[str, Any]:
        """Name -> value of every knob at a step; None for those switched off."""
        return self._first | {name: self._value(name, knob, step) for name, knob in self._moving.items()}

    def _value(self, name: str, knob: Knob, step: int) -> Any:
        for begins, value in reversed(self._set.get(name, ())):
            if begins <= step:
                return value
        standing = self._standing.get(name)
        return knob(step) if standing is None else knob.held(standing.value, step)

    def used(self, step: int) -> dict[str, float | int]:
        """Name -> value at a step of every knob that has one there: what a log line of that step holds."""
        return {name: value for name, value in self.values(step).items() if value is not None}

    def arguments(self, step: int) -> dict[str, float | int]:
        """What episodes that begin at a step are made with, of the environment's arguments that move."""
        return {
            name.removeprefix(ARGUMENT): self._value(name, knob, step)
            for name, knob in self._arguments.items()
        }

    def hear(self, metrics: Mapping[str, float]) -> None:
        """Decide by the metrics of a log line."""
        for name, schedule in self._decided.items():
            if schedule.metric in metrics:
                self._standing[name] = schedule.decide(self._standing[name], float(metrics[schedule.metric]))

    def find(self, spelling: str) -> str:
        """The name of a knob that a run with this config has. Raises KnobError."""
        found = [name for name, knob in self._knobs.items() if spelling in (name, *knob.control.spellings)]
        if not found:
            known = [spelling for knob in self._knobs.values() for spelling in knob.control.spellings]
            hint = did_you_mean(spelling, known) or f"; there are {', '.join(self._knobs)}"
            raise KnobError(f"{spelling!r} is no knob of this run{hint}", spelling)
        return found[0]

    def checked(self, name: str, value: object) -> float | int | None:
        """What a knob is when it is set to a value in the run. Raises KnobError where it cannot be."""
        knob = self._knobs[name]
        held = compile_knob(knob.control, name, value, None, 0, knob.total)(0)
        if knob.control.sizes and held is not None and held > knob.highest:
            raise KnobError(
                f"{name} must be at most {knob.highest:g}, the highest value in the config: memory is sized by it",
                name,
            )
        return held

    def steer(self, name: str, begins: int, value: object) -> None:
        """From step `begins` on the knob is `value`: neither schedule nor warm-up count any more. Raises KnobError.

        What is said of a later step stays; of two things said of one step, the last counts.
        """
        name = self.find(name)
        changes = [*self._set.get(name, ()), (begins, self.checked(name, value))]
        self._set[name] = sorted(changes, key=lambda change: change[0])  # stable
        self._moving[name] = self._knobs[name]

    @property
    def moving(self) -> tuple[str, ...]:
        """The knobs whose value changes over the run."""
        return tuple(self._moving)

    @property
    def decided(self) -> dict[str, str]:
        """Knob -> metric of those that are decided in the run."""
        return {name: schedule.metric for name, schedule in self._decided.items()}

    def unheard(self) -> list[str]:
        """A warning for each knob whose metric no line of the log had."""
        return [
            f"{name}: no line of metrics.jsonl had {schedule.metric}, so it stayed at {schedule.start:g}"
            for name, schedule in self._decided.items()
            if self._standing[name].best is None
        ]

    def state(self) -> dict[str, dict[str, Any]]:
        """What was decided so far, for a checkpoint."""
        return {name: standing._asdict() for name, standing in self._standing.items()}

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what was decided; a knob that the state does not know begins anew."""
        for name, saved in state.items():
            if name in self._decided:
                self._standing[name] = _checked(Standing(**saved), self._decided[name], name)


def _checked(standing: Standing, schedule: Plateau | KLAdaptive, name: str) -> Standing:
    """Refuse what no decision can have led to."""
    low, high = schedule.extremes(None)
    number(standing.value, f"{name}: its value")
    if standing.best is not None:
        number(standing.best, f"{name}: its best")
    whole(standing.waited, f"{name}: its wait")
    if not low <= standing.value <= high:
        raise ScheduleError(f"{name}: its value of {standing.value:g} is outside {low:g} to {high:g}")
    return standing


def compile_knobs(config: Any) -> dict[str, Knob]:
    """Every knob of a config object, by the name of its field. Raises KnobError."""
    knobs, begins = {}, _warmup_begins(lambda key: getattr(config, key, None))
    for name, control in controls_of(type(config)).items():
        value, schedule, warmup = (getattr(config, name + part, None) for part in PARTS)
        if value == AUTO:
            if schedule is not None or warmup:
                part = SCHEDULE if schedule is not None else WARMUP
                raise KnobError(
                    f"{name}{part}: {name} is auto, so it is learned and cannot be scheduled", name, part
                )
            continue
        knobs[name] = compile_knob(control, name, value, schedule, warmup, config.total_timesteps, begins)
    return knobs | _compile_arguments(config)


def _compile_arguments(config: Any) -> dict[str, Knob]:
    """The environment's arguments that move, as knobs without bounds; whole numbers stay whole."""
    knobs = {}
    for name, schedule in (getattr(config, ARGUMENTS, None) or {}).items():
        value = config.env_kwargs.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KnobError(
                f"{ARGUMENTS}: {name} needs a number in env_kwargs, which evaluations use",
                ARGUMENTS,
                "",
                name,
            )
        control = Control(ARGUMENT + name, (), value, -math.inf, math.inf, isinstance(value, int), "")
        try:
            knobs[control.name] = compile_knob(control, name, value, schedule, 0, config.total_timesteps)
        except KnobError as error:
            raise KnobError(f"{ARGUMENTS}: {error}", ARGUMENTS, "", name) from None
    return knobs


def idle_knobs(config: Any) -> list[str]:
    """What a config says about its knobs that has no effect in its run, or a bad one: a warning for each key."""
    problems = []
    for name, knob in compile_knobs(config).items():
        switch = config.switched_by.get(name)
        on = getattr(config, switch) if switch else True
        off = "" if on else f"no effect, because {switch} is {str(on).lower()}"
        if getattr(config, name + SCHEDULE, None) is not None:
            problems.append((name + SCHEDULE, off or _idle_schedule(name, knob, config.steps_per_iteration)))
        if knob.warmup_steps > 1:
            problems.append((name + WARMUP, off or _idle_warmup(name, knob)))
    if getattr(config, BEGINS, None) == LEARNING and not any(key.endswith(WARMUP) for key, _ in problems):
        problems.append((BEGINS, "no effect, because nothing is warmed up"))
    return [f"{key}: {problem}" for key, problem in problems if problem]


def _idle_schedule(name: str, knob: Knob, per_iteration: int) -> str:
    assert knob.schedule is not None and knob.total is not None
    if knob.values == {0.0}:
        return f"no effect, because {name} stays 0"
    if isinstance(knob.schedule, (Constant, *DECIDED)):
        return ""
    if len(knob.values) == 1:
        return f"no effect, because {name} stays {min(knob.values):g} over the run of {knob.total:,} steps"
    end = max(knob.schedule.turns(knob.total))
    if end > knob.total:
        last = knob.schedule(knob.total, knob.total)
        return f"it ends at step {end:,}, after the run of {knob.total:,} steps, and only gets to {last:.4g}"
    if per_iteration >= knob.total:
        last = knob.schedule(per_iteration, knob.total)
        return (
            f"the run is a single iteration of {per_iteration:,} steps, so its only update has {name} {last:g}; "
            "raise total_timesteps or shorten the iteration"
        )
    return ""


def _idle_warmup(name: str, knob: Knob) -> str:
    assert knob.total is not None
    if not any(knob.values):
        return f"no effect, because {name} is {'off' if knob.schedule is None else 0}"
    if knob.control.limit:
        return f"{name} begins close to 0, so that almost nothing is learned at first; warm up learning_rate"
    if knob.warmup_begins + knob.warmup_steps > knob.total:
        reached = max(knob(knob.total * part // 100) or 0 for part in range(101))
        too_long = "ends after" if knob.warmup_begins else "longer than"
        return (
            f"{too_long} the run of {knob.total:,} steps, so {name} never gets above {reached:.3g} "
            f"(without the warm-up: {max(knob.values):.3g})"
        )
    return ""
