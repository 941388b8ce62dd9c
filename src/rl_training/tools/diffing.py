"""Diff: the first step at which two runs differ, and what differs there first.

    config, versions, machine → first log line that differs → both run again, iteration by iteration, up to that line

Within an iteration events are compared in the order of time: knobs, observations and batches, then losses and gradients
update by update, then parameters. Where the same code gives the same iterations for both, the logs differ because the
code, the versions or the machines did, and the line is all there is to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl_training.errors import RunError
from rl_training.monitoring.display import SilentDisplay
from rl_training.runtime.controls import Controls
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import revisions
from rl_training.settings.config import Config
from rl_training.settings.loading import load_run_config
from rl_training.state import chain, checkpoints
from rl_training.state.formats import DIGEST
from rl_training.state.repository import git_state
from rl_training.state.run_directory import RunDirectory, changed_keys, cpu, versions
from rl_training.tools.differences import differences
from rl_training.tools.recording import (
    GRADIENT,
    KNOB,
    LOSS,
    OBSERVATION,
    PARAMETER,
    Event,
    Record,
    recording,
)
from rl_training.tools.travelling import go_on, restored
from rl_training.tools.verifying import lines_of, refuse_lost_log, verify

# Of the machine and the code, what a manifest says besides the config.
MADE_WITH = ("versions", "cpu", "threads", "results", "parts", "paths", "git")


# Of a config, what lines are about, and not what is trained.
CADENCES = ("log_every", "eval_every", "eval_episodes", "samples_evaluations")


class _Ended(RunError):
    """One of two runs was at its end before they differed."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"run again by this version both are equal up to step {step:,}, where one of them ends"
        )


class Found(NamedTuple):
    """What differs between two runs: at the start, and first in their course."""

    config: list[str]
    made_with: list[str]
    lines: int  # that are equal before the first that differs
    step: int | None  # the first at which they differ, as far as can be told
    kind: str = ""  # knob, observation, loss, gradient or parameter
    what: str = ""
    note: str = ""

    @property
    def differ(self) -> bool:
        return self.step is not None

    def told(self) -> list[str]:
        lines = [f"config     {each}" for each in self.config]
        lines += [f"made with  {each}" for each in self.made_with]
        if self.step is None:
            lines.append(f"equal      {self.lines} log lines")
        else:
            lines.append(f"first      step {self.step:,}: {self.kind}, {self.what}")
        return lines + ([f"note       {self.note}"] if self.note else [])


def diff(one: str | Path, other: str | Path, *, trust: bool = False) -> Found:
    """The first difference between two runs of one algorithm; what they have in common is compared."""
    runs = [RunDirectory.open(one), RunDirectory.open(other)]
    manifests = [run.read_manifest() for run in runs]
    config = _unlike_configs(*(manifest["config"] for manifest in manifests))
    made_with = _unlike_makings(*manifests)
    logs = [lines_of(run) for run in runs]
    for run, log in zip(runs, logs, strict=True):
        refuse_lost_log(run, log)
    equal = next(
        (n for n, pair in enumerate(zip(*logs, strict=False)) if _unlike_lines(*pair)),
        min(map(len, logs)),
    )
    if equal == min(map(len, logs)):
        lengths = " and ".join(f"{len(log):,}" for log in logs)
        note = f"the logs have {lengths} lines" if len(logs[0]) != len(logs[1]) else ""
        return Found(config, made_with, equal, None, note=note)
    pair = logs[0][equal], logs[1][equal]
    before = logs[0][equal - 1]["step"] if equal else 0
    configs = [load_run_config(run.config_path, trust=trust) for run in runs]
    in_line = _in_line(*pair, before, configs[0])
    common = (config, made_with, equal)
    if configs[0].algo != configs[1].algo or configs[0].steps_per_iteration != configs[1].steps_per_iteration:
        note = "their iterations are of different kinds or lengths: only the logs are compared"
        return Found(*common, *in_line, note=note)
    step = max(line["step"] for line in pair)
    threads = [manifest["threads"] for manifest in manifests]
    forks = [
        _first_kept(run) for run, manifest in zip(runs, manifests, strict=True) if manifest.get("lineage")
    ]
    try:
        found = _in_iterations(runs, threads, max([before, *forks]), step, trust)
    except _Ended as ended:
        return Found(*common, *in_line, note=str(ended))
    except RunError as error:
        return Found(*common, *in_line, note=f"only the logs are compared: {error}")
    if found is not None:
        return Found(*common, *found)
    cadences = [name for name in CADENCES if getattr(configs[0], name) != getattr(configs[1], name)]
    if cadences:
        why = f"their lines differ in {', '.join(cadences)}, and perhaps in nothing else"
    else:
        why = "they were made by different code, versions or machines"
    note = f"run again by this version both are equal there: {why}"
    return Found(*common, *in_line, note=note)


