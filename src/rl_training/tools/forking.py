"""Fork: a new run from a checkpoint of another, with changed settings and a recorded lineage."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rl_training import parts
from rl_training.envs.making import with_lanes
from rl_training.errors import CheckpointError, ConfigError, RunError, UserError
from rl_training.monitoring.display import Display, QuietDisplay, script_display
from rl_training.registry import ZOO, policy_path, require_algorithm, trainer_class
from rl_training.runtime.controls import ARGUMENT, ARGUMENTS, PARTS, idle_knobs
from rl_training.runtime.disk import keep_of
from rl_training.runtime.engine import Engine, Result
from rl_training.runtime.observers import Observer, Watch
from rl_training.runtime.paths import keep_to_paths, record_of, recorded_paths
from rl_training.runtime.workflows import (
    algorithm_in,
    begin_run,
    begun_with,
    check_log,
    check_manifest,
    given,
    make_trainer,
    or_stop,
    refuse_changed_config,
    run_engine,
    saved_config,
    told_of_compiling,
)
from rl_training.settings.config import Config
from rl_training.settings.loading import given_keys, load_run_config
from rl_training.settings.yaml import to_yaml
from rl_training.state import checkpoints, files
from rl_training.state.formats import STOPPED
from rl_training.state.journal import Journal
from rl_training.state.restoring import taking_over
from rl_training.state.run_directory import ACCEPTED_DAMAGE, RunDirectory
from rl_training.tools.travelling import refuse_beyond_the_end, saved_at, take_along
from rl_training.trust import refuse_untrusted


def fork(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    at: int | None = None,
    run_dir: str | Path | None = None,
    env: Any = None,
    display: Display | None = None,
    quiet: bool = False,
    trust: bool = False,
    trust_env: bool = False,
    accept_damaged_log: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Branch a new run off the latest intact checkpoint of a run, or off the checkpoint at `source`, and train it.

    From a policy of the zoo (`zoo:ppo/cartpole`) a new run begins with its weights.

    overrides: changed settings, as for `load_config`.
    at: branch off after the iteration that reaches this step, instead of at a checkpoint.
    env, observers: required if the run was trained with objects of Python.
    Progress and signals are as in `train`.
    """
    with given(env), parts.holding(observers):
        result = fork_until_stopped(
            source,
            overrides,
            at=at,
            run_dir=run_dir,
            display=display or script_display(quiet),
            trust=trust or trust_env,
            accept_damaged_log=accept_damaged_log,
        )
    return or_stop(result)


def fork_until_stopped(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    at: int | None = None,
    run_dir: str | Path | None = None,
    display: Display | None = None,
    trust: bool = False,
    accept_damaged_log: bool = False,
    until: float = math.inf,
) -> Result:
    """Go on from the newest checkpoint of a run, or from the one at `source`, in a run directory of its own.

    With `at`, a checkpoint of that step is made first, in a scratch copy of the run. It may end at step `until`.
    """
    display = display or QuietDisplay()
    how: dict[str, Any] = {"display": display, "trust": trust, "accept_damaged_log": accept_damaged_log}
    with told_of_compiling(display), ExitStack() as scratch:
        if str(source).startswith(ZOO) and at is None:
            return _begin_with(str(source), overrides, run_dir, display, trust)
        if at is None:
            return _fork(Path(source), None, overrides, run_dir, scratch, until, **how)
        if str(source).startswith(ZOO) or (Path(source) / "state.json").exists():
            raise RunError(f"{source}: --at goes back in a run: name its directory")
        _refuse_early(Path(source), overrides, at, trust)
        path = scratch.enter_context(saved_at(source, at, **how))
        return _fork(path, Path(source), overrides, run_dir, scratch, until, **how)


def _refuse_early(
    source: Path, overrides: Sequence[str] | Mapping[str, object], at: int, trust: bool
) -> None:
    """Refuse changes that cannot be before the steps up to `at` are run again."""
    path = RunDirectory.open(source).config_path
    old = load_run_config(path, trust=trust)
    config = load_run_config(path, overrides, trust=trust)
    refuse_beyond_the_end(old, at)
    changes = _changes(old, config)
    _refuse_what_cannot_change(config, changes, at, source, stopped=False)


