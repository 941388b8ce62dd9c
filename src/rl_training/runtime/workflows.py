"""Train, resume, evaluate, load: the functions behind the Python API and the command line."""

from __future__ import annotations

import math
import shlex
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces

from rl_training import parts
from rl_training.allocator import keep_freed_memory
from rl_training.compiling import telling
from rl_training.data import minari_datasets
from rl_training.data.collector import Carry
from rl_training.data.demonstrations import Demonstrations
from rl_training.envs.atari import is_atari
from rl_training.envs.making import (
    environment_protocol,
    observation_space_of,
    sees_pictures,
    why_not_compiled,
    with_lanes,
)
from rl_training.envs.packages import package_of
from rl_training.envs.spaces import JOINT, action_codec, space_from_json
from rl_training.envs.worker import refuse_to_train_in_an_import
from rl_training.envs.wrappers import as_dict
from rl_training.errors import CheckpointError, ConfigError, RunError, StorageError, one_line
from rl_training.monitoring.display import Display, QuietDisplay, script_display
from rl_training.monitoring.trackers import require_trackers
from rl_training.networks.encoders import is_image, without_small_pictures
from rl_training.policies.search import QUIET
from rl_training.registry import home_of, policy_path, require_algorithm, trainer_class
from rl_training.runtime.controls import SCHEDULE, WARMUP, idle_knobs
from rl_training.runtime.disk import disk_line, keep_of
from rl_training.runtime.engine import Engine, Result, is_over
from rl_training.runtime.evaluation import evaluate, record
from rl_training.runtime.observers import Observer, Watch
from rl_training.runtime.paths import keep_to_paths, record_of, recorded_paths
from rl_training.runtime.trainer import AS_BEGUN, Trainer, as_seen
from rl_training.runtime.updates import COMPILED
from rl_training.settings.config import Config
from rl_training.settings.keys import fields_of
from rl_training.settings.loading import dump_config, given_keys, load_config, load_run_config
from rl_training.settings.picture_defaults import difference, with_picture_defaults
from rl_training.settings.yaml import to_yaml
from rl_training.state import chain, checkpoints, files
from rl_training.state.formats import (
    CONVOLUTIONS_REVISION,
    ENCODERS_REVISION,
    FRAMES_REVISION,
    SHARED_REVISION,
)
from rl_training.state.restoring import no_larger_than, taking_over
from rl_training.state.run_directory import ACCEPTED_DAMAGE, RunDirectory, changed_keys, cpu, versions
from rl_training.state.seeding import fold, seed_everything
from rl_training.trees import Arrays, tree_leaves, tree_map
from rl_training.trust import foreign, refuse_untrusted

Which = Literal["last", "best"]
IDENTITY = ("algo", "env_id", "env_ids")  # keys that make another run of a config
# Among the revisions of a manifest.
CONVOLUTIONS, ENCODERS, ENVIRONMENTS = "convolutions", "encoders", "environments"
FRAMES = "frames"
RESUMED_ELSEWHERE = (
    "resumed_elsewhere"  # in the manifest: resumed with other versions, results or on another CPU
)


class Messages(Protocol):
    """What shows a line: the display of a run, or of several seeds."""

    def message(self, text: str) -> None: ...


