"""Several seeds of one config as one experiment: each is a normal run in its own process.

An experiment is a directory `runs/<algo>-<env>-seeds` that holds `experiment.json` (its config without the seed) and a
run directory `s<seed>` for each seed. The same command goes on where it was, whatever stopped it: finished runs are
left as they are, begun ones are resumed, and seeds that are new are trained.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from rl_training.envs.making import sees_pictures, with_lanes
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    NonFiniteError,
    ObserverError,
    RunError,
    StorageError,
    UserError,
    one_line,
)
from rl_training.monitoring.display import QuietDisplay
from rl_training.processes import SIGNALS, end_with_the_parent, ensure_fork_server
from rl_training.runtime import workflows
from rl_training.runtime.engine import rounded_up, stop_signals
from rl_training.runtime.paths import path_lines
from rl_training.settings.config import Config
from rl_training.settings.loading import YOUNGER, as_begun, load_config, load_run_config
from rl_training.settings.picture_defaults import difference, with_picture_defaults
from rl_training.state import checkpoints, files
from rl_training.state.run_directory import RunDirectory, changed_keys, directory_name
from rl_training.terminal import escape_streams
from rl_training.tools.warming import can_warm_up

FORMAT = 1
IDENTITY = "experiment.json"
MOST_SEEDS = 1000


@dataclass
class SeedRun:
    """One seed of an experiment, and how far it is."""

    seed: int
    path: Path
    status: str = "waiting"  # then running, and at the end done, stopped or failed
    steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    problem: str = ""


@dataclass
class Experiment:
    """All seeds that were asked for, and the signal that stopped them, if one did."""

    path: Path
    config: Config
    runs: list[SeedRun]
    interrupted: int | None = None


class SeedsDisplay(Protocol):
    """What is told while the seeds run."""

    def start(self, experiment: Experiment) -> None: ...

    def update(self, run: SeedRun) -> None: ...

    def message(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...

    def finish(self) -> None: ...


def parse_seeds(text: str) -> list[int]:
    """`1-5`, `3` or `1-3,7`: each seed once, in the order given."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        if match is None:
            raise UserError(f"--seeds {text}: seeds are written 1-5 or 1,2,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"--seeds {text}: {first}-{last} goes backwards")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise UserError(f"--seeds {text}: more than {MOST_SEEDS} seeds")
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def train_seeds(
    config: Config | Mapping[str, Any],
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    run_dir: str | Path | None = None,
    display: SeedsDisplay | None = None,
    quiet: bool = False,
) -> Experiment:
    """Train a config with several seeds, `jobs` at a time; the same call resumes what was stopped.

    run_dir: directory of the experiment. [default: runs/ALGO-ENV-seeds]
    quiet, display: hide the progress, or show it with a custom display.
    After Ctrl-C all seeds are saved and KeyboardInterrupt is raised; after SIGTERM, SystemExit(143).
    """
    from rl_training.tools.experiment_display import make_experiment_display

    experiment = train_seeds_until_stopped(
        config if isinstance(config, Config) else load_config(config),
        seeds,
        jobs=jobs,
        run_dir=None if run_dir is None else Path(run_dir),
        display=display or make_experiment_display(quiet),
    )
    workflows.end_caller(experiment.interrupted)
    return experiment


def train_seeds_until_stopped(
    config: Config,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    run_dir: Path | None = None,
    display: SeedsDisplay,
) -> Experiment:
    """As `train_seeds`, but a signal only ends the seeds: the experiment says which one."""
    written, config = config, with_picture_defaults(config, sees_pictures)
    # What is wrong with a config or an environment leaves nothing behind.
    with workflows.told_of_compiling(display):
        trainer = workflows.make_trainer(config)
    trainer.close()
    changed = difference(written, config)
    path = open_experiment(config, run_dir)
    identity = {"seed": config.seed, **(_identity(path) or {})}
    asked, config = with_lanes(config), as_begun(in_its_lanes(config, identity), identity)
    if config != asked:  # an experiment that began otherwise
        trainer = workflows.make_trainer(config)
        trainer.close()
    first_lines = [
        changed,
        workflows.lanes_line(written, config),
        *trainer.encoders(),
        *path_lines(trainer),
        *rounded_up(config),
    ]
    runs = [SeedRun(seed, path / f"s{seed}") for seed in seeds]
    experiment = Experiment(path, config, runs)
    for run in runs:
        _look(run, seeded(config, run.seed))
    display.start(experiment)
    try:
        for text in filter(None, first_lines):
            display.message(text)
        with stop_signals() as stop:
            _run_all(experiment, jobs, display, stop)
        experiment.interrupted = stop.number if any(run.status == "stopped" for run in runs) else None
    finally:
        display.finish()
    return experiment


def open_experiment(config: Config, run_dir: Path | None) -> Path:
    """The directory of this config's experiment: the one it has already, or a new one."""
    mine = {
        name: value for name, value in with_lanes(config).model_dump(mode="json").items() if name != "seed"
    }
    if run_dir is not None:
        theirs = _identity(run_dir)
        if theirs is not None and (changed := _differences(run_dir, theirs, config)):
            raise RunError(f"{run_dir}: holds an experiment of another config ({', '.join(changed)} differ)")
        if theirs is None and run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
            raise RunError(f"{run_dir}: is not empty and not an experiment; choose another directory")
        return _begin(run_dir, mine)
    for path in _default_places(config):
        theirs = _identity(path)
        same = theirs is not None and not _differences(path, theirs, config)
        if same or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return _begin(path, mine)
    raise AssertionError("there is always one more place")


def _default_places(config: Config) -> Iterator[Path]:
    name = directory_name(f"{config.algo_name}-{config.env_name}-seeds")
    yield Path("runs") / name
    number = 2
    while True:
        yield Path("runs") / f"{name}-{number}"
        number += 1


def _identity(path: Path) -> dict[str, Any] | None:
    """The config of the experiment at `path`; None where there is none."""
    try:
        said = json.loads((path / IDENTITY).read_bytes())
        number, config = said["format"], said["config"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunError(f"{path / IDENTITY}: damaged ({one_line(error)})") from error
    if type(number) is not int or number > FORMAT:
        raise RunError(f"{path}: was written by a newer version (format {number}); update rl-training")
    if not isinstance(config, dict):
        raise RunError(f"{path / IDENTITY}: damaged (no config)")
    return config


def _differences(path: Path, theirs: Mapping[str, object], config: Config) -> list[str]:
    """In which fields an experiment is of another config; what its version did not know yet is no difference."""
    theirs = {**theirs, "seed": config.seed}
    try:
        there = workflows.saved_config({"config": theirs}).model_dump(mode="json")
    except (ConfigError, CheckpointError) as error:
        raise RunError(f"{path / IDENTITY}: damaged ({one_line(error)})") from error
    return changed_keys(as_begun(in_its_lanes(config, theirs), theirs).model_dump(mode="json"), there)


def in_its_lanes(config: Config, identity: Mapping[str, object]) -> Config:
    """The config with the environments that an experiment began with, where they are left to `auto`."""
    if config.vectorization != "auto":
        return config
    return config.model_copy(
        update={"vectorization": identity.get("vectorization", YOUNGER["vectorization"])}
    )


def _begin(path: Path, identity: Mapping[str, object]) -> Path:
    try:
        files.make_directory(path)
        if not (path / IDENTITY).exists():
            text = json.dumps({"format": FORMAT, "config": identity}, indent=2)
            files.replace_file(path / IDENTITY, text.encode() + b"\n")
    except OSError as error:
        raise RunError(f"{path}: cannot make the experiment directory: {error.strerror}") from error
    return path


def seeded(config: Config, seed: int) -> Config:
    """The config of one seed."""
    return load_config(config.model_dump(mode="json") | {"seed": seed})


def _look(run: SeedRun, config: Config) -> None:
    """Find out how far a seed is: done when a good checkpoint holds its last step. All of it must be of this config."""
    run.steps = 0
    if not (run.path / "config.yaml").is_file():
        return
    opened = RunDirectory.open(run.path)
    workflows.refuse_other_config(opened.config_path, load_run_config(opened.config_path), config)
    newest = checkpoints.newest_good_checkpoint(opened.checkpoints, only="progress", warn=lambda text: None)
    if newest is not None:
        progress = newest[1]["progress"]
        run.steps, run.metrics = int(progress["steps"]), dict(progress["latest"])
    if newest is not None and workflows.is_over(newest[1]["progress"], config):
        saved = checkpoints.load_checkpoint(newest[0], only="policy")["policy"]
        workflows.refuse_other_config(newest[0], workflows.saved_config(saved), config)
        run.status = "done"


def go_on(config: Config, path: Path, display: Any) -> workflows.Result:
    """Begin the run at `path`, or resume it, if it has this very config: the user's own, with its seed."""
    if (path / "config.yaml").is_file():
        return workflows.resume_until_stopped(path, display=display, expected=config)
    return workflows.train_until_stopped(config, run_dir=path, display=display)


class _CommandIsGone(Exception):
    """The parent command was killed; running it again resumes this seed from its last checkpoint."""


class _Teller(QuietDisplay):
    """The display of a seed in its own process: it tells the parent."""

    def __init__(self, pipe: connection.Connection) -> None:
        self.pipe, self.training = pipe, False

    def start(self, config: Config, run_dir: Path, steps: int, total: int) -> None:
        self.training = True

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        self.tell("update", steps, dict(metrics))

    def warning(self, text: str) -> None:
        self.tell("warning", text)

    def tell(self, *message: Any) -> None:
        try:
            self.pipe.send(message)
        except BrokenPipeError:
            raise _CommandIsGone from None


def _train_one(settings: dict[str, object], path: Path, pipe: connection.Connection) -> None:
    """A seed in a process of its own; what it comes to is told through the pipe.

    A signal may come twice, to all processes of the command and from the parent, which passes it on: one is enough.
    """
    teller = _Teller(pipe)

    def quit_early(number: int, frame: object) -> None:
        if not teller.training:  # else the engine has been asked
            raise SystemExit

    for number in SIGNALS:
        signal.signal(number, quit_early)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end_with_the_parent()
    escape_streams()
    with contextlib.suppress(_CommandIsGone):
        try:
            result = go_on(load_config(settings), path, teller)
            ended = "stopped" if result.interrupted else "done", ""
        except SystemExit:
            ended = "stopped", ""
        except (UserError, NonFiniteError, StorageError, EnvironmentFault, ObserverError) as error:
            ended = "failed", " ".join(str(error).splitlines())
        teller.tell("end", *ended)


def _run_all(experiment: Experiment, jobs: int, display: SeedsDisplay, stop: Any) -> None:
    waiting = [run for run in experiment.runs if run.status != "done"]
    context = multiprocessing.get_context("forkserver")
    # torch is loaded once for all seeds, and what is compiled too, which pays from the second on.
    warm = len(waiting) > 1 and can_warm_up(experiment.config)
    if warm:
        display.message("warming up: compiling (once) or loading compiled code for all seeds")
    ensure_fork_server(__name__, warm_up=experiment.config.model_dump(mode="json") if warm else None)
    running: dict[connection.Connection, tuple[SeedRun, Any]] = {}
    passed_on = False
    said: set[str] = set()
    try:
        while running or (waiting and stop.number is None):
            while waiting and stop.number is None and len(running) < jobs:
                run = waiting.pop(0)
                settings = experiment.config.model_dump(mode="json") | {"seed": run.seed}
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_train_one, args=(settings, run.path, theirs), daemon=False)
                process.start()
                theirs.close()
                running[ours] = run, process
                run.status = "running"
                display.update(run)
            if stop.number is not None and not passed_on:
                passed_on = True
                for _, process in running.values():
                    os.kill(process.pid, signal.SIGTERM)
            for ready in connection.wait(list(running), timeout=0.2):
                assert isinstance(ready, connection.Connection)
                _hear(ready, running, display, said)
    finally:
        for _, process in running.values():  # only after a second signal, or a bug
            process.kill()
            process.join()
    for run in waiting:
        run.status = "stopped"


def _hear(
    pipe: connection.Connection,
    running: dict[connection.Connection, tuple[SeedRun, Any]],
    display: SeedsDisplay,
    said: set[str],
) -> None:
    """Take in one message of a seed, or its end. What all of them warn of is said once."""
    run, process = running[pipe]
    try:
        kind, *rest = pipe.recv()
    except EOFError:
        process.join()
        pipe.close()
        del running[pipe]
        if run.status == "running":
            # A signal that came before the process could handle it.
            early = process.exitcode in [-number for number in SIGNALS]
            problem = "" if early else f"its process ended with {process.exitcode}"
            run.status, run.problem = "stopped" if early else "failed", problem
        display.update(run)
        return
    if kind == "update":
        run.steps = rest[0]
        run.metrics |= rest[1]
        display.update(run)
    elif kind == "warning":
        if rest[0] not in said:
            display.warning(f"seed {run.seed}: {rest[0]}")
        said.add(rest[0])
    else:
        run.status, run.problem = rest
