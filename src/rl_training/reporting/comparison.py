"""Comparison of runs: grouping seeds of one config, and statistics of the differences.

A task is an environment with its arguments. A method is a config, whatever its seed; it is called by its algorithm and
by the fields in which it differs from others of that algorithm on the same task. Methods of the same name on several
tasks are taken together, on scores scaled to 0 … 1 between the lowest and the highest run of a task.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import UserError, did_you_mean
from rl_training.monitoring.display import number
from rl_training.reporting.page import Chart, Page, Series, draw_png, write_page
from rl_training.reporting.records import SCORE, Record, find_runs
from rl_training.reporting.statistics import (
    Interval,
    improvement_interval,
    iqm_interval,
    profile_interval,
)
from rl_training.settings.yaml import to_yaml
from rl_training.terminal import printable_line

TASK = ("env_id", "env_kwargs", "max_episode_steps")
# What may stand around an environment, and makes another task of it; older runs have none of it.
LAYERS: Mapping[str, object] = {"wrappers": [], "action_repeat": 1, "frame_stack": 1, "time_limit": None}
# What changes nothing about what is learned.
BESIDE_THE_POINT = (
    "seed",
    "tensorboard",
    "wandb",
    "mlflow",
    "keep_checkpoints",
    "keep",
    "keep_bytes",
    "checkpoint_interval",
    "log_interval",
)
ALL_TASKS = "all tasks, each scaled to 0 … 1"
MOST_CURVE_POINTS = 200
LONGEST_VALUE = 40  # characters of a field's value in the name of a method


class Group(NamedTuple):
    """The runs of one method on one task, and a score of each."""

    method: str
    runs: list[Record]
    scores: np.ndarray

    @property
    def iqm(self) -> Interval:
        return iqm_interval([self.scores])


class Improvement(NamedTuple):
    """How likely a run of `method` scores above one of `other`."""

    task: str
    method: str
    other: str
    probability: Interval
    runs: int  # of the method that has fewer

    @property
    def interval(self) -> str:
        # From one run nothing can be said about another one.
        return f"{self.probability.low:.2f} to {self.probability.high:.2f}" if self.runs > 1 else "–"


class Comparison(NamedTuple):
    metric: str
    tasks: dict[str, list[Group]]

    def across(self) -> dict[str, list[np.ndarray]]:
        """Scaled scores by method, an array per task, of the methods that were run on every one of several tasks."""
        if len(self.tasks) < 2:
            return {}
        scaled: dict[str, list[np.ndarray]] = {}
        for groups in self.tasks.values():
            every = np.concatenate([group.scores for group in groups])
            low, high = every.min(), every.max()
            for group in groups:
                scaled.setdefault(group.method, []).append((group.scores - low) / max(high - low, 1e-12))
        return {method: scores for method, scores in scaled.items() if len(scores) == len(self.tasks)}

    def improvements(self) -> list[Improvement]:
        """Of every pair of methods, the one with the higher interquartile mean against the other."""
        improvements = []
        for task, groups in self.tasks.items():
            ranked = sorted(groups, key=lambda group: -float(group.iqm.value))
            improvements += [
                _improvement(task, a.method, [a.scores], b.method, [b.scores])
                for a, b in combinations(ranked, 2)
            ]
        across = self.across()
        order = sorted(across, key=lambda method: -float(iqm_interval(across[method]).value))
        improvements += [
            _improvement(ALL_TASKS, a, across[a], b, across[b]) for a, b in combinations(order, 2)
        ]
        return improvements


def _improvement(
    task: str, method: str, scores: list[np.ndarray], other: str, theirs: list[np.ndarray]
) -> Improvement:
    fewest = min(map(len, [*scores, *theirs]))
    return Improvement(task, method, other, improvement_interval(scores, theirs), fewest)


def compare_runs(
    *runs: str | Path, metric: str = SCORE, at: int | None = None, labels: Mapping[Path, str] | None = None
) -> Comparison:
    """Compare runs, or folders of runs; `draw_text`, `write_png` and `write_html` present the result."""
    warn: Callable[[str], None] = warnings.warn
    records = find_runs([Path(run) for run in runs], warn, only=compared_metrics(metric))
    return compare(records, metric=metric, at=at, warn=warn, labels=labels)


def compare(
    records: Sequence[Record],
    *,
    metric: str = SCORE,
    at: int | None = None,
    warn: Callable[[str], None] = lambda text: None,
    labels: Mapping[Path, str] | None = None,
) -> Comparison:
    """Group runs by task and config, and score each by the last value of `metric`, or by the last up to step `at`.

    `labels` are names for the runs at a path or inside of it. Runs of different labels are different methods.
    """
    for record in records:
        for text in record.accepted_damage:
            warn(f"{record.path}: {text}")
    by_task: dict[str, dict[tuple[str, str], list[Record]]] = {}
    names = _task_names(records)
    for record in records:
        method = _label(record, labels or {}), _identity(record)
        by_task.setdefault(names[_task(record)], {}).setdefault(method, []).append(record)
    tasks = {}
    for task, by_method in by_task.items():
        groups = [_one_of_each_seed(runs, warn) for runs in by_method.values()]
        methods = _method_names([runs[0].config for runs in groups], [label for label, _ in by_method])
        tasks[task] = [
            Group(method, runs, np.array([_score(run, metric, at, warn) for run in runs]))
            for method, runs in zip(methods, groups, strict=True)
        ]
    return Comparison(metric, tasks)


def _task(record: Record) -> str:
    return to_yaml(_made(record))


def _made(record: Record) -> list[Any]:
    """What a run's environment is made from, with what stands around it."""
    layers = {name: record.config.get(name, plain) for name, plain in LAYERS.items()}
    around = {name: value for name, value in layers.items() if value != LAYERS[name]}
    return [*(record.config.get(name) for name in TASK), *([around] if around else [])]