def train(
    config: Config | Mapping[str, Any],
    *,
    run_dir: str | Path | None = None,
    env: Any = None,
    display: Display | None = None,
    quiet: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Train a config in a new run directory.

    env: used instead of `env_id`: a class or function that makes environments, or an environment to copy.
    observers: custom observers, called after those of the config; pass them to `resume` again.
    quiet, display: hide the progress, or show it with a custom display.
    After Ctrl-C the run is saved and KeyboardInterrupt is raised; after SIGTERM, SystemExit(143).
    """
    with given(env) as name, parts.holding(observers) as names:
        if name is not None:
            config = load_config(config, env_id=name)
        if names:
            loaded: Config = load_config(config)
            config = load_config(loaded, observers=[*loaded.observers, *names])
        return or_stop(train_until_stopped(config, run_dir=run_dir, display=display or script_display(quiet)))


@contextmanager
def given(env: Any) -> Iterator[str | None]:
    """Register a Python environment for the duration of a call, and give the `env_id` that names it."""
    with parts.holding([] if env is None else [env]) as names:
        yield names[0] if names else None


def or_stop(result: Result) -> Result:
    """The result of a finished run; if a signal stopped it, act on the signal now that the run is saved."""
    end_caller(result.signal)
    return result


def end_caller(number: int | None) -> None:
    """Apply the signal's default effect to the caller."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(128 + number)


def train_until_stopped(
    config: Config | Mapping[str, Any],
    *,
    run_dir: str | Path | None = None,
    display: Display | None = None,
    until: float = math.inf,
) -> Result:
    """As `train`, but a signal only ends the run: the result says which one. It may also end at step `until`.

    The trainer and the observers are created first, so that an error in a config, an environment or user code leaves no
    directory behind.
    """
    display = display or QuietDisplay()
    written = config if isinstance(config, Config) else load_config(config)
    with told_of_compiling(display):
        return _train(written, run_dir, display, until)


def _train(written: Config, run_dir: str | Path | None, display: Display, until: float) -> Result:
    config = with_lanes(with_picture_defaults(written, sees_pictures))
    watch, trainer = Watch(config), make_trainer(config)
    threads = trainer.threads
    run = RunDirectory.create(run_dir, default_name=f"{config.algo_name}-{config.env_name}-s{config.seed}")
    with run.lock():
        with begin_run(run, config, threads, record_of(trainer)):
            pass
        for told in filter(
            None, (difference(written, config), lanes_line(written, config), disk_line(trainer, config))
        ):
            display.message(told)
        for text in idle_knobs(config):
            display.warning(text)
        return run_engine(Engine(trainer, config, run, display, watch), threads, until)


def told_of_compiling(display: Messages) -> AbstractContextManager[None]:
    """Say so once if anything is compiled within: that takes seconds in which nothing else is shown."""
    return telling(lambda: display.message("compiling (once)"))


@contextmanager
def begin_run(
    run: RunDirectory, config: Config, threads: int, paths: Mapping[str, Any], **more: Any
) -> Iterator[None]:
    """Write the initial files of a new run; additional ones are written in between.

    The config comes last: with it in place, a killed run can be resumed.
    """
    if run.config_path.exists():  # another process was given the same directory, and was faster
        raise RunError(f"{run.path}: is not empty; resume it, or choose another run directory")
    try:
        run.write_manifest(
            config.model_dump(mode="json"),
            threads=threads,
            keeps_freed_memory=keep_freed_memory(),
            results=revisions(config, threads),
            environment=environment_protocol(config),
            paths=dict(paths),
            resumes_exactly=config.resumes_exactly,
            parts=parts.files(config),
            algorithm=home_of(config.algo),
            **more,
        )
        yield
        files.replace_file(run.config_path, dump_config(config).encode())
    except OSError as error:
        raise StorageError(
            f"cannot write to {run.path}: {error.strerror}; nothing was trained yet"
        ) from error


def lanes_line(written: Config, config: Config) -> str:
    """Line that says which environments `vectorization: auto` chose, and why not compiled ones."""
    if written.vectorization != "auto":
        return ""
    if config.vectorization == COMPILED:
        return f"environments: {COMPILED}"
    return f"environments: {config.vectorization} ({why_not_compiled(config) or AS_BEGUN})"


def resume(
    run_dir: str | Path,
    *,
    env: Any = None,
    display: Display | None = None,
    quiet: bool = False,
    trust: bool = False,
    trust_env: bool = False,
    accept_damaged_log: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Continue a run from its latest intact checkpoint, exactly as if it had never stopped.

    A finished run is left unchanged; one that was killed before its first checkpoint starts from step 0.

    trust: allow its config to import code and to connect to other machines (`trust_env` is the older name).
    accept_damaged_log: continue although metrics.jsonl is damaged, and record it in the manifest.
    env: required if the run was trained with an `env` of Python.
    The other arguments and signals are as in `train`.
    """
    with given(env), parts.holding(observers):
        result = resume_until_stopped(
            run_dir,
            display=display or script_display(quiet),
            trust=trust or trust_env,
            accept_damaged_log=accept_damaged_log,
        )
    return or_stop(result)


def resume_until_stopped(
    run_dir: str | Path,
    *,
    display: Display | None = None,
    trust: bool = False,
    expected: Config | None = None,
    accept_damaged_log: bool = False,
    until: float = math.inf,
) -> Result:
    """As `resume`, but a signal only ends the run: the result says which one. It may also end at step `until`.

    With `expected`, the run must have exactly that config.
    """
    display = display or QuietDisplay()
    run = RunDirectory.open(run_dir)
    with run.lock(), told_of_compiling(display):
        left = look(run, display, trust=trust, expected=expected, accept_damaged_log=accept_damaged_log)
        if left.newest is not None and left.damage is not None and left.is_over:
            latest = dict(left.newest[1]["progress"]["latest"])
            return Result(latest, run.path, left.newest[0], sampled=left.config.samples_evaluations)
        engine = reopen(run, left, display)
        if left.newest is not None:
            if not left.is_over:
                check_best(engine)
            checkpoints.prune(left.newest[0], keep_of(left.config), "segments" in left.newest[1])
            if not left.is_over:
                display.message(f"resumed from step {engine.progress.steps:,}")
        if left.damage is not None:
            run.note(ACCEPTED_DAMAGE, **left.damage)
        if left.changed and not engine.is_over:
            run.note(RESUMED_ELSEWHERE, step=engine.progress.steps, changed=left.changed)
        return run_engine(engine, left.threads, until)


class Left(NamedTuple):
    """What a run directory holds for going on: nothing of it has been run yet."""

    manifest: Mapping[str, Any]
    config: Config
    threads: int
    changed: list[str]  # how this machine differs from the recorded one
    newest: tuple[Path, dict[str, Any]] | None  # the newest intact checkpoint that was looked for
    is_over: bool
    damage: dict[str, Any] | None  # of the log, where it was accepted

    @property
    def paths(self) -> dict[str, Any]:
        return recorded_paths(self.manifest, {} if self.newest is None else self.newest[1])


def look(
    run: RunDirectory,
    display: Display,
    *,
    trust: bool,
    expected: Config | None = None,
    accept_damaged_log: bool = False,
    until: float = math.inf,
) -> Left:
    """Read what a run left behind up to step `until`, and refuse what cannot go on or must not."""
    manifest = run.read_manifest()
    require_algorithm(algorithm_in(manifest), manifest.get("algorithm"))
    config = load_run_config(run.config_path, trust=trust)
    if expected is None:
        refuse_untrusted(config, trust)
    else:
        refuse_other_config(run.config_path, config, expected)
    refuse_changed_config(config, begun_with(run, manifest), run, "manifest.json")
    threads, changed = check_manifest(manifest, config, display)
    found = checkpoints.newest_good_checkpoint(run.checkpoints, warn=display.warning, until=until)
    finished, damage = False, None
    if found is not None:
        with taking_over(found[0]):
            refuse_changed_config(config, saved_config(found[1]["policy"]), run, found[0].name)
            finished = is_over(found[1]["progress"], config)
            damage = check_log(run, found[1], display, accept=accept_damaged_log)
    return Left(manifest, config, threads, changed, found, finished, damage)


def reopen(
    run: RunDirectory,
    left: Left,
    display: Display,
    *,
    original: RunDirectory | None = None,
    anyway: bool = False,
) -> Engine:
    """The engine of a run as its newest checkpoint has it; at step 0, where there is none yet.

    original: the run that `run` is a copy of, which a refusal names with the step of the checkpoint
    anyway: also where its compiled code was another, which gives other numbers
    """
    config, found = left.config, left.newest
    watch, trainer = Watch(config), make_trainer(config)
    if left.is_over:  # nothing more is computed
        trainer.keep_to(left.paths)
    else:
        at = ["--at", str(found[1]["progress"]["steps"])] if original and found else []
        keep_to_paths(trainer, left.paths, (original or run).path, at, anyway=anyway)
    engine = Engine(trainer, config, run, display, watch)
    if found is None:
        display.message("no checkpoint yet: starting from step 0")
        return engine
    if not left.is_over:
        display.message(f"continuing from {found[0].name}: replaying its open episodes")
    with taking_over(found[0]):
        engine.restore(*found)
    return engine


def evaluate_checkpoint(
    path: str | Path,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    sample: bool = False,
    checkpoint: Which = "last",
    trust: bool = False,
    trust_env: bool = False,
    task: str | None = None,
    env: Any = None,
    settings: Sequence[str] | Mapping[str, object] = (),
) -> dict[str, float]:
    """Evaluate the policy of a run directory, a checkpoint or the zoo: mean, deviation and range of its returns.

    Actions are greedy unless `sample`. `episodes` and `seed` default to the config's. A multi-task policy plays all of
    its tasks, or only `task`. A run that was trained with an `env` of Python needs it again.

    settings: of a policy that searches, other settings of its searches than training had last: `num_simulations=200`
    """
    config, agent, saved = load_agent(path, checkpoint, trust=trust or trust_env)
    if settings:
        search_with(config, agent, settings, sample)
    if task is not None:
        config, agent, saved = of_task(config, agent, saved, task)
    refuse_untrusted(config, trust or trust_env, doing="playing")
    with given(env):
        return evaluate(
            agent,
            config,
            episodes=config.eval_episodes if episodes is None else episodes,
            seed=fold(config.seed if seed is None else seed, "evaluate"),
            sample=sample,
            made_for=made_for(saved),
        )


def search_with(
    config: Config, agent: Any, settings: Sequence[str] | Mapping[str, object], sample: bool
) -> None:
    """Give an agent that searches other settings, within what its config allows."""
    known: dict[str, Any] = getattr(agent, "settings", {})
    keys = given_keys(settings)
    if not known:
        raise ConfigError(f"--set: {config.algo_name} acts without a search, so it has no {', '.join(keys)}")

    def refuse_unknown(names: Iterable[str]) -> None:
        for name in names:
            if name not in known:
                raise ConfigError(f"--set: {name} is none of a search's settings: {', '.join(known)}")

    refuse_unknown(key for key in keys if key in IDENTITY)  # before they make another config of it
    # A schedule with a start of its own would have the knob refused, and evaluations have no steps.
    ended = (SCHEDULE, WARMUP)
    plain = {
        name: value for name, value in config.model_dump(mode="json").items() if not name.endswith(ended)
    }
    changed = load_config(plain, settings)
    names = sorted(fields_of(type(config), dict.fromkeys(keys)))
    refuse_unknown(names)
    for name in names:
        if name in QUIET and not sample:
            raise ConfigError(f"--set: {name} has no effect on greedy actions; add --sample (sample=True)")
        known[name] = getattr(changed, name)


def made_for(saved: Mapping[str, Any]) -> tuple[Any, Any]:
    """Observation and action space of a saved policy."""
    return space_from_json(saved["observation_space"]), space_from_json(saved["action_space"])


def record_demonstrations(
    path: str | Path,
    out: str | Path,
    *,
    episodes: int,
    seed: int | None = None,
    sample: bool = False,
    checkpoint: Which = "last",
    trust: bool = False,
    trust_env: bool = False,
    task: str | None = None,
    env: Any = None,
) -> Demonstrations:
    """Record whole episodes of the policy of a run directory or checkpoint as demonstrations.

    `out` is a new file ending in .npz, or `minari:ID`. Actions are greedy unless `sample`. `env` as in
    `evaluate_checkpoint`.
    """
    minari_datasets.refuse_taken(str(out))
    config, agent, saved = of_task(*load_agent(path, checkpoint, trust=trust or trust_env), task)
    refuse_untrusted(config, trust or trust_env, doing="playing")
    if isinstance(made_for(saved)[1], JOINT):
        minari_datasets.refuse_parts(str(out))
    seed = config.seed if seed is None else seed
    how: dict[str, Any] = {"episodes": episodes, "seed": fold(seed, "record"), "sample": sample}
    with given(env):
        played = record(agent, config, **how, made_for=made_for(saved))
    settings = ("algo", "env_kwargs", "max_episode_steps")
    about = {name: getattr(config, name) for name in settings} | {"seed": seed, "sampled": sample}
    demonstrations = Demonstrations(config.env_id, played, about)
    minari_datasets.write(demonstrations, str(out))
    return demonstrations


def load_policy(
    path: str | Path, *, checkpoint: Which = "last", task: str | None = None, trust: bool = False
) -> LoadedPolicy:
    """Load the policy of a run directory, a checkpoint or the zoo, without environments or training state.

    task: the task to play, for multi-task policies.
    trust: allow the run to import custom components of its policy.
    """
    _, agent, saved = of_task(*load_agent(path, checkpoint, trust=trust), task)
    return LoadedPolicy(agent, saved)


def of_task(
    config: Config, agent: Any, saved: Mapping[str, Any], task: str | None
) -> tuple[Config, Any, Mapping[str, Any]]:
    """The result of `load_agent` for one task, which must be named if there are several."""
    if not config.tasks:
        if task is not None:
            raise ConfigError(
                f"{config.algo_name} has a single task, {config.env_id}; leave out --task (task=...)"
            )
        return config, agent, saved
    if task is None and len(config.tasks) > 1:
        raise ConfigError(f"this policy plays {', '.join(config.tasks)}: name one of them (--task, task=...)")
    name = config.tasks[0] if task is None else task
    own = {f"{kind}_space": saved[f"{kind}_space"]["spaces"].get(name) for kind in ("observation", "action")}
    return config.of_task(name), agent.for_task(name), {**saved, **own}


class LoadedPolicy:
    """A trained policy: takes raw observations and returns environment actions."""

    def __init__(self, agent: Any, saved: Mapping[str, Any]) -> None:
        self.agent = agent
        self.observation_space, self.action_space = made_for(saved)
        self.codec = action_codec(self.action_space)
        self.carry: Carry = ()
        self.lanes = 0

    def reset(self) -> None:
        """A new episode begins: forget what the policy carries from step to step."""
        self.lanes = 0

    def act(self, obs: Arrays, *, sample: bool = False) -> Any:
        """The action for one observation, or the actions [B, ...] for a batch of them [B, ...]."""
        obs = as_dict(obs)
        leaves, expected = (dict(tree_leaves(part, "")) for part in (obs, _spaces(self.observation_space)))
        if leaves.keys() != expected.keys():
            given, wanted = (
                ", ".join(name[1:] or "an array" for name in names) for names in (leaves, expected)
            )
            raise ValueError(f"the observation is {given}; the policy expects {wanted}")
        name, space = next(iter(expected.items()))
        single = np.ndim(leaves[name]) == len(space.shape)
        batch = tree_map(lambda part: np.asarray(part)[None] if single else np.asarray(part), obs)
        self._check(batch)
        lanes = len(next(tree_leaves(batch, ""))[1])
        if lanes != self.lanes:
            self.carry, self.lanes = self.agent.initial(lanes), lanes
        acted, self.carry = self.agent.act(batch, self.carry, explore=sample)
        actions = self.codec.to_env(acted["action"])
        return actions[0] if single else actions

    def _check(self, batch: Any) -> None:
        """Small networks act in compiled loops that look at no bounds: what does not fit must not get there."""
        expected = dict(tree_leaves(_spaces(self.observation_space), "observation"))
        for name, part in tree_leaves(batch, "observation"):
            shape = expected[name].shape
            if part.shape[1:] != shape:
                raise ValueError(f"{name} has shape {part.shape[1:]}, the policy expects {shape}")
            if part.dtype.kind not in "fiub":
                raise ValueError(f"{name} is an array of {part.dtype}, the policy expects numbers")
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise ValueError(f"{name} is not finite: it holds a NaN or an infinity")


def _spaces(space: spaces.Space) -> Any:
    """A Dict space as a plain dict of spaces, so that it has the shape of its observations."""
    return {key: _spaces(part) for key, part in space.spaces.items()} if hasattr(space, "spaces") else space


def revisions(config: Config, threads: int = 1) -> dict[str, int]:
    """Revisions of results for this config: see docs/formats.md."""
    own = {"shared": SHARED_REVISION, config.algo: trainer_class(config.algo).revision}
    own |= {ENCODERS: ENCODERS_REVISION} if config.image_encoder == "impala" else {}
    own |= {FRAMES: FRAMES_REVISION} if _plans_on_frames(config) else {}
    own |= {} if config.vectorization == "compiled" else _environments_revision(config)
    return own | ({CONVOLUTIONS: CONVOLUTIONS_REVISION} if threads > 1 else {})


def _plans_on_frames(config: Config) -> bool:
    if not getattr(config, "batch_norm", False):  # a field of planners
        return False
    if is_atari(config.env_id):
        return True
    try:
        space = observation_space_of(config)
    except ConfigError:  # its package is not installed, so that it cannot be trained here either
        return False
    return is_image(space if config.small_pictures else without_small_pictures(space))


def _environments_revision(config: Config) -> dict[str, int]:
    """That of the packages whose environments are not what they were."""
    parts = [config.of_task(name) for name in config.tasks] or [config]
    packages = [package_of(part.env_id) for part in parts]
    latest = max(1 if package is None else package.revision for package in packages)
    return {ENVIRONMENTS: latest} if latest > 1 else {}


def check_manifest(manifest: Mapping[str, Any], config: Config, display: Display) -> tuple[int, list[str]]:
    """The recorded number of threads, and how this machine differs from the recorded one, with a warning if it does."""
    threads = manifest.get("threads")
    if type(threads) is not int or threads < 1:
        raise RunError("manifest.json: damaged (the number of threads is missing)")
    here: dict[str, Any] = {
        f"results of {name}": f"revision {number}" for name, number in revisions(config, threads).items()
    }
    made: dict[str, Any] = {
        f"results of {name}": f"revision {number}" for name, number in _results(manifest, config).items()
    }
    listed = manifest.get("versions")
    made |= listed if isinstance(listed, dict) else {}
    here |= versions() | {"cpu": cpu()}
    made["cpu"] = manifest.get("cpu")
    files_made, files_here = manifest.get("parts"), parts.files(config)
    made |= _short(files_made if isinstance(files_made, dict) else {})
    here |= _short(files_here)
    changed = [
        f"{name} {made[name]} (here {here[name]})"
        for name in here
        if made.get(name) not in (None, here[name])
    ]
    if changed:
        display.warning(
            f"this run was started with {', '.join(changed)}: its results may differ from those of an uninterrupted run"
        )
    return threads, changed


def _short(files: Mapping[str, str]) -> dict[str, str]:
    """The files of a run's own parts, each with the beginning of its SHA-256."""
    return {f"the file {path}": f"of SHA-256 {str(digest)[:12]}" for path, digest in files.items()}


def _results(manifest: Mapping[str, Any], config: Config) -> Mapping[str, Any]:
    """The revisions a run was begun with: the first, where its manifest is older than they are."""
    results = manifest.get("results")
    return {CONVOLUTIONS: 1, ENCODERS: 1, ENVIRONMENTS: 1, FRAMES: 1} | (
        results if isinstance(results, dict) else {"shared": 1, config.algo: 1}
    )


def check_best(engine: Engine) -> None:
    """Refuse a damaged `best/`; a removed one is replaced by the next evaluation."""
    run, progress = engine.run, engine.progress
    if progress.best_return == -math.inf:
        return
    try:
        checkpoints.load_checkpoint(run.best)
    except CheckpointError as error:
        if run.best.exists():
            engine.trainer.close()
            raise CheckpointError(
                f"{error}; the checkpoints are intact: remove {run.best} to continue without it"
            ) from error
        engine.display.warning(f"{run.best}: is missing; the next evaluation becomes the best so far")
        progress.best_return = -math.inf


def check_log(
    run: RunDirectory, tree: Mapping[str, Any], display: Display, *, accept: bool
) -> dict[str, Any] | None:
    """Verify metrics.jsonl up to a checkpoint, once; what was accepted, for the manifest, if damage was.

    The tree's progress then says where the log stands: a log without hashes (of format 1), or a damaged one, is taken
    as it is, and its chain begins behind it.
    """
    progress = tree["progress"]
    counted = chain.mark_of(progress)
    with chain.opened(run.metrics_path) as log:
        if counted is None:
            mark, damage = chain.begin_after(log, progress["metrics_bytes"])
        else:
            damage = chain.verify(log, counted)
            if damage is None:
                return None
            log.seek(0)
            length = chain.end_of(log, counted.value) or counted.length
            log.seek(0)
            mark, _ = chain.begin_after(log, length, progress["steps"])
    if damage is not None and not accept:
        raise RunError(
            f"{run.metrics_path}: {damage}; the checkpoint is intact: --accept-damaged-log "
            "(accept_damaged_log=True) continues from it and keeps the log as it is"
        )
    progress |= {"metrics_bytes": mark.length, "chain": mark.value, "chain_begins": mark.begins}
    if damage is None:
        return None
    display.warning(f"{run.metrics_path}: {damage}; accepted")
    return {"step": progress["steps"], "line": damage.line, "what": damage.what, "kept_bytes": mark.length}


def begun_with(run: RunDirectory, manifest: Mapping[str, Any]) -> Config:
    """The config that a run started with, from its manifest."""
    try:
        return saved_config(manifest)
    except (KeyError, TypeError, ConfigError, CheckpointError) as error:
        raise RunError(f"{run.manifest_path}: damaged (its config: {one_line(error)})") from error


def refuse_changed_config(config: Config, made: Config, run: RunDirectory, source: str) -> None:
    """Refuse an edited config.yaml: a run continues with the config it started with."""
    here, there = config.model_dump(mode="json"), made.model_dump(mode="json")
    changed = changed_keys(here, there)
    if changed:
        settings = [f"{name}={to_yaml(here.get(name))}" for name in changed]
        trust = ["--trust"] if foreign(config) else []
        command = shlex.join(["rl-training", "fork", str(run.path), *settings, *trust])
        forkable = not config.kept_by_forks() & set(changed) and any(run.checkpoints.glob("step-*"))
        instead = f"and change it in a fork: {command}" if forkable else "or train a new run"
        raise ConfigError(
            f"config.yaml: {', '.join(changed)} changed since the run was saved ({source} has "
            f"{', '.join(f'{name}: {to_yaml(there.get(name))[:60]}' for name in changed)}); put it back, "
            f"{instead}"
        )


def refuse_other_config(path: Path, config: Config, expected: Config) -> None:
    """Refuse a child run of an experiment or a study whose config is not the one computed for it."""
    changed = changed_keys(config.model_dump(mode="json"), expected.model_dump(mode="json"))
    if changed:
        advice = f"restore the file, or remove {path.parent}" if path.is_file() else "it is of another run"
        raise RunError(f"{path}: {', '.join(changed)} not as computed for this run; {advice}")


def algorithm_in(saved: Any) -> Any:
    """The name of the algorithm in the config of a manifest or of a policy; None in what is neither."""
    config = saved.get("config") if isinstance(saved, Mapping) else None
    return config.get("algo") if isinstance(config, dict) else None


def saved_config(saved: Mapping[str, Any], trust: bool = False) -> Config:
    """The config that a checkpoint's policy, or a manifest, was saved with."""
    config = saved["config"]
    if "extends" in config:
        raise CheckpointError("damaged: a saved config cannot extend another")
    return load_run_config(config, trust=trust)


def make_trainer(config: Config, kind: Any = None) -> Trainer:
    """Create the trainer of a config, of the given class if there is one."""
    refuse_to_train_in_an_import()
    if config.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device: {config.device} cannot be used here: torch finds no GPU", ("device",))
    require_trackers(config)
    torch.set_num_threads(1)  # the first weights must not depend on what this process did before
    seed_everything(fold(config.seed, "init"))
    return (kind or trainer_class(config.algo))(config)


def load_agent(
    path: str | Path, checkpoint: Which, device: str | None = None, *, trust: bool = False
) -> tuple[Config, Any, Mapping[str, Any]]:
    """Config, agent and saved policy of a checkpoint.

    User code of the agent is imported only with `trust`; environments are left to the caller.
    """
    refuse_to_train_in_an_import()
    path = policy_path(path)
    saved = _read_policy(path, checkpoint)
    require_algorithm(algorithm_in(saved), _manifest_near(path).get("algorithm"))
    with taking_over(path):
        config = saved_config(saved, trust)
        refuse_untrusted(config, trust, doing="acting")
        if device is None and config.device != "cpu" and not torch.cuda.is_available():
            device = "cpu"  # a policy may act where it was not trained
        config = config.model_copy(update={} if device is None else {"device": device})
        with no_larger_than(saved["agent"]):
            seen, actions = made_for(saved)
            agent = trainer_class(config.algo).make_agent(config, as_seen(config, seen), actions)
        agent.load_state_dict(saved["agent"])
        return config, agent, saved


def _manifest_near(path: Path) -> Mapping[str, Any]:
    """The manifest of a run, or of the run that holds a checkpoint; {} if there is none."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "manifest.json").is_file():
            return RunDirectory(folder).read_manifest()
    return {}


def run_engine(engine: Engine, threads: int, until: float = math.inf) -> Result:
    # The order of floating-point sums depends on the number of threads: it is part of a run's identity.
    torch.set_num_threads(threads)
    keep_freed_memory()
    return engine.train(until)


def _read_policy(path: Path, checkpoint: Which) -> Mapping[str, Any]:
    if (path / "state.json").exists():
        return checkpoints.load_checkpoint(path, only="policy")["policy"]
    run = RunDirectory.open(path)
    if checkpoint == "best":
        return checkpoints.load_checkpoint(run.best, only="policy")["policy"]
    found = checkpoints.newest_good_checkpoint(
        run.checkpoints, only="policy", warn=lambda text: warnings.warn(text, stacklevel=4)
    )
    if found is None:
        raise CheckpointError(f"{path} has no checkpoint yet")
    return found[1]["policy"]