def _fork(
    source: Path,
    origin: Path | None,
    overrides: Sequence[str] | Mapping[str, object],
    run_dir: str | Path | None,
    scratch: ExitStack,
    until: float,
    *,
    display: Display,
    trust: bool,
    accept_damaged_log: bool,
) -> Result:
    """Go on from the newest checkpoint of a run, from the one at `source`, or from one in a scratch copy of `origin`.

    With no overrides it goes on exactly as the original would have. The original is only read. Everything is
    restored before the new directory is made: what does not fit leaves nothing behind.
    """
    parent, path, tree = _find(source, display)
    manifest = parent.read_manifest()
    require_algorithm(algorithm_in(manifest), manifest.get("algorithm"))
    old = load_run_config(parent.config_path, trust=trust)
    with taking_over(path):
        refuse_changed_config(old, saved_config(tree["policy"]), parent, path.name)
        step = int(tree["progress"]["steps"])
    config = load_run_config(parent.config_path, overrides)
    refuse_untrusted(config, trust, own=_changes(old, config))
    config = with_lanes(config)
    changes = _changes(old, config)
    refuse_changed_config(old, begun_with(parent, manifest), parent, "manifest.json")
    threads, _ = check_manifest(manifest, old, display)
    _refuse_what_cannot_change(config, changes, step, path, STOPPED in tree["progress"]["latest"])
    with taking_over(path):
        damage = check_log(parent, tree, display, accept=accept_damaged_log)

    watch, trainer = Watch(config), make_trainer(config)
    if "compiled_updates" not in given_keys(overrides):  # naming it, changed or not, chooses the path anew
        asked = [] if origin is None else ["--at", str(step)]
        asked += [f"{name}={to_yaml(after)}" for name, (_, after) in changes.items()]
        keep_to_paths(trainer, recorded_paths(manifest, tree), origin or source, asked)
    engine = Engine(trainer, config, parent, display, watch)
    with taking_over(path, _not_fitting(parent, changes, path, tree, trust)):
        engine.restore(path, tree)
    lineage = {
        "parent": str((origin or parent.path).resolve()),
        "checkpoint": path.name,
        "step": step,
        "changes": {name: {"from": before, "to": after} for name, (before, after) in changes.items()},
    }
    if "torch_threads" in changes:
        threads = engine.trainer.threads
    run = RunDirectory.create(
        run_dir, default_name=f"{config.algo_name}-{config.env_name}-s{config.seed}-fork"
    )
    with run.lock():
        more = {"lineage": [lineage, *_listed(manifest, "lineage")]}
        if accepted := [*_listed(manifest, ACCEPTED_DAMAGE), *([damage] if damage else ())]:
            more[ACCEPTED_DAMAGE] = accepted  # the fork's log begins with the parent's
        paths = record_of(trainer)
        with begin_run(run, config, threads, paths, **more):
            tree["paths"] = paths
            _take_journal_over(parent, run, tree, changes)
            _take_over(parent, run, path, tree, config)
        engine.progress.best_return = tree["progress"]["best_return"]
        engine.move_to(run, checkpoint=run.checkpoints / path.name)
        scratch.close()
        display.message(f"forked from {origin or path} at step {step:,}" + _told(changes))
        for text in idle_knobs(config):
            if text not in idle_knobs(old):  # the parent has said that
                display.warning(text)
        return run_engine(engine, threads, until)


def _begin_with(
    name: str,
    overrides: Sequence[str] | Mapping[str, object],
    run_dir: str | Path | None,
    display: Display,
    trust: bool,
) -> Result:
    """Train a new run that begins with the weights and the observation statistics of a policy from the zoo.

    Steps, optimizer, replay and episodes start from scratch: the zoo holds nothing else of the original run. The
    initial state is saved as a checkpoint, so a run killed right after its start still resumes from these weights.
    """
    path = policy_path(name)
    with taking_over(path):
        saved = checkpoints.load_checkpoint(path, only="policy")["policy"]
        old = saved_config(saved)
    config = load_run_config(saved["config"], overrides)
    changes = _changes(old, config)
    refuse_untrusted(config, trust, own=changes)
    config = with_lanes(config)
    watch = Watch(config)
    with taking_over(path, iter(changes)):
        trainer = make_trainer(config, _with_policy(trainer_class(config.algo), saved["agent"]))
    threads = trainer.threads
    run = RunDirectory.create(
        run_dir, default_name=f"{config.algo_name}-{config.env_name}-s{config.seed}-fork"
    )
    changed = {key: {"from": before, "to": after} for key, (before, after) in changes.items()}
    lineage = {"parent": name, "checkpoint": "policy", "step": 0, "changes": changed}
    with run.lock():
        engine = Engine(trainer, config, run, display, watch)
        with begin_run(run, config, threads, record_of(trainer), lineage=[lineage]):
            files.write_file(run.metrics_path, b"")
            engine.save()
        display.message(f"begins at step 0 with the policy of {name}; its optimizer is new" + _told(changes))
        return run_engine(engine, threads)


def _with_policy(kind: Any, state: Mapping[str, Any]) -> Any:
    """A trainer's class whose agent begins with this state; what is copied from the agent, such as targets, follows."""

    class Beginning(kind):  # type: ignore[misc]
        @classmethod
        def make_agent(cls, *args: Any, **options: Any) -> Any:
            agent = super().make_agent(*args, **options)
            agent.load_state_dict(state)
            return agent

        def seed_normalizer(self) -> None:
            """The policy brings its own statistics."""

    return Beginning