def _task_names(records: Sequence[Record]) -> dict[str, str]:
    """The environment's id, and how it is made where one environment is made in several ways."""
    made: dict[str, set[str]] = {}
    for record in records:
        made.setdefault(record.config["env_id"], set()).add(_task(record))
    names = {}
    for record in records:
        env_id, rest = record.config["env_id"], _made(record)[1:]
        several = len(made[env_id]) > 1
        names[_task(record)] = f"{env_id} {' '.join(to_yaml(part) for part in rest)}" if several else env_id
    return names


def _label(record: Record, labels: Mapping[Path, str]) -> str:
    """The label of the nearest path that the run is at or inside of, "" if there is none."""
    here = record.path.resolve()
    labelled = {path.resolve(): label for path, label in labels.items()}
    return next((labelled[path] for path in (here, *here.parents) if path in labelled), "")


def _identity(record: Record) -> str:
    # A field that is none is as good as one that the run is too old to have.
    given = {name: value for name, value in sorted(record.config.items()) if value is not None}
    return to_yaml({name: value for name, value in given.items() if name not in BESIDE_THE_POINT})


def _one_of_each_seed(runs: list[Record], warn: Callable[[str], None]) -> list[Record]:
    """The same config with the same seed is the same run again, and no second sample."""
    kept: dict[int, Record] = {}
    for run in runs:
        first = kept.setdefault(run.config["seed"], run)
        if first is not run and (longer := max(first, run, key=lambda each: each.steps)):
            kept[run.config["seed"]] = longer
            other = run if longer is first else first
            warn(f"{other.path}: same config and seed as {longer.path}; left out")
    return [kept[seed] for seed in sorted(kept)]


