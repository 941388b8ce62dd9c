"""Reproducing a row of results: train its seeds, score them, and keep the raw data.

The seeds are an experiment below `runs/reproduce`, so that whatever stops the command, the same command goes on. A
seed's score is kept beside its run as soon as it is known. `results/<row>.json` is written when all seeds have ended;
all in it but its entry `cost` is a function of the row, the code and the machine.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.envs.making import sees_pictures, with_lanes
from rl_training.errors import CheckpointError, ConfigError, RunError, StorageError, UserError, one_line
from rl_training.registry import shipped_configs
from rl_training.reporting.records import SCORE, Log, read_run
from rl_training.reporting.results import Measured
from rl_training.reporting.timing import Timing
from rl_training.runtime.evaluation import play
from rl_training.runtime.paths import FEATURES, KERNELS, other_kernels
from rl_training.runtime.trainer import EVALUATIONS
from rl_training.runtime.updates import COMPILED
from rl_training.runtime.workflows import (
    load_agent,
    made_for,
    make_trainer,
    of_task,
    refuse_other_config,
    revisions,
    saved_config,
)
from rl_training.settings.config import Config
from rl_training.settings.loading import load_config
from rl_training.settings.picture_defaults import with_picture_defaults
from rl_training.state import checkpoints, files
from rl_training.state.reading import reason
from rl_training.state.run_directory import RunDirectory, changed_keys
from rl_training.state.seeding import fold
from rl_training.tools.digests import code_digest
from rl_training.tools.experiments import (
    Experiment,
    SeedRun,
    SeedsDisplay,
    parse_seeds,
    seeded,
    train_seeds_until_stopped,
)
from rl_training.tools.rows import Row, read_row, row_names
from rl_training.tools.verifying import Verdict, verify

FORMAT = 1
MOST_POINTS = 50  # of a learning curve that is kept
CODE = "code.json"  # in the experiment
OUTCOME = {"seed", "steps", "untrained", "score", "returns", "curve", "weights_sha256"}  # of a seed


def reproduce(row: Row, *, jobs: int, results: Path, runs: Path, display: SeedsDisplay) -> Experiment:
    """Train and score every seed of a row, and write its result; it is not written when a signal stopped the seeds."""
    config = config_of(row)
    refuse_tasks(row, config)
    probe((results / row.name).parent)
    noting: Any = Noting(display, code_digest(config.algo))
    seeds = parse_seeds(row.seeds)
    experiment = train_seeds_until_stopped(config, seeds, jobs=jobs, run_dir=runs / row.runs, display=noting)
    failed = [run for run in experiment.runs if run.status == "failed"]
    if failed:
        raise RunError(f"{row.name}: seed {failed[0].seed} failed: {failed[0].problem}")
    if experiment.interrupted is None:
        outcomes = [_outcome(row, experiment, run) for run in experiment.runs]
        write_result(results / f"{row.name}.json", result_of(row, config, experiment, outcomes))
    return experiment


def verified(experiment: Experiment) -> Iterator[tuple[int, Verdict]]:
    """Run the end of every seed again, from its last checkpoint but one on; one that differs is an error."""
    for run in experiment.runs:
        kept = checkpoints.listed(RunDirectory(run.path).checkpoints)
        told = verify(run.path, begin=checkpoints.step_of(kept[-2]) if len(kept) > 1 else 0)
        if not told.is_good:
            raise RunError(f"{run.path}: {told}")
        yield run.seed, told


def refuse_tasks(row: Row, config: Config) -> None:
    """A row scores one task: it must say which, where its config has several; runs are those of an equal training."""
    if row.task not in (config.tasks if len(config.tasks) > 1 else ("", *config.tasks)):
        told = f"name one of {', '.join(config.tasks)}" if config.tasks else "its config has one"
        raise UserError(f"row {row.name}: task {row.task!r}: {told}")
    if row.trained_with:
        if row.trained_with not in row_names():
            raise UserError(f"row {row.name}: no such row as {row.trained_with}, which it is trained with")
        other = read_row(row.trained_with)
        if other.trained_with:
            raise UserError(
                f"row {row.name}: {other.name} has no runs; it is trained with {other.trained_with}"
            )
        if (other.config, other.overrides, other.seeds) != (row.config, row.overrides, row.seeds):
            raise UserError(f"row {row.name}: {other.name}, which it is trained with, is trained otherwise")


class Noting:
    """A display that notes, before anything is trained, with which code: an update may come between two commands."""

    def __init__(self, display: SeedsDisplay, digest: str) -> None:
        self.display, self.digest = display, digest

    def start(self, experiment: Experiment) -> None:
        before = _noted(experiment.path / CODE)
        if self.digest not in before and any(run.status != "done" for run in experiment.runs):
            write(experiment.path / CODE, json.dumps([*before, self.digest]))
        self.display.start(experiment)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.display, name)


def _noted(path: Path) -> list[str]:
    try:
        with undamaged(path):
            return [str(each) for each in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []


@contextmanager
def undamaged(path: Path | str) -> Iterator[None]:
    """What is not as this package writes it is the file's damage, told in one line."""
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({one_line(error)})") from error


