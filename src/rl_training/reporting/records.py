"""Reading the files of a run for reports and comparisons, finished or not, trusted or not.

Only files are read, nothing of the run is imported or built, so a run of an algorithm that is not installed here can
still be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import CheckpointError, ConfigError, RunError, UserError
from rl_training.reporting.columns import Columns, Curve
from rl_training.runtime.controls import find_control
from rl_training.settings.yaml import parse_yaml, read_text
from rl_training.state import chain, checkpoints
from rl_training.state.formats import FIRST_COVERED, STOPPED
from rl_training.state.run_directory import ACCEPTED_DAMAGE, RunDirectory, changed_keys

SCORE = "eval/mean_return"
SHOWN_WITH_SPREAD = (SCORE, "eval/std_return", "episode_return", "episode_return_std")
DEEPEST = 3  # levels of folders below a directory in which runs are looked for

Line = dict[str, float]
Warn = Callable[[str], None]


class Record(NamedTuple):
    """A run as it lies on the disk."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    metrics: Columns
    damage: str  # what is wrong with metrics.jsonl, or ""

    @property
    def steps(self) -> int:
        """Environment steps that were logged."""
        return self.metrics.last_step

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end, of itself or because it was asked to stop."""
        return self.steps >= self.config["total_timesteps"] or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop where it is now."""
        steps = self.curve(STOPPED).steps
        return len(steps) > 0 and int(steps[-1]) == self.steps

    @property
    def accepted_damage(self) -> list[str]:
        """What a user went on in spite of, in words, for each time."""
        return [
            f"resumed at step {each.get('step')} although line {each.get('line')} of metrics.jsonl was damaged "
            f"({each.get('what')})"
            for each in entries(self.manifest, ACCEPTED_DAMAGE)
        ]

    def curve(self, name: str) -> Curve:
        return self.metrics.curve(name)


def entries(manifest: Mapping[str, object], name: str) -> list[dict[str, Any]]:
    """A list of mappings in a manifest, whatever else stands there."""
    listed = manifest.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def read_run(
    path: Path | str, *, only: Collection[str] | None = None, warn: Warn = lambda text: None
) -> Record:
    """The run at `path`, with `only` those metrics if they are named.

    RunError in one line when it is missing, half written or from a newer version; a damaged log is read as far as it
    can be, with a line to `warn`.
    """
    run = RunDirectory.open(path)
    manifest = run.read_manifest()
    try:
        config = parse_yaml(read_text(run.config_path), str(run.config_path)).data
    except ConfigError as error:
        raise RunError(str(error)) from error
    needed = {"algo": str, "env_id": str, "seed": int, "total_timesteps": int}
    if not isinstance(config, dict) or not all(
        isinstance(config.get(name), kind) for name, kind in needed.items()
    ):
        raise RunError(f"{run.config_path}: not the config of a run (it needs {', '.join(needed)})")
    changed = changed_keys(config, _made_with(manifest))
    if changed:
        warn(f"{run.config_path}: {', '.join(changed)} differs from manifest.json, so one of them is damaged")
    knobs = knob_names(config) if only is None else ()
    metrics = Columns(
        only=None if only is None else {*only, STOPPED}, whole=SHOWN_WITH_SPREAD, expected=knobs
    )
    log = Log(run.metrics_path, _mark(run, manifest))
    for line in log:
        metrics.add(line, complete=SCORE not in line and STOPPED not in line)
    if not metrics.names:
        raise RunError(f"{run.path}: has no metrics yet")
    if log.damage:
        warn(log.damage)
    return Record(run.path, config, manifest, metrics, log.damage)


def _made_with(manifest: dict[str, object]) -> dict[str, Any]:
    made = manifest.get("config")
    return made if isinstance(made, dict) else {}


def knob_names(config: dict[str, object]) -> list[str]:
    return [name for name in config if find_control(name) is not None]


def _mark(run: RunDirectory, manifest: dict[str, Any]) -> chain.Mark | None:
    """How far the log is known to the newest checkpoint; None for a run whose lines carry no hashes."""
    try:
        mark = chain.mark_of(checkpoints.newest_progress(run.checkpoints) or {})
    except CheckpointError:
        mark = None
    new = chain.Mark(0, chain.START, 0)
    return mark or (new if manifest["format"] >= FIRST_COVERED else None)


class Log:
    """The lines of a log, one after the other; those that cannot be read are left out, and `damage` says so.

    A last line that a kill cut off is left out without a word.
    """

    def __init__(self, path: Path, mark: chain.Mark | None = None) -> None:
        self.path, self.mark = path, mark
        self.damage = ""

    def __iter__(self) -> Iterator[Line]:
        follower = None if self.mark is None else chain.Follower(self.mark)
        first, unreadable = None, 0
        with chain.opened(self.path) as file:
            for number, text in enumerate(chain.lines(file), start=1):
                if not text.endswith(b"\n") and len(text) < chain.MAX_LINE_BYTES:
                    break
                if follower is not None and first is None:
                    first = follower.follow(text)
                line = chain.numbers(text)
                if line is not None:
                    yield line
                    continue
                unreadable += 1
                first = first or chain.Damage(
                    number, "it holds no flat JSON object of finite numbers with a step"
                )
        if follower is not None and first is None:
            first = follower.end()
        left_out = f"; {unreadable} that cannot be read left out" if unreadable else ""
        self.damage = f"{self.path}: {first}{left_out}" if first else ""


def find_runs(paths: list[Path], warn: Warn, *, only: Collection[str] | None = None) -> list[Record]:
    """The runs at these paths, and those inside them where a path is no run itself, each once.

    A run that was named must be readable; one that was found in a folder and is not is left out with a warning.
    """
    records: dict[Path, Record] = {}
    for path in paths:
        if (path / "config.yaml").is_file() or not path.is_dir():
            records.setdefault(path.resolve(), read_run(path, only=only, warn=warn))
            continue
        inside = sorted(_runs_inside(path, DEEPEST))
        if not inside:
            raise RunError(f"{path}: no run directory, and none inside it")
        for inner in inside:
            try:
                records.setdefault(inner.resolve(), read_run(inner, only=only, warn=warn))
            except UserError as error:
                warn(f"{error}; left out")
    if not records:
        raise RunError(f"{', '.join(map(str, paths))}: no run that can be read")
    return list(records.values())


def _runs_inside(folder: Path, depth: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            if (path / "config.yaml").is_file():
                yield path
            elif depth > 1:
                yield from _runs_inside(path, depth - 1)