def _method_names(configs: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """The label, or else the algorithm, and what differs among the configs of the same one, shortened if it may be."""
    leaves = [_leaves(config, configs) for config in configs]
    kinds = [label or config["algo"] for label, config in zip(labels, configs, strict=True)]
    short, full = [], []
    for kind, mine in zip(kinds, leaves, strict=True):
        family = [theirs for other, theirs in zip(kinds, leaves, strict=True) if other == kind]
        names = dict.fromkeys([*mine, *(name for theirs in family for name in theirs)])
        differing = [name for name in names if any(theirs.get(name) != mine.get(name) for theirs in family)]
        given = [name for name in differing if mine.get(name) is not None]
        short.append(" ".join([kind, *(f"{name}={_shortened(mine[name])}" for name in given)]))
        full.append(" ".join([kind, *(f"{name}={to_yaml(mine.get(name))}" for name in differing)]))
    return [long if short.count(name) > 1 else name for name, long in zip(short, full, strict=True)]


def _leaves(config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that make a method; of those that are mappings in every config the entries, as `field.entry`."""
    leaves: dict[str, Any] = {}
    for name, value in config.items():
        if name in (*BESIDE_THE_POINT, *TASK):
            continue
        if all(isinstance(other.get(name), Mapping) for other in configs):
            leaves |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            leaves[name] = value
    return leaves


def _shortened(value: object) -> str:
    """A value as YAML, a plain schedule as `linear 0.3→0.1`, both cut where they are long."""
    if isinstance(value, Mapping) and set(value) == {"type", "start", "end"}:
        text = f"{value['type']} {value['start']:g}→{value['end']:g}"
    else:
        text = to_yaml(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _score(run: Record, metric: str, at: int | None, warn: Callable[[str], None]) -> float:
    steps, values, *_ = run.curve(metric)
    if not len(values):
        known = sorted(run.metrics.names)
        hint = did_you_mean(metric, known) or (
            "; it has not been evaluated yet" if metric == SCORE else f"; there are {', '.join(known)}"
        )
        raise UserError(f"{run.path}: has no {metric}{hint}")
    if at is not None:
        if steps[0] > at or run.steps < min(at, run.config["total_timesteps"]):
            raise UserError(
                f"{run.path}: has no {metric} at step {at:,}: it goes from {steps[0]:,.0f} to {run.steps:,}"
            )
        if at > run.steps:
            warn(f"{run.path}: ended at step {run.steps:,}, before {at:,}; its last score is used")
        return float(values[steps <= at][-1])
    if not run.finished:
        warn(f"{run.path}: not finished ({run.steps:,} of {run.config['total_timesteps']:,} steps)")
    return float(values[-1])


HEADER = ("method", "runs", "IQM", "95 % interval", "median", "lowest", "highest")


def table_rows(comparison: Comparison) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each task's table, best first, and of all tasks together where there are several."""
    tables = {}
    for task, groups in comparison.tasks.items():
        ranked = sorted(groups, key=lambda group: -float(group.iqm.value))
        tables[task] = [_row(group.method, [group.scores]) for group in ranked]
    across = comparison.across()
    if across:
        order = sorted(across, key=lambda method: -float(iqm_interval(across[method]).value))
        tables[ALL_TASKS] = [_row(method, across[method]) for method in order]
    return tables


def _row(method: str, tasks: list[np.ndarray]) -> tuple[str, ...]:
    scores = np.concatenate(tasks)
    iqm = iqm_interval(tasks)
    interval = f"{number(float(iqm.low))} to {number(float(iqm.high))}" if min(map(len, tasks)) > 1 else "–"
    summary = (iqm.value, np.median(scores), scores.min(), scores.max())
    value, *rest = (number(float(part)) for part in summary)
    return (method, str(len(scores)), value, interval, *rest)


def improvement_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            each.task,
            each.method,
            each.other,
            f"{float(each.probability.value):.2f}",
            each.interval,
        )
        for each in comparison.improvements()
    ]


def draw_text(comparison: Comparison) -> str:
    """The tables as lines of text."""
    lines = []
    for task, rows in table_rows(comparison).items():
        lines += [f"{task}: {comparison.metric}", *_aligned([HEADER, *rows]), ""]
    improvements = improvement_rows(comparison)
    if improvements:
        lines.append(
            "probability of improvement: a run of the first scores above one of the second (95 % interval)"
        )
        several = len(comparison.tasks) > 1
        for task, method, other, value, interval in improvements:
            lines.append(f"  {value}  ({interval})  {method} over {other}{f', {task}' if several else ''}")
        lines.append("")
    return "\n".join(map(printable_line, lines[:-1]))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if index in (0, 3) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def compared_metrics(metric: str) -> tuple[str, ...]:
    """What a comparison by `metric` reads of a run."""
    return tuple(dict.fromkeys((metric, "episode_return")))