def diff_with_this_version(run_dir: str | Path, *, trust: bool = False) -> Found:
    """The first difference between a run and what is computed here."""
    run = RunDirectory.open(run_dir)
    manifest, config = run.read_manifest(), load_run_config(run.config_path, trust=trust)
    here = {
        "versions": versions(),
        "cpu": cpu(),
        "threads": manifest["threads"],
        "results": revisions(config, manifest["threads"]),
        "git": git_state(),
    }
    made_with = _unlike_makings({name: manifest.get(name) for name in here}, here)
    begin = _first_kept(run) if manifest.get("lineage") else 0
    verdict = verify(run.path, begin=begin, anyway=True, trust=trust)
    if verdict.is_good:
        return Found([], made_with, verdict.lines, None)
    if verdict.unlike is None:
        return Found([], made_with, verdict.lines, verdict.ends, "files", verdict.first)
    there, computed = verdict.unlike
    return Found([], made_with, verdict.lines, *_in_line(there, computed, verdict.before, config))


def _first_kept(run: RunDirectory) -> int:
    """Where the past of a fork begins."""
    return min((checkpoints.step_of(path) for path in checkpoints.listed(run.checkpoints)), default=0)


def _unlike_configs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [f"{name} {one.get(name)} against {other.get(name)}" for name in changed_keys(one, other)]


def _unlike_makings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    known = [name for name in MADE_WITH if one.get(name) is not None and other.get(name) is not None]
    return [str(each) for name in known for each in differences(one[name], other[name], name)]


def _unlike_lines(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The names of what differs; a digest that only one of them has is no difference."""
    skipped = {chain.FIELD} | ({DIGEST} if (DIGEST in there) != (DIGEST in here) else set())
    names = dict.fromkeys([*there, *here])
    return [name for name in names if name not in skipped and there.get(name) != here.get(name)]


def _in_line(
    there: Mapping[str, Any], here: Mapping[str, Any], before: int, config: Config
) -> tuple[int, str, str]:
    """Step, kind and words of the first difference in a log line."""
    knobs = Controls.of(config).used(0)

    def kind(name: str) -> str:
        if name == DIGEST:
            return PARAMETER
        if name in knobs:
            return KNOB
        if name == "grad_norm":
            return GRADIENT
        return OBSERVATION if name.startswith(("episode", "eval/", "info/")) else LOSS

    # In a line of one iteration other episodes come before other losses; in one of several they may follow from them.
    single = there["step"] - before <= config.steps_per_iteration
    order = [KNOB, OBSERVATION, LOSS, GRADIENT, PARAMETER]
    order = order if single else [KNOB, LOSS, GRADIENT, PARAMETER, OBSERVATION]
    names = sorted(_unlike_lines(there, here), key=lambda name: order.index(kind(name)))
    words = [f"{name} {there.get(name)} against {here.get(name)}" for name in names]
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return there["step"], kind(names[0]), ", ".join(words[:3]) + more + " in the log line"


def _in_iterations(
    runs: list[RunDirectory], threads: list[int], before: int, step: int, trust: bool
) -> tuple[int, str, str] | None:
    """The same by running both again up to `step`; None where they do not differ."""
    if before >= step:
        raise RunError("no checkpoint of the fork is left from before the difference")
    with ExitStack() as stack:
        engines, records = list[Engine](), list[Record]()
        for run, count in zip(runs, threads, strict=True):
            options: dict[str, Any] = {"trust": trust, "display": SilentDisplay(), "accept_damaged_log": True}
            engine = stack.enter_context(restored(run.path, before, **options))
            torch.set_num_threads(count)
            go_on(engine, before)
            engines.append(engine)
            records.append(stack.enter_context(recording(engine)))
        while engines[0].progress.steps < step:
            for engine, count in zip(engines, threads, strict=True):
                torch.set_num_threads(count)  # sums depend on it
                try:
                    go_on(engine, engine.progress.steps + 1)
                except RunError:  # one of them ends here
                    raise _Ended(min(each.progress.steps for each in engines)) from None
            for kind, what in _unlike_events(records[0].events, records[1].events):
                return records[0].ends, kind, f"{what}, in the iteration that reaches this step"
        if engines[0].is_over != engines[1].is_over:  # the last line of a run has an evaluation
            raise _Ended(step)
    return None


def _unlike_events(one: list[Event], other: list[Event]) -> Iterator[tuple[str, str]]:
    for first, second in zip(one, other, strict=False):
        if first[:2] != second[:2]:
            yield first.kind, f"{first.name or first.kind} against {second.name or second.kind}"
        for difference in differences(first.values, second.values, first.name):
            # The norm is logged with the losses, and is of the gradient.
            yield GRADIENT if difference.name == "grad_norm" else first.kind, str(difference)
    if len(one) != len(other):
        yield (one if len(one) > len(other) else other)[min(len(one), len(other))].kind, "only in one of them"
