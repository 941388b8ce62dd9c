"""Schedules: values over a run. Most are pure functions of the step and have no state to save.

With e = step - delay (steps since the schedule began), n = steps (its length; the rest of the run if not
given) and f = e / n, from `start` to `end`:

    constant     start
    linear       start + (end - start) · f
    cosine       end + (start - end) · (1 + cos πf) / 2
    exponential  start · (end / start)^f                  start and end above 0
    polynomial   end + (start - end) · (1 - f)^power      power 2 unless given
    step         start · factor^⌊e / every⌋, or the value of the last of `points` reached
    points       straight lines through [[e, value], ...]

All hold their start until the delay is over, and their end for ever after. Two are decided in the run, by a metric
of its log lines; m is the metric's newest value and v the knob's:

    plateau      v · factor (within min and max) once `patience` values in a row did not beat the best by min_delta
    kl_adaptive  v / factor if m > 2 · target, v · factor if m < target / 2 (within min and max)

Written forms:

    linear                                       from the knob's fixed value to 0
    linear:0.1                                   from the knob's fixed value to 0.1
    {type: linear, start: 0.3, end: 0.1, delay: 1000, steps: 50_000}
    {type: step, factor: 0.5, every: 100_000}
    [[0, 0.3], [50_000, 0.1]]
    0.1                                          constant
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, Protocol

from rl_training.errors import did_you_mean

KEYS = {  # what may stand beside `type` in each kind of schedule
    "constant": ("start", "value"),
    "linear": ("start", "end", "steps", "delay"),
    "cosine": ("start", "end", "steps", "delay"),
    "exponential": ("start", "end", "steps", "delay"),
    "polynomial": ("start", "end", "power", "steps", "delay"),
    "step": ("points", "start", "factor", "every", "steps", "delay"),
    "points": ("points", "delay"),
    "piecewise": ("points", "delay"),  # the same under the name others use
    "plateau": ("metric", "mode", "factor", "patience", "min_delta", "start", "min", "max"),
    "kl_adaptive": ("target", "metric", "factor", "start", "min", "max"),
}
MODES = ("max", "min")


class ScheduleError(ValueError):
    """A schedule that cannot be used; `key` names the entry at fault inside a mapping, if there is one."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class Schedule(Protocol):
    """A compiled schedule: call it with the step and the length of the run."""

    def __call__(self, step: int, total: int | None) -> float: ...

    def extremes(self, total: int | None) -> tuple[float, float]:
        """The lowest and the highest value it can take."""

    def turns(self, total: int | None) -> list[int]:
        """The steps at which it begins to move, turns and comes to rest; between them it goes one way."""


class Ramp(NamedTuple):
    """One curve from start to end, `steps` long (None: until the run ends), after `delay` steps at start."""

    curve: Callable[[float, float, float], float]
    start: float
    end: float
    steps: int | None
    delay: int

    def __call__(self, step: int, total: int | None) -> float:
        elapsed = step - self.delay
        length = _length(self.steps, self.delay, total)
        if elapsed <= 0 or length <= 0:  # a delay to the end of the run holds, also where the run overshoots
            return self.start
        if elapsed >= length:
            return self.end  # the number itself: rounding in the curve must not show in the last value
        low, high = self.extremes(total)
        return min(max(self.curve(self.start, self.end, elapsed / length), low), high)

    def extremes(self, total: int | None) -> tuple[float, float]:
        return min(self.start, self.end), max(self.start, self.end)

    def turns(self, total: int | None) -> list[int]:
        return [self.delay, self.delay + _length(self.steps, self.delay, total)]


class Constant(NamedTuple):
    """One value for the whole run."""

    value: float

    def __call__(self, step: int, total: int | None) -> float:
        return self.value

    def extremes(self, total: int | None) -> tuple[float, float]:
        return self.value, self.value

    def turns(self, total: int | None) -> list[int]:
        return []