def charts(comparison: Comparison) -> list[Chart]:
    """Learning curves with bands and a performance profile for each task, and a profile over all."""
    drawn = []
    for task, groups in comparison.tasks.items():
        for metric in compared_metrics(comparison.metric):
            series = [curve for group in groups if (curve := _learning_curve(group, metric)) is not None]
            if series:
                drawn.append(Chart(f"{task}: {metric}", "environment steps", series))
        scores = {group.method: [group.scores] for group in groups}
        drawn.append(_profile(f"{task}: share of runs above a score", comparison.metric, scores))
    across = comparison.across()
    if across:
        drawn.append(_profile("all tasks: share of runs above a scaled score", "scaled score", across))
    return drawn


def _learning_curve(group: Group, metric: str) -> Series | None:
    """The interquartile mean of the runs with its interval, at the steps that all of them reached."""
    curves = [curve for run in group.runs if len((curve := run.curve(metric)).steps)]
    if not curves:
        return None
    first, last = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    grid = np.unique(np.concatenate([curve.steps for curve in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        return None
    if len(grid) > MOST_CURVE_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MOST_CURVE_POINTS).astype(int)]
    runs = np.stack(
        [np.interp(grid, curve.steps, curve.values) for curve in curves], axis=-1
    )  # [points, runs]
    iqm = iqm_interval([runs])
    return Series(group.method, grid, *iqm)


def _profile(title: str, metric: str, scores: Mapping[str, list[np.ndarray]]) -> Chart:
    every = np.concatenate([part for tasks in scores.values() for part in tasks])
    room = 0.05 * (every.max() - every.min()) or 1.0
    thresholds = np.linspace(every.min() - room, every.max() + room, 101)
    series = [
        Series(method, thresholds, *profile_interval(tasks, thresholds)) for method, tasks in scores.items()
    ]
    return Chart(title, metric, series)


EXPLANATION = (
    "IQM is the interquartile mean: the mean of the middle half of the runs. Intervals and bands are 95 % percentile "
    "intervals of a stratified bootstrap over runs (Agarwal et al. 2021). With few runs they are rough, and too short."
)


def _title(comparison: Comparison) -> str:
    methods = {group.method for groups in comparison.tasks.values() for group in groups}
    runs = sum(len(group.runs) for groups in comparison.tasks.values() for group in groups)
    return f"{len(methods)} methods, {runs} runs: {', '.join(comparison.tasks)}"


def write_html(comparison: Comparison, path: Path) -> None:
    page = Page(_title(comparison))
    page.text(EXPLANATION)
    for task, rows in table_rows(comparison).items():
        page.heading(f"{task}: {comparison.metric}")
        page.table(HEADER, rows)
    improvements = improvement_rows(comparison)
    if improvements:
        page.heading("Probability of improvement")
        page.text("How likely a run of the first method scores above a run of the second; ties count half.")
        skip = 0 if len(comparison.tasks) > 1 else 1  # the task, where there is one
        header = ("task", "method", "over", "probability", "95 % interval")
        page.table(header[skip:], [row[skip:] for row in improvements])
    page.heading("Learning curves and performance profiles")
    page.add_charts(charts(comparison), wide=True)
    page.heading("Runs")
    page.table(
        ("task", "method", "seed", "score", "steps", "run"),
        [
            (
                task,
                group.method,
                str(run.config["seed"]),
                number(float(score)),
                f"{run.steps:,}",
                str(run.path),
            )
            for task, groups in comparison.tasks.items()
            for group in groups
            for run, score in zip(group.runs, group.scores, strict=True)
        ],
    )
    write_page(page, path)


def write_png(comparison: Comparison, path: Path) -> None:
    draw_png(charts(comparison), _title(comparison), path)


def numbers_of(comparison: Comparison) -> dict[str, Any]:
    """All numbers, for --json."""
    return {
        "metric": comparison.metric,
        "tasks": {
            task: [
                {
                    "method": group.method,
                    "iqm": float(group.iqm.value),
                    "low": float(group.iqm.low),
                    "high": float(group.iqm.high),
                    "runs": [
                        {"run_dir": str(run.path), "seed": run.config["seed"], "score": float(score)}
                        for run, score in zip(group.runs, group.scores, strict=True)
                    ],
                }
                for group in groups
            ]
            for task, groups in comparison.tasks.items()
        },
        "improvements": [
            {"task": each.task, "method": each.method, "over": each.other}
            | {name: float(value) for name, value in each.probability._asdict().items()}
            for each in comparison.improvements()
        ],
    }