def _find(source: Path, display: Display) -> tuple[RunDirectory, Path, dict[str, Any]]:
    """The run that is forked, the checkpoint it is forked at, and what that holds."""
    if (source / "state.json").exists():
        if source.resolve().parent.name != "checkpoints":
            raise RunError(f"{source}: holds no training state; fork RUN_DIR or RUN_DIR/checkpoints/step-N")
        return RunDirectory.open(source.resolve().parents[1]), source, checkpoints.load_checkpoint(source)
    run = RunDirectory.open(source)
    newest = checkpoints.newest_good_checkpoint(run.checkpoints, warn=display.warning)
    if newest is None:
        raise CheckpointError(f"{source} has no checkpoint yet")
    return run, *newest


def _changes(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Field -> (before, after) of all that differs, as plain values."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return {name: (before.get(name), value) for name, value in after.items() if value != before.get(name)}


def _refuse_what_cannot_change(
    config: Config, changes: Mapping[str, object], step: int, path: Path, stopped: bool
) -> None:
    for name in changes:
        if name in config.kept_by_forks():
            raise ConfigError(
                f"{name}: a fork cannot change it: it determines the layout of {path.name}; train a new run"
            )
    if stopped and not {"observers", "stop_at"} & changes.keys():
        raise ConfigError(
            f"{path} is where its run stopped, at step {step}; change stop_at or observers, or fork an earlier "
            "checkpoint of it"
        )
    if step >= config.total_timesteps:
        raise ConfigError(
            f"{path} is at the end of its run (step {step} of {config.total_timesteps}); "
            "raise total_timesteps, or fork an earlier checkpoint"
        )


def _not_fitting(
    parent: RunDirectory, changes: Mapping[str, Any], path: Path, tree: Mapping[str, Any], trust: bool
) -> Iterator[str]:
    """The changes that a checkpoint's state does not fit, each tried alone; all, where only several together do not.

    Nothing is tried before the first is asked for. A state that fits its own config no better blames no change.
    """
    if not _fits(parent, {}, path, tree, trust):
        return
    misfits = [
        name for name, (_, value) in changes.items() if not _fits(parent, {name: value}, path, tree, trust)
    ]
    yield from misfits or changes


def _fits(
    parent: RunDirectory, change: Mapping[str, object], path: Path, tree: Mapping[str, object], trust: bool
) -> bool:
    try:
        config = load_run_config(parent.config_path, change)
        refuse_untrusted(config, trust, own=change)  # what the user has replaced is still foreign
        watch, trainer = Watch(config), make_trainer(config)
        engine = Engine(trainer, config, parent, QuietDisplay(), watch)
    except UserError:  # alone it makes no sense, so that it says nothing
        return True
    try:
        engine.restore(path, tree)
    except Exception:  # whatever loading a state of another shape raises; it has closed the trainer
        return False
    engine.trainer.close()
    return True


def _listed(manifest: Mapping[str, object], name: str) -> list[Any]:
    entries = manifest.get(name)
    return entries if isinstance(entries, list) else []


def _take_over(
    parent: RunDirectory, run: RunDirectory, path: Path, tree: dict[str, Any], config: Config
) -> None:
    """Give the new run all it needs of the old one, and the checkpoint under its own config."""
    # The best policy so far, unless it is a later one: then the fork finds its own.
    if not take_along(parent, run, tree):
        tree["progress"]["best_return"] = -float("inf")
    tree["policy"]["config"] = config.model_dump(mode="json")
    checkpoints.save_checkpoint(run.checkpoints, tree["progress"]["steps"], tree, keep_of(config))


def _take_journal_over(
    parent: RunDirectory, run: RunDirectory, tree: dict[str, Any], changes: Collection[str]
) -> None:
    """What the parent was told, but for knobs that the fork was given anew."""
    changed = {name.removesuffix(part) for name in changes for part in PARTS if name.endswith(part)}
    journal = Journal(run.journal_path)
    for event in Journal(parent.journal_path).events:
        values = {name: value for name, value in event.values.items() if name not in changed}
        if ARGUMENTS in changes:
            values = {name: value for name, value in values.items() if not name.startswith(ARGUMENT)}
        if values or event.do == "evaluate":  # nothing else changes what a run writes
            journal.append(event._replace(values=values))
    tree.pop("journal", None)
    tree |= journal.mark(tree["progress"]["steps"])


def _told(changes: Mapping[str, tuple[object, object]]) -> str:
    if not changes:
        return ", nothing changed"
    return ": " + ", ".join(f"{name} {before} → {after}" for name, (before, after) in changes.items())