class Decay(NamedTuple):
    """A staircase: multiplied by `factor` after `every` steps, `steps` long (None: until the run ends)."""

    start: float
    factor: float
    every: int
    steps: int | None
    delay: int

    def __call__(self, step: int, total: int | None) -> float:
        elapsed = min(max(0, step - self.delay), _length(self.steps, self.delay, total))
        try:
            return self.start * self.factor ** (elapsed // self.every)
        except OverflowError:
            return math.copysign(math.inf, self.start)

    def extremes(self, total: int | None) -> tuple[float, float]:
        last = self(self.delay + _length(self.steps, self.delay, total), total)
        return min(self.start, last), max(self.start, last)

    def turns(self, total: int | None) -> list[int]:
        return [self.delay, self.delay + _length(self.steps, self.delay, total)]


class Points(NamedTuple):
    """Values at given steps after `delay`; between them straight lines, or stairs that hold the last."""

    points: tuple[tuple[int, float], ...]
    stairs: bool
    delay: int

    def __call__(self, step: int, total: int | None) -> float:
        elapsed = step - self.delay
        from_step, from_value = self.points[0]
        for to_step, to_value in self.points:
            if elapsed < to_step:
                if self.stairs or to_step == self.points[0][0]:
                    return from_value
                fraction = (elapsed - from_step) / (to_step - from_step)
                low, high = sorted((from_value, to_value))
                return min(max(_linear(from_value, to_value, fraction), low), high)
            from_step, from_value = to_step, to_value
        return from_value

    def extremes(self, total: int | None) -> tuple[float, float]:
        values = [value for _, value in self.points]
        return min(values), max(values)

    def turns(self, total: int | None) -> list[int]:
        return [self.delay + step for step, _ in self.points]


class Standing(NamedTuple):
    """Where a schedule that is decided in the run stands: its value, and what its decisions are made from."""

    value: float
    best: float | None = None  # of the metric's values; for a divergence the newest. None: none came yet
    waited: int = 0  # values in a row that did not beat the best


class Plateau(NamedTuple):
    """Multiplied by `factor` when the metric has not improved for `patience` values; higher is better with sign 1."""

    metric: str
    start: float
    sign: int
    factor: float
    patience: int
    min_delta: float
    low: float
    high: float

    def __call__(self, step: int, total: int | None) -> float:
        return self.start  # nothing more is known before the run

    def extremes(self, total: int | None) -> tuple[float, float]:
        return self.low, self.high

    def turns(self, total: int | None) -> list[int]:
        return []

    def decide(self, standing: Standing, number: float) -> Standing:
        """What follows from one more value of the metric."""
        if standing.best is None or self.sign * (number - standing.best) > self.min_delta:
            return standing._replace(best=number, waited=0)
        if standing.waited + 1 < self.patience:
            return standing._replace(waited=standing.waited + 1)
        value = min(max(standing.value * self.factor, self.low), self.high)
        return standing._replace(value=value, waited=0)


class KLAdaptive(NamedTuple):
    """A step size that keeps the policy's divergence per update within a factor of two of `target`.

    As in Schulman et al. 2017, section 4, where the same rule moves the penalty's coefficient.
    """

    metric: str
    start: float
    target: float
    factor: float
    low: float
    high: float

    def __call__(self, step: int, total: int | None) -> float:
        return self.start

    def extremes(self, total: int | None) -> tuple[float, float]:
        return self.low, self.high

    def turns(self, total: int | None) -> list[int]:
        return []

    def decide(self, standing: Standing, number: float) -> Standing:
        value = standing.value
        if number > 2 * self.target:
            value = max(value / self.factor, self.low)
        elif number < self.target / 2:
            value = min(value * self.factor, self.high)
        return standing._replace(value=value, best=number)


DECIDED = (Plateau, KLAdaptive)


def parse_schedule(raw: object, value: float | None) -> Schedule:
    """Compile what the user wrote; `value`, the knob's fixed value, is where it starts if it names no start.

    Raises ScheduleError, a ValueError.
    """
    if isinstance(raw, str):
        return _parse_mapping(_expand(raw), value)
    if isinstance(raw, Mapping):
        return _parse_mapping(raw, value)
    if isinstance(raw, Sequence):
        return Points(_points(raw), stairs=False, delay=0)
    if isinstance(raw, Real) and not isinstance(raw, bool):
        return Constant(number(raw, "a constant schedule"))
    raise ScheduleError(f"a schedule must be a name, a mapping or a list of points, not {raw!r}")


def names_start(raw: object) -> bool:
    """Whether a schedule brings its own start, so that the knob's fixed value has no effect."""
    if isinstance(raw, Mapping):
        return any(raw.get(key) is not None for key in ("start", "value", "points"))
    return raw is not None and not isinstance(raw, str)


def number(value: object, what: str) -> float:
    """A finite number as a float; bools and strings are not numbers."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ScheduleError(f"{what} must be a number, not {value!r}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ScheduleError(f"{what} must be a finite number, not {result}")
    return result


def whole(value: object, what: str, low: int = 0) -> int:
    """A whole number of at least `low`; 1e6 is one, 2.7 is not."""
    result = number(value, what)
    if result != int(result):
        raise ScheduleError(f"{what} must be a whole number, not {value!r}")
    if result < low:
        raise ScheduleError(f"{what} must be at least {low}, not {value!r}")
    return value if isinstance(value, int) else int(result)


def _expand(short: str) -> dict[str, Any]:
    """`linear` and `linear:0.1` as mappings."""
    kind, colon, end = short.partition(":")
    kind = kind.strip()
    if not colon:
        return {"type": kind}
    _check_kind(kind)
    if "end" not in KEYS[kind]:
        raise ScheduleError(f"{short!r}: a {kind} schedule has no end to write after the colon")
    try:
        return {"type": kind, "end": float(end)}
    except ValueError:
        raise ScheduleError(f"{short!r}: {end.strip()!r} after the colon is not a number") from None


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in KEYS:
        hint = did_you_mean(kind, KEYS) if isinstance(kind, str) else ""
        raise ScheduleError(
            f"unknown schedule type {kind!r}{hint or '; there are ' + ', '.join(KEYS)}", "type"
        )


def _parse_mapping(raw: Mapping[str, object], value: float | None) -> Schedule:
    kind = _kind(raw)
    for key in raw:
        if key not in (*KEYS[kind], "type", "kind"):
            hint = did_you_mean(str(key), KEYS[kind]) or f"; it has {', '.join(KEYS[kind])}"
            raise ScheduleError(f"a {kind} schedule has no {key!r}{hint}", str(key))
    given = {key: entry for key, entry in raw.items() if entry is not None}
    try:
        return _build(kind, given, value)
    except ScheduleError as error:
        # Messages of number() and whole() begin with the entry they speak of.
        at_fault = str(error).partition(" ")[0]
        raise ScheduleError(
            f"{kind} schedule: {error}", error.key or (at_fault if at_fault in raw else None)
        ) from None


def _kind(raw: Mapping[str, object]) -> str:
    if "type" in raw and "kind" in raw:
        raise ScheduleError("a schedule has `type` or `kind`, not both", "kind")
    if "type" not in raw and "kind" not in raw:
        # A misspelt `type` is nearer to the truth than a missing one.
        known = {name for names in KEYS.values() for name in names}
        stranger = next((str(key) for key in raw if key not in known), None)
        hint = did_you_mean(stranger, ("type", "kind", *sorted(known))) if stranger else ""
        raise ScheduleError(
            f"a schedule has no {stranger!r}{hint}" if hint else "a schedule needs a `type`", stranger
        )
    kind = raw["type"] if "type" in raw else raw["kind"]
    _check_kind(kind)
    return str(kind)


def _build(kind: str, given: Mapping[str, object], value: float | None) -> Schedule:
    delay = whole(given.get("delay", 0), "delay")
    steps = whole(given["steps"], "steps", low=1) if "steps" in given else None
    if kind in ("points", "piecewise"):
        return Points(_points(given.get("points")), stairs=False, delay=delay)
    if kind == "step" and "points" in given:
        for key in ("start", "factor", "every", "steps"):
            if key in given:
                raise ScheduleError(f"{key} does not go with points", key)
        return Points(_points(given["points"]), stairs=True, delay=delay)

    if "start" in given and "value" in given:
        raise ScheduleError("value is another name for start; give one of them", "value")
    first = given.get("start", given.get("value", value))
    if first is None:
        raise ScheduleError("it needs a start, because the knob has no fixed value")
    start = number(first, "value" if "value" in given else "start")
    if kind == "constant":
        return Constant(start)
    if kind == "plateau":
        return _plateau(given, start)
    if kind == "kl_adaptive":
        return _kl_adaptive(given, start)
    if kind == "step":
        if "factor" not in given or "every" not in given:
            raise ScheduleError("it needs points, or factor and every")
        factor = number(given["factor"], "factor")
        if factor <= 0:
            raise ScheduleError(f"factor must be above 0, not {given['factor']!r}", "factor")
        return Decay(start, factor, whole(given["every"], "every", low=1), steps, delay)

    end = number(given.get("end", 0.0), "end")
    curve: Callable[[float, float, float], float]
    if kind == "exponential":
        if start <= 0 or end <= 0:
            raise ScheduleError(f"start and end must be above 0, not {start:g} and {end:g}", "end")
        curve = _exponential
    elif kind == "polynomial":
        power = number(given.get("power", 2.0), "power")
        if power <= 0:
            raise ScheduleError(f"power must be above 0, not {given['power']!r}", "power")
        curve = partial(_polynomial, power=power)
    else:
        curve = _linear if kind == "linear" else _cosine
    return Ramp(curve, start, end, steps, delay)


def _plateau(given: Mapping[str, Any], start: float) -> Plateau:
    mode = given.get("mode", "max")
    if mode not in MODES:
        raise ScheduleError(f"mode must be max or min, not {mode!r}", "mode")
    factor = number(given.get("factor", 0.5), "factor")
    if factor <= 0 or factor == 1:
        raise ScheduleError(f"factor must be above 0 and not 1, not {factor:g}", "factor")
    if factor > 1 and "max" not in given:
        raise ScheduleError("it needs a max, because its factor is above 1")
    low, high = _limits(given, start, (min(start, 0.0), start))
    patience = whole(given.get("patience", 10), "patience", low=1)
    min_delta = number(given.get("min_delta", 0.0), "min_delta")
    if min_delta < 0:
        raise ScheduleError(f"min_delta must be at least 0, not {min_delta:g}", "min_delta")
    return Plateau(
        _metric(given, None), start, 1 if mode == "max" else -1, factor, patience, min_delta, low, high
    )


def _kl_adaptive(given: Mapping[str, Any], start: float) -> KLAdaptive:
    target, factor = number(given.get("target", 0.01), "target"), number(given.get("factor", 1.5), "factor")
    if target <= 0:
        raise ScheduleError(f"target must be above 0, not {target:g}", "target")
    if factor <= 1:
        raise ScheduleError(f"factor must be above 1, not {factor:g}", "factor")
    low, high = _limits(given, start, (min(start, 1e-5), max(start, 1e-2)))
    return KLAdaptive(_metric(given, "approx_kl"), start, target, factor, low, high)


def _metric(given: Mapping[str, Any], default: str | None) -> str:
    metric = given.get("metric", default)
    if not isinstance(metric, str) or not metric:
        raise ScheduleError(
            "it needs a metric: a name of metrics.jsonl, such as episode_return or eval/mean_return"
        )
    return metric


def _limits(given: Mapping[str, Any], start: float, default: tuple[float, float]) -> tuple[float, float]:
    """The bounds `min` and `max`, which must hold the start."""
    low, high = (
        number(given.get(name, end), name) for name, end in zip(("min", "max"), default, strict=True)
    )
    if not low <= start <= high:
        raise ScheduleError(
            f"its start of {start:g} is not between its min of {low:g} and its max of {high:g}"
        )
    return low, high


def _points(raw: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        raise ScheduleError(f"points must be a list of [step, value], not {raw!r}", "points")
    points: list[tuple[int, float]] = []
    for pair in raw:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ScheduleError(f"points must be [step, value], not {pair!r}", "points")
        points.append((whole(pair[0], "points: the step"), number(pair[1], "points: the value")))
        if len(points) > 1 and points[-1][0] <= points[-2][0]:
            raise ScheduleError(
                f"points must have rising steps, but {points[-1][0]} follows {points[-2][0]}", "points"
            )
    return tuple(points)


def _length(steps: int | None, delay: int, total: int | None) -> int:
    """How many steps a schedule takes after its delay."""
    if steps is not None:
        return steps
    if total is None:
        raise ScheduleError("a schedule without steps needs the config's total_timesteps")
    return max(0, total - delay)


def _linear(start: float, end: float, fraction: float) -> float:
    return start + (end - start) * fraction


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1.0 + math.cos(math.pi * fraction)) / 2.0


def _exponential(start: float, end: float, fraction: float) -> float:
    return start * math.pow(end / start, fraction)


def _polynomial(start: float, end: float, fraction: float, *, power: float) -> float:
    return end + (start - end) * math.pow(1.0 - fraction, power)
