"""The report of a run: one HTML page with config, curves and results.

It is made from what every run directory holds, whatever the algorithm: its config, manifest, metrics, timing and
checkpoints. Only the video and a world model's predictions need the policy itself, and may be left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training import parts
from rl_training.errors import CheckpointError, UserError
from rl_training.monitoring.display import duration, number
from rl_training.registry import shipped_configs
from rl_training.reporting.columns import Curve
from rl_training.reporting.page import Chart, Page, Series, write_page
from rl_training.reporting.policy_pictures import add_policy
from rl_training.reporting.records import SCORE, Log, Record, Warn, entries, knob_names, read_run
from rl_training.reporting.timing import Timing
from rl_training.runtime.workflows import RESUMED_ELSEWHERE, given
from rl_training.settings.loading import dump_config, load_config, load_run_config
from rl_training.settings.yaml import parse_yaml, read_text, to_yaml
from rl_training.state import checkpoints
from rl_training.state.run_directory import RunDirectory

# Shown among the learning curves, or not worth a chart.
RETURNS = ("step", "episodes", "episode_return", "episode_return_std", "episode_length")


def write_report(
    run_dir: Path | str,
    out: Path | None = None,
    *,
    video: bool | None = None,
    trust: bool = False,
    trust_env: bool = False,
    env: Any = None,
    warn: Warn = lambda text: None,
) -> Path:
    """Write the HTML report of a run to `out`, by default RUN/report.html, and return its path.

    video: require a video of the policy (True), omit it (False), or include one if it can be made (None).
    env: required for a video if the run was trained with an `env` of Python.
    """
    record = read_run(run_dir, warn=warn)
    timing_log = Log(record.path / "timing.jsonl")
    timing = Timing(timing_log)
    if timing_log.damage:
        warn(timing_log.damage)
    page = Page(headline(record.config))
    page.text(summary(record, timing))
    add_damage(page, record)
    page.facts(facts(record, timing))
    page.heading("Learning curves")
    page.add_charts(learning_curves(record), wide=True)
    if video is not False:
        with given(env):
            add_policy(page, record.path, must=video is True, trust=trust or trust_env)
    add_knobs(page, record)
    charts = learning(record)
    if charts:
        page.heading("Learning")
        page.add_charts(charts)
    add_time(page, timing)
    add_config(page, record)
    add_checkpoints(page, record)
    add_origin(page, record)
    path = out or record.path / "report.html"
    write_page(page, path)
    return path


def headline(config: Mapping[str, object]) -> str:
    return f"{config['algo']} on {config['env_id']}, seed {config['seed']}"


def summary(record: Record, timing: Timing) -> str:
    """What was trained and how it ended, in a sentence or two."""
    total = record.config["total_timesteps"]
    took = f" in {duration(seconds)}" if (seconds := timing.seconds) else ""
    if record.stopped:
        text = f"Stopped as asked, after {record.steps:,} of {total:,} environment steps{took}."
    elif record.finished:
        text = f"Trained for {record.steps:,} environment steps{took}, to its end."
    else:
        share = 100 * record.steps // total
        text = f"Not finished: {record.steps:,} of {total:,} environment steps ({share} %){took}."
    steps, scores, *_ = record.curve(SCORE)
    if not len(scores):
        return f"{text} It has not been evaluated yet."
    spread = record.curve("eval/std_return")
    known = len(spread.steps) and spread.steps[-1] == steps[-1]
    band = f" ± {number(spread.values[-1])}" if known else ""
    text += f" The last evaluation returned {number(scores[-1])}{band}"
    best = int(scores.argmax())
    if scores[best] > scores[-1]:
        return f"{text}; the best one, {number(scores[best])}, was at step {int(steps[best]):,}."
    return f"{text}, the best of the run." if len(scores) > 1 else f"{text}."


def add_damage(page: Page, record: Record) -> None:
    """What is wrong with the log, and what a user went on in spite of."""
    if record.damage:
        page.text(f"Damaged: {record.damage}.")
    for text in record.accepted_damage:
        page.text(f"This run was {text}.")


def facts(record: Record, timing: Timing) -> Iterator[tuple[str, str]]:
    """The numbers worth a tile."""
    evaluations, returns = record.curve(SCORE), record.curve("episode_return")
    if len(evaluations.values):
        yield number(evaluations.values[-1]), "last evaluation"
        yield number(evaluations.values.max()), "best evaluation"
    if len(returns.values):
        yield number(returns.values[-1]), "last training episodes"
    yield f"{record.steps:,}", f"of {record.config['total_timesteps']:,} steps"
    if timing.processes:
        yield duration(timing.seconds), "of training"
    if timing.latest_speed is not None:
        yield f"{timing.latest_speed:,.0f}", "steps per second"


def _actions(record: Record) -> str:
    try:
        return "sampled" if load_run_config(record.config).samples_evaluations else "greedy"
    except UserError:  # of an algorithm that is not here
        return "sampled" if record.config.get("eval_sample") else "greedy"


def learning_curves(record: Record) -> list[Chart]:
    """Evaluation and training returns with their spread."""
    charts = []
    mean, spread = record.curve(SCORE), record.curve("eval/std_return")
    if len(mean.values):
        note = f"Mean return of whole episodes with {_actions(record)} actions; the band is one standard deviation."
        charts.append(Chart("evaluation", "step", [_with_spread(mean, spread)], note))
    mean, spread = record.curve("episode_return"), record.curve("episode_return_std")
    if len(mean.values):
        note = "Mean return of the last 100 training episodes; the band is one standard deviation."
        charts.append(Chart("training", "step", [_with_spread(mean, spread)], note))
    return charts + [
        Chart(
            name,
            "step",
            [Series(name, *record.curve(name))],
            "Mean of what the environment reports at the end of an episode.",
        )
        for name in record.metrics.names
        if name.removeprefix("eval/").startswith("info/")
    ]


def _with_spread(mean: Curve, spread: Curve) -> Series:
    """A curve of returns in a band, where its spread was logged with it (older runs have none in training)."""
    if not np.array_equal(mean.steps, spread.steps):
        return Series("return", mean.steps, mean.values)
    return Series("return", mean.steps, mean.values, mean.values - spread.values, mean.values + spread.values)


def add_knobs(page: Page, record: Record) -> None:
    """Every knob over the run: a chart where it moved, a row where it did not."""
    moving, still = [], []
    for name in knob_names(record.config):
        curve = record.curve(name)
        known = np.concatenate([part[np.isfinite(part)] for part in curve[1:] if part is not None])
        if len(known) and (np.isnan(curve.values).any() or known.min() != known.max()):
            moving.append(Chart(name, "step", [Series(name, *curve)]))
        else:
            still.append((name, number(known[0]) if len(known) else "off"))
    if not moving and not still:
        return
    page.heading("Knobs")
    if moving:
        page.add_charts(moving)
    if still:
        page.text("Constant over the run:" if moving else "All constant over the run:")
        page.table(("knob", "value"), still)


def learning(record: Record) -> list[Chart]:
    """The length of episodes, and every other number that training logged: losses and their relatives."""
    lengths = [
        Series(words, *curve)
        for name, words in (("episode_length", "training"), ("eval/mean_length", "evaluation"))
        if len((curve := record.curve(name)).values)
    ]
    knobs = set(knob_names(record.config))
    return [Chart("length of episodes", "step", lengths)] * bool(lengths) + [
        Chart(name, "step", [Series(name, *record.curve(name))])
        for name in record.metrics.names
        if name not in knobs and name not in RETURNS and not name.startswith(("eval/", "info/"))
    ]


def add_time(page: Page, timing: Timing) -> None:
    if not timing.processes:
        return
    page.heading("Time")
    if timing.processes > 1:
        page.text(f"Trained by {timing.processes} processes, one after the other: the run was resumed.")
    spent = timing.spent()
    if spent:
        page.shares({words: (seconds, duration(seconds)) for words, seconds in spent.items()})
    speeds = Series("steps per second", *timing.speeds())
    page.add_charts([Chart("steps per second", "step", [speeds])], wide=True)


def shipped_beside(config: Mapping[str, object]) -> tuple[str, dict[str, Any]] | None:
    """What the config differs least from: a shipped config of its algorithm and environment, or the defaults."""
    algo = config["algo"]
    if parts.is_name(algo) and not parts.is_admitted(
        str(algo)
    ):  # a page is no reason to run what a run names
        return None
    candidates: dict[str, dict[str, Any]] = {}
    for name in shipped_configs():
        if name.startswith(f"{config['algo']}/"):
            shipped = _written(name)
            if shipped is not None and shipped["env_id"] == config["env_id"]:
                candidates[name] = shipped
    if not candidates:
        defaults = _written({"algo": config["algo"], "env_id": config["env_id"]})
        return None if defaults is None else (f"the defaults of {config['algo']}", defaults)

    def differences(name: str) -> int:
        keys = config.keys() | candidates[name].keys()
        return sum(config.get(key) != candidates[name].get(key) for key in keys)

    nearest = min(candidates, key=differences)
    return nearest, candidates[nearest]


def _written(source: Any) -> dict[str, Any] | None:
    """A config as a run would store it; None where it cannot be loaded here."""
    try:
        return parse_yaml(dump_config(load_config(source)), "config").data
    except UserError:
        return None


def add_config(page: Page, record: Record) -> None:
    config = record.config
    page.heading("Config")
    beside = shipped_beside(config)
    if beside is not None:
        name, shipped = beside
        keys = [*config, *(key for key in shipped if key not in config)]
        rows = [
            (key, _shown(config.get(key)), _shown(shipped.get(key)))
            for key in keys
            if config.get(key) != shipped.get(key)
        ]
        if rows:
            page.text(f"It differs from {name} in:")
            page.table(("field", "here", name), rows)
        else:
            page.text(f"It is {name}, as shipped.")
    page.code(read_text(record.path / "config.yaml"), "config.yaml")


def _shown(value: object) -> str:
    return "none" if value is None else to_yaml(value)


def add_checkpoints(page: Page, record: Record) -> None:
    run = RunDirectory(record.path)
    rows = []
    steps, values, *_ = record.curve(SCORE)
    scores = dict(zip(steps.tolist(), values.tolist(), strict=True))
    newest = sorted(run.checkpoints.glob("step-*"))[-1:]
    for words, path in [("last", path) for path in newest] + [("best", run.best)]:
        if not path.is_dir():
            continue
        try:
            step = checkpoints.checkpoint_step(path)
        except CheckpointError as error:
            rows.append((words, "–", "–", str(error)))
            continue
        score = number(scores[step]) if step in scores else "–"
        rows.append((words, f"{step:,}", score, str(path)))
    page.heading("Checkpoints")
    if rows:
        page.table(("which", "step", "evaluation there", "path"), rows)
        quoted = shlex.quote(str(record.path))
        page.code(
            f"rl-training evaluate {quoted} --checkpoint best\nrl-training play {quoted}\n"
            + ("" if record.finished else f"rl-training resume {quoted}\n"),
            "what to do with them",
        )
    else:
        page.text("None was saved yet.")


def add_origin(page: Page, record: Record) -> None:
    """What made the run: versions, machine, state of the code, ancestors."""
    manifest = record.manifest
    rows = [
        (name, str(version))
        for name, version in _mapping(manifest, "versions").items()
        if version is not None
    ]
    git = _mapping(manifest, "git")
    if git:
        rows.append(("git commit", f"{git.get('commit')}{' and changes' if git.get('dirty') else ''}"))
    for name in ("platform", "cpu", "threads", "started_at"):
        if name in manifest:
            rows.append((name.replace("_", " "), str(manifest[name])))
    if _mapping(manifest, "environment"):
        rows.append(("environment", to_yaml(manifest["environment"])))
    for each in entries(manifest, RESUMED_ELSEWHERE):
        rows.append(
            (f"resumed at step {each.get('step')}, made with", ", ".join(map(str, each.get("changed", ()))))
        )
    rows.append(("run", str(record.path)))
    page.heading("Made with")
    page.table(("what", "which"), rows)
    lineage = entries(manifest, "lineage")
    if lineage:
        page.text("Forked from, nearest first:")
        page.table(
            ("run", "step", "changes"),
            [
                (str(each.get("parent")), str(each.get("step")), ", ".join(_mapping(each, "changes")))
                for each in lineage
            ],
        )


def _mapping(values: Mapping[str, object], name: str) -> Mapping[str, Any]:
    entry = values.get(name)
    return entry if isinstance(entry, dict) else {}
