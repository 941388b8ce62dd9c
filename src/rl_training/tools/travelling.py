"""Go to any step of a run's past: an iteration is a function of the state and its number, so it can be run again.

    nearest checkpoint at or before the step → scratch copy of the run directory → iterate up to the step

The run itself is only read. Its log and its checkpoints go on in the copy, so that what is written there can be
compared with what the run wrote, and a checkpoint of any step can be taken from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rl_training.allocator import keep_freed_memory
from rl_training.errors import CheckpointError, EnvironmentFault, RunError
from rl_training.monitoring.display import Display, QuietDisplay
from rl_training.runtime.engine import Engine, stop_signals
from rl_training.runtime.workflows import Left, end_caller, look, reopen
from rl_training.settings.config import Config
from rl_training.state import chain, checkpoints, files
from rl_training.state.journal import Journal
from rl_training.state.ladder import LEAST, Keep
from rl_training.state.run_directory import ACCEPTED_DAMAGE, RunDirectory

PREFIX = "rl-training-"  # of scratch directories


@contextmanager
def travelled(source: str | Path, step: int, **options: Any) -> Iterator[Engine]:
    """The engine of a run, in a scratch copy, after the first iteration that reaches `step`; it can go on from there.

    Its files and environments are open inside the context only. The options are those of `left_at`.
    """
    with restored(source, step, **options) as engine:
        go_on(engine, step)
        yield engine


@contextmanager
def saved_at(source: str | Path, step: int, **options: Any) -> Iterator[Path]:
    """A checkpoint of that state: the run's own, if it has one there, else one in a scratch copy.

    Nothing is computed for the run's own, so it is there also where the run could not go on.
    """
    run, left = left_at(source, step, **options)
    if left.newest is not None and left.newest[1]["progress"]["steps"] == step:
        yield left.newest[0]
        return
    with TemporaryDirectory(prefix=PREFIX) as folder:
        with reopened(run, left, Path(folder)) as engine:
            go_on(engine, step)
            path = engine.save_here()
        yield path


@contextmanager
def restored(source: str | Path, step: int, **options: Any) -> Iterator[Engine]:
    """The engine of a run, in a scratch copy, at the nearest checkpoint at or before `step`; nothing is run yet.

    Observers hear again what they heard in the run; trackers hear nothing. The options are those of `left_at`.
    """
    with reopened(*left_at(source, step, **options)) as engine:
        yield engine


def left_at(
    source: str | Path,
    step: int,
    *,
    display: Display | None = None,
    trust: bool = False,
    accept_damaged_log: bool = False,
    before: bool = False,
) -> tuple[RunDirectory, Left]:
    """A run, and what it left up to `step`; up to the step before it, if `before`."""
    run = RunDirectory.open(source)
    how: dict[str, Any] = {"trust": trust, "accept_damaged_log": accept_damaged_log, "before": before}
    return run, found(run, step, display or QuietDisplay(), **how)


def found(
    run: RunDirectory,
    step: int,
    display: Display,
    *,
    trust: bool,
    accept_damaged_log: bool = False,
    before: bool = False,
) -> Left:
    """What a run left up to `step`, or `before` it: the nearest checkpoint, or what it began with."""
    until = max(step - 1, 0) if before else step
    left = look(run, display, trust=trust, accept_damaged_log=accept_damaged_log, until=until)
    refuse_beyond_the_end(left.config, step)
    if left.newest is None and left.manifest.get("lineage"):
        kept = [str(checkpoints.step_of(path)) for path in checkpoints.listed(run.checkpoints)]
        raise RunError(
            f"{run.path}: is a fork without a checkpoint at or before step {step}; it keeps {', '.join(kept)}"
        )
    if not left.config.resumes_exactly:
        display.warning("its fragments came in the order of the clock: its past cannot be run again exactly")
    return left


def refuse_beyond_the_end(config: Config, step: int) -> None:
    """Refuse a step that a run does not reach, before the rest of it is trained to find that out."""
    per = config.steps_per_iteration
    last = math.ceil(config.total_timesteps / per) * per
    if step > last:
        raise RunError(f"step {step}: the run ends at step {last}")


@contextmanager
def reopened(
    run: RunDirectory, left: Left, folder: Path | None = None, *, anyway: bool = False
) -> Iterator[Engine]:
    """The engine of a run in a scratch copy, as what was found has it. `anyway` is that of `reopen`."""
    with nullcontext(folder) if folder else TemporaryDirectory(prefix=PREFIX) as place:
        scratch = RunDirectory(Path(place))
        for path in (run.config_path, run.manifest_path):
            files.link(path, scratch.path / path.name)
        if (journal := Journal(run.journal_path)).events:
            files.write_file(scratch.journal_path, journal.content)
        if left.damage is not None:
            scratch.note(ACCEPTED_DAMAGE, **left.damage)
        if left.newest is not None:
            take_along(run, scratch, left.newest[1])
        engine = reopen(scratch, left, QuietDisplay(), original=run, anyway=anyway)
        engine.keep = Keep(LEAST)  # the run may ask for all, and nobody reads those of a copy
        torch.set_num_threads(left.threads)
        keep_freed_memory()
        try:
            with engine.running():
                yield engine
        except EnvironmentFault as fault:
            fault.going_on = ""  # there is nothing to resume in a copy that is gone
            raise


def go_on(engine: Engine, step: int, asked: int | None = None) -> None:
    """Iterate up to the first iteration that reaches `step`; a signal ends the caller.

    asked: the step that the user named, if it is another
    """
    with stop_signals() as stop:
        engine.advance(stop, step)
    end_caller(stop.number)
    if engine.progress.steps < step:
        raise RunError(f"step {asked or step}: the run ends at step {engine.progress.steps}")


def take_along(run: RunDirectory, copy: RunDirectory, tree: Mapping[str, Any]) -> bool:
    """Give a copy of a run what it needs to go on from a checkpoint: log, replay segments and, unless it is of a later
    step, the best policy; whether that is there."""
    with chain.opened(run.metrics_path) as log:
        files.write_file(copy.metrics_path, log.read(tree["progress"]["metrics_bytes"]))
    if tree.get("segments"):
        files.make_directory(copy.replay)
        for name in tree["segments"]:
            files.link(run.replay / name, copy.replay / name)
    with suppress(CheckpointError):
        if checkpoints.checkpoint_step(run.best) <= tree["progress"]["steps"]:
            best = checkpoints.load_checkpoint(run.best)
            checkpoints.save_policy(copy.best, checkpoints.checkpoint_step(run.best), best)
            return True
    return False
