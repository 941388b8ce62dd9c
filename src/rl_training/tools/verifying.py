"""Verify: run an interval of a run again, and compare what it wrote with what is computed here.

Every log line carries a digest of the parameters, inside the hash chain. The chain and the checksums of checkpoints
find what was damaged; the interval, run again, finds what was never computed: a line that was made up together with its
hashes, or numbers of a faulty machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import CheckpointError, RunError
from rl_training.monitoring.display import Display, QuietDisplay, SilentDisplay
from rl_training.runtime.engine import Engine
from rl_training.runtime.paths import other_kernels
from rl_training.runtime.workflows import RESUMED_ELSEWHERE, Left, given
from rl_training.state import chain, checkpoints
from rl_training.state.formats import DIGEST
from rl_training.state.run_directory import ACCEPTED_DAMAGE, RunDirectory
from rl_training.tools.differences import differences
from rl_training.tools.travelling import found, go_on, reopened


class Verdict(NamedTuple):
    """What came of it: the steps that were run again, how much was compared, and the first thing that differs."""

    begins: int
    ends: int
    lines: int
    checkpoints: int
    first: str  # where and what; empty if nothing differs
    why: tuple[str, ...] = ()  # what may be the reason, from the manifest
    before: int = 0  # the step of the line before the first that differs
    unlike: tuple[dict[str, Any], dict[str, Any]] | None = None  # that line, and the one written here
    note: str = ""  # why it began elsewhere than it was asked to

    @property
    def is_good(self) -> bool:
        return not self.first

    def __str__(self) -> str:
        span = f"steps {self.begins:,} to {self.ends:,}"
        if self.is_good:
            count = f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}"
            saved = f", {count} equal" if self.checkpoints else ""
            return f"{span} verified, 0 of {self.lines} lines differ{saved}"
        return f"{self.first} ({span}, {self.lines} lines equal before it)"


def verify(
    run_dir: str | Path,
    *,
    begin: int = 0,
    end: int | None = None,
    anyway: bool = False,
    trust: bool = False,
    env: Any = None,
    display: Display | None = None,
) -> Verdict:
    """Run the steps from `begin` to `end` of a run again and compare metrics, digests and checkpoints with its own.

    anyway: also with other versions or on another CPU, or of a run whose fragments came in the order of the clock.
    env: required if the run was trained with an `env` of Python.
    """
    display, run = display or QuietDisplay(), RunDirectory.open(run_dir)
    lines = lines_of(run)
    refuse_lost_log(run, lines)
    last = max((line["step"] for line in lines), default=0)
    if begin > last or (end is not None and end <= begin):
        raise RunError(
            f"{run.path}: its log ends at step {last}; there is nothing from {begin} to {end or last}"
        )
    end = last if end is None else min(end, last)
    with given(env):
        left = found(run, begin, SilentDisplay(), trust=trust, accept_damaged_log=True)
        left = left._replace(changed=[*left.changed, *other_kernels(left.paths)])
        _refuse_elsewhere(run, left, anyway)
        start = left.newest[1]["progress"]["steps"] if left.newest else 0
        reached = {line["step"] for line in lines} | set(
            map(checkpoints.step_of, checkpoints.listed(run.checkpoints))
        )
        if not any(start < step <= end for step in reached):
            raise RunError(
                f"{run.path}: has no line and no checkpoint after step {start} up to {end} to compare"
            )
        why, note = tuple(_reasons(left)), _elsewhere(run, begin, start, end)
        if damage := _damage(run, end):
            return Verdict(start, end, 0, 0, damage, why, note=note)
        with reopened(run, left, anyway=anyway) as engine:
            # Knobs that are younger than the run are logged here, at defaults that change nothing.
            younger = type(left.config).model_fields.keys() - left.manifest.get("config", {}).keys()
            verdict = _compared(run, engine, start, end, lines, why, younger, elsewhere=bool(left.changed))
            return verdict._replace(note=note)


def _elsewhere(run: RunDirectory, begin: int, start: int, end: int) -> str:
    """Why the interval begins before the step that was asked for, and where the next checkpoint is."""
    if start == begin:
        return ""
    kept = [(checkpoints.step_of(path), path) for path in checkpoints.listed(run.checkpoints)]
    later = next((step for step, path in kept if begin < step < end and not _unreadable(path)), None)
    nearest = (
        f"step {start:,} is the nearest intact checkpoint at or before {begin:,}"
        if start
        else (f"no intact checkpoint is kept at or before step {begin:,}, so it begins at 0")
    )
    return nearest + (f"; the next is --from {later}" if later is not None else "")


def _compared(
    run: RunDirectory,
    engine: Engine,
    start: int,
    end: int,
    lines: list[dict[str, Any]],
    why: tuple[str, ...],
    younger: Set[str],
    elsewhere: bool,
) -> Verdict:
    """Go on to `end`, comparing as soon as there is something to compare.

    younger: settings that the run was made without
    elsewhere: with other versions, which may log more than the run did
    """
    position = engine.metrics_log.tell()
    first = compared = len(lines_of(engine.run))
    saved = set[str]()
    stride = min(engine.config.log_every, engine.config.checkpoint_every)
    while engine.progress.steps < end:
        go_on(engine, min(engine.progress.steps + stride, end))
        written, position = lines_of(engine.run, position), engine.metrics_log.tell()
        for here in written:
            there = lines[compared] if compared < len(lines) else {"step": end + 1}
            if there["step"] > end:
                break
            unknown = here.keys() - there.keys()
            for name in unknown if elsewhere else unknown & younger:
                del here[name]
            compared += 1
            if unlike := _unlike(there, here):
                place = f"line {compared} of metrics.jsonl, step {there['step']:,}, differs"
                counts = compared - 1 - first, len(saved)
                before = lines[compared - 2]["step"] if compared > 1 else 0
                told, steps = f"{place}: {unlike}", engine.progress.steps
                return Verdict(start, steps, *counts, told, why, before, (there, here))
        for path in checkpoints.listed(engine.run.checkpoints):
            if path.name not in saved and (run.checkpoints / path.name).exists():
                unlike = _unlike_checkpoints(run.checkpoints / path.name, path)
                if unlike:
                    steps, count = engine.progress.steps, compared - first
                    return Verdict(start, steps, count, len(saved), f"{path.name} differs: {unlike}", why)
                saved.add(path.name)
    missing = [line["step"] for line in lines[compared:] if line["step"] <= end]
    told = (
        f"line {compared + 1} of metrics.jsonl, step {missing[0]:,}, is not written here" if missing else ""
    )
    return Verdict(start, end, compared - first, len(saved), told, why)


def lines_of(run: RunDirectory, position: int = 0) -> list[dict[str, Any]]:
    """The whole lines of a log from a position on."""
    with chain.opened(run.metrics_path) as log:
        log.seek(position)
        whole = [line for line in chain.lines(log) if line.endswith(b"\n")]
    return [json.loads(line) if chain.numbers(line) else {"step": 0} for line in whole]


def _unlike(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In what a line of the run differs from the one that is written here; lines of older versions have no digest."""
    ours = {name: value for name, value in here.items() if name != chain.FIELD}
    theirs = {name: value for name, value in there.items() if name != chain.FIELD}
    if DIGEST not in theirs:
        ours.pop(DIGEST, None)
    unlike = [
        f"{name} {theirs.get(name)} (here {ours.get(name)})"
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    ]
    return ", ".join(unlike[:3]) + (f" and {len(unlike) - 3} more" if len(unlike) > 3 else "")