def write(path: Path, text: str) -> None:
    """Replace a file, in a folder that is made where it is missing."""
    try:
        files.make_directory(path.parent)
        files.replace_file(path, text.encode())
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {reason(error)}; trained seeds are kept, run the same command again"
        ) from error


def probe(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before hours of training end there."""
    try:
        files.make_directory(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe")
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {reason(error)}") from error


def config_of(row: Row) -> Config:
    """The config of a row; an error in it, in an override or in the seeds names the row."""
    if row.config not in shipped_configs() and not Path(row.config).is_file():
        why = f": {row.not_run}" if row.not_run else ""
        raise UserError(f"{row.name}: its config {row.config} does not exist{why}")
    try:
        parse_seeds(row.seeds)
        config: Config = load_config(row.config, row.overrides)
    except UserError as error:
        raise UserError(f"row {row.name}: {error}") from error
    return config


def result_of(
    row: Row, config: Config, experiment: Experiment, outcomes: list[dict[str, Any]]
) -> dict[str, Any]:
    """All that is kept of a row."""
    settings = settings_of(config)
    manifest = RunDirectory(experiment.runs[0].path).read_manifest()
    return {
        "format": FORMAT,
        "row": row.name,
        "settings": settings,
        "config_sha256": digest(settings),
        "code_sha256": _noted(experiment.path / CODE),
        "revisions": revisions(config),
        "vectorization": experiment.config.vectorization,
        "paths": manifest.get("paths"),
        "versions": manifest["versions"],
        "cpu": manifest["cpu"],
        "evaluation": row.evaluation.model_dump(),
        "seeds": outcomes,
        "cost": {str(run.seed): cost_of(run.path) for run in experiment.runs},
    } | ({"task": row.task} if row.task else {})


def settings_of(config: Config) -> dict[str, Any]:
    """A row's config as JSON, without the seed, which each run has its own of."""
    values = json.loads(json.dumps(config.model_dump(mode="json")))
    del values["seed"]
    return dict(values)


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _outcome(row: Row, experiment: Experiment, run: SeedRun) -> dict[str, Any]:
    """The score of a seed, once for each set of weights and each way to score them."""
    weights = weights_of(row, run.path)
    asked = {"evaluation": row.evaluation.model_dump(), "weights_sha256": file_digest(weights)}
    kept = experiment.path / ("-".join(filter(None, [f"s{run.seed}", row.task])) + ".json")
    try:
        said = json.loads(kept.read_bytes())
        if said["asked"] == asked and said["outcome"].keys() == OUTCOME:
            return dict(said["outcome"])
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        pass  # it was never scored, or otherwise
    outcome = _score(row, experiment.config, run, weights.parent) | {
        "weights_sha256": asked["weights_sha256"]
    }
    write(kept, json.dumps({"asked": asked, "outcome": outcome}))
    return outcome


def weights_of(row: Row, path: Path) -> Path:
    """The weights that are scored."""
    run = RunDirectory.open(path)
    if row.evaluation.checkpoint == "best":
        if not (run.best / checkpoints.WEIGHTS).is_file():
            raise CheckpointError(f"{path} has no best checkpoint, which the row {row.name} is scored with")
        return run.best / checkpoints.WEIGHTS
    newest = checkpoints.newest_good_checkpoint(run.checkpoints, only="policy")
    if newest is None:
        raise CheckpointError(f"{path} has no checkpoint yet")
    return newest[0] / checkpoints.WEIGHTS


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _score(row: Row, config: Config, run: SeedRun, checkpoint: Path) -> dict[str, Any]:
    """Play the row's episodes with the policy as it was before its first update, and as it is now."""
    torch.set_num_threads(1)
    how: dict[str, Any] = {
        "episodes": row.evaluation.episodes,
        "seed": fold(run.seed, "reproduce"),
        "sample": row.evaluation.actions == "sampled",
    }
    policy = checkpoints.load_checkpoint(checkpoint, only="policy")["policy"]
    refuse_other_config(checkpoint, saved_config(policy), seeded(config, run.seed))
    # The config is the one that the user has asked for, so that what it names may be imported.
    trained, agent, saved = of_task(*load_agent(checkpoint, "last", trust=True), row.task or None)
    returns = [returned for returned, _ in play(agent, trained, **how, made_for=made_for(saved))]
    fresh = make_trainer(seeded(config, run.seed))
    player = fresh.agent.for_task(task) if (task := trained.env_id if config.tasks else "") else fresh.agent
    untrained = [returned for returned, _ in play(player, fresh.config.of_task(task), **how)]
    fresh.close()
    return {
        "seed": run.seed,
        "steps": checkpoints.checkpoint_step(checkpoint),
        "untrained": _rounded(float(np.mean(untrained))),
        "score": _rounded(float(np.mean(returns))),
        "returns": [_rounded(returned) for returned in returns],
        "curve": _curve(run.path, task),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _curve(path: Path, task: str) -> list[list[float]]:
    """Evaluations during training as [step, mean return], thinned evenly; the last one is kept."""
    score = SCORE.replace("/", f"/task/{task}/") if task else SCORE
    curve = read_run(path, only={score}).curve(score)
    kept = np.unique(np.linspace(0, len(curve.steps) - 1, MOST_POINTS).round().astype(int))
    return [[int(curve.steps[index]), _rounded(float(curve.values[index]))] for index in kept]


def cost_of(path: Path) -> dict[str, Any]:
    """What training a seed took; of a process that was killed, all up to its last log line."""
    timing = Timing(Log(path / "timing.jsonl"))
    return {
        "cpu_seconds": None if timing.cpu_seconds is None else round(timing.cpu_seconds, 1),
        "peak_memory_mb": timing.peak_memory_mb,
        "processes": timing.processes,
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """One line for each entry and each seed, so that a difference can be read."""
    entries = []
    for name, value in result.items():
        text = json.dumps(value)
        if name == "seeds":
            text = "[\n" + ",\n".join(json.dumps(each) for each in value) + "\n]"
        entries.append(f"{json.dumps(name)}: {text}")
    write(path, "{\n" + ",\n".join(entries) + "\n}\n")


def read_result(path: Path) -> dict[str, Any] | None:
    """The result at `path`; None where there is none."""
    try:
        with undamaged(path):
            result = json.loads(path.read_bytes())
            if result["format"] > FORMAT:
                raise RunError(f"{path}: was written by a newer version; update rl-training")
            return dict(result)
    except FileNotFoundError:
        return None


def read_measured(row: Row, results: Path) -> Measured:
    """A row with its kept result, its peer's, those of the row that it stands beside, and what has changed since."""
    result = read_result(results / f"{row.name}.json")
    return Measured(
        row,
        result,
        read_result(results / "peers" / f"{row.name}.json"),
        read_measured(read_row(row.beside), results) if row.beside else None,
        () if result is None else tuple(outdated(row, result)),
    )


class Stale(NamedTuple):
    """What has changed since a result was made, in words."""

    changed: list[str]  # that gives other numbers
    other_code: list[str]  # that gives the same numbers, if revisions are raised as docs/formats.md demands


def outdated(row: Row, result: Mapping[str, Any]) -> list[str]:
    """What a result was made with that is not what its row has now, whatever the machine."""
    config = config_of(row)
    changed = changed_settings(config, result)
    reasons = [f"config: {', '.join(changed)}"] if changed else []
    if gone := sorted(result["settings"].keys() - settings_of(config).keys()):
        reasons.append(f"settings that are gone: {', '.join(gone)}")
    if result["evaluation"] != row.evaluation.model_dump():
        reasons.append("evaluation")
    if result.get("task", "") != row.task:
        reasons.append("task")
    if [outcome["seed"] for outcome in result["seeds"]] != parse_seeds(row.seeds):
        reasons.append("seeds")
    # Of the row's own config: whatever it trains in, its scores are played in environments that are not compiled.
    made, today = result["revisions"], revisions(config)
    raised = sorted(name for name in made.keys() | today.keys() if made.get(name) != today.get(name))
    if raised:
        reasons.append(f"revision of {', '.join(raised)}")
    return reasons


def changed_settings(config: Config, result: Mapping[str, Any]) -> list[str]:
    """Settings that a result was not made with; those that its version did not have were at their defaults."""
    here = settings_of(config)
    there = {name: field.default for name, field in type(config).model_fields.items()} | result["settings"]
    return changed_keys(here, {name: value for name, value in there.items() if name in here})


def stale(row: Row, result: Mapping[str, Any]) -> Stale:
    """Why a result may no longer be what its row gives on this machine."""
    config = config_of(row)
    reasons = outdated(row, result)
    new = settings_of(config).keys() - result["settings"].keys()
    at_defaults = sorted(new - set(changed_settings(config, result)))
    harmless = [f"new settings, at their defaults: {', '.join(at_defaults)}"] if at_defaults else []
    try:
        with mujoco_unheard():
            begun = with_lanes(with_picture_defaults(config, sees_pictures))
            other = _other_paths(begun, result["paths"] or {})
        if begun.vectorization != result["vectorization"]:
            reasons.append(f"environments: {result['vectorization']} (here {begun.vectorization})")
        if row.evaluation.checkpoint == "last":  # evaluations during training move no weights
            harmless += [told for part, told in other.items() if part == EVALUATIONS]
            other.pop(EVALUATIONS, None)
        reasons += other.values()
    except ConfigError as error:  # its environment cannot be made here
        harmless.append(f"paths, which cannot be told here ({error})")
    if result["code_sha256"] != [code_digest(config.algo)]:
        harmless.append("code")
    return Stale(reasons, harmless)


@contextmanager
def mujoco_unheard() -> Iterator[None]:
    """Without MuJoCo's warnings of models that Gymnasium ships: each environment that is made repeats them."""
    if find_spec("mujoco") is None:
        yield
        return
    mujoco: Any = import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _other_paths(config: Config, made: Mapping[str, Any]) -> dict[str, str]:
    """Parts that a run would compute otherwise today than one that recorded these paths, CPU features aside."""
    trainer = make_trainer(config)
    here = trainer.paths()
    trainer.close()
    other = {
        part: f"{part}: {made.get(part, 'not compiled')} (here {here.get(part, 'not compiled')})"
        for part in sorted((made.keys() | here.keys()) - {KERNELS, FEATURES})
        if (made.get(part) == COMPILED) != (here.get(part) == COMPILED)
    }
    kernels = other_kernels({name: value for name, value in made.items() if name != FEATURES})
    return other | ({KERNELS: "; ".join(kernels)} if kernels else {})