def _unlike_checkpoints(there: Path, here: Path) -> str:
    """In what a checkpoint of the run differs from the one saved here; where the log stands, lines have told."""
    trees = []
    for path in (there, here):
        tree = checkpoints.load_checkpoint(path)
        tree.pop("journal", None)  # here it is known from the start
        tree.pop("paths", None)  # kept to, or a reason for what differs
        tree["progress"] = {
            name: value
            for name, value in tree["progress"].items()
            if name not in (chain.FIELD, "metrics_bytes", "chain_begins")
        }
        trees.append(tree)
    # Fields that are younger than the run: what they do is seen in lines and parameters.
    written, config = (tree["policy"]["config"] for tree in trees)
    trees[1]["policy"] = {
        **trees[1]["policy"],
        "config": {name: value for name, value in config.items() if name in written},
    }
    return str(next(differences(trees[0], trees[1]), ""))


def _damage(run: RunDirectory, end: int) -> str:
    """What of the log or of a checkpoint up to step `end` is not as it was written."""
    progress = checkpoints.newest_progress(run.checkpoints)
    mark = chain.mark_of(progress) if progress else None
    if mark is not None:
        with chain.opened(run.metrics_path) as log:
            damage = chain.verify(log, mark)
        if damage is not None:
            return f"metrics.jsonl: {damage}"
    upto = (path for path in checkpoints.listed(run.checkpoints) if checkpoints.step_of(path) <= end)
    return next(filter(None, map(_unreadable, upto)), "")


def _unreadable(path: Path) -> str:
    """Why a checkpoint cannot be loaded; empty if it can."""
    try:
        checkpoints.load_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    return ""


def refuse_lost_log(run: RunDirectory, lines: list[dict[str, Any]]) -> None:
    """Refuse a run that has checkpoints and no log."""
    if not lines and (kept := checkpoints.listed(run.checkpoints)):
        what = "is empty" if run.metrics_path.exists() else "is missing"
        raise RunError(
            f"{run.metrics_path}: {what}, though the newest checkpoint is of step {checkpoints.step_of(kept[-1]):,}; "
            "put the log back"
        )


def _refuse_elsewhere(run: RunDirectory, left: Left, anyway: bool) -> None:
    if anyway:
        return
    if not left.config.resumes_exactly:
        raise RunError(
            f"{run.path}: its fragments came in the order of the clock (order: arrival), which is not written down; "
            "--anyway compares all the same"
        )
    if left.changed:
        raise RunError(
            f"{run.path}: was made with {', '.join(left.changed)}, so its numbers may differ here; "
            "--anyway compares all the same"
        )


def _reasons(left: Left) -> Iterator[str]:
    """What the manifest knows that may be the reason for a difference."""
    yield from left.changed
    if not left.config.resumes_exactly:
        yield "fragments came in the order of the clock"
    for name, told in (
        (RESUMED_ELSEWHERE, "was resumed elsewhere"),
        (ACCEPTED_DAMAGE, "was continued with a damaged log"),
    ):
        entries = left.manifest.get(name)
        for entry in entries if isinstance(entries, list) else ():
            yield f"{told} at step {entry.get('step')}" + (
                f": {', '.join(entry['changed'])}" if "changed" in entry else ""
            )
