"""The one training loop: an iteration is a function of the state and the iteration's number.

    seed → knobs → iterate → log? → evaluate? → checkpoint?

A trainer says what an iteration is; everything that makes a run trustworthy happens here, once for all
algorithms: seeding, cadences, metrics, evaluation, checkpoints, signals, and refusing what is not finite.
"""

from __future__ import annotations

import gc
import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rl_training.envs.spaces import space_to_json
from rl_training.errors import EnvironmentFault, NonFiniteError, ObserverError, StorageError
from rl_training.monitoring.display import Display, Pace
from rl_training.monitoring.trackers import Trackers
from rl_training.processes import cpu_seconds, peak_memory
from rl_training.runtime.controls import Controls, Knobs
from rl_training.runtime.disk import keep_of
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.metrics import Metrics, MetricsWindow
from rl_training.runtime.observers import Watch
from rl_training.runtime.paths import path_lines, record_of
from rl_training.runtime.steering import Steering
from rl_training.runtime.trainer import EVALUATIONS, Trainer
from rl_training.runtime.updates import COMPILED
from rl_training.settings.config import Config
from rl_training.state import chain, checkpoints, files
from rl_training.state.files import AppendLog, HeldDirectory
from rl_training.state.formats import DIGEST, STOPPED
from rl_training.state.leaves import are_finite, is_whole, require
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold, seed_everything
from rl_training.state.segments import SegmentStore
from rl_training.state.stateful import Stateful
from rl_training.trust import foreign

LOOK_EVERY = 0.1  # seconds between looks at CPU time and memory: each costs as much as the rest of a log line


@dataclass(frozen=True)
class Result:
    """How a run ended: its final metrics, where everything lies, and the signal that stopped it, if one did.

    `signal` is also one that came too late to stop the run, which ended anyway: the caller may have to end too.
    """

    metrics: dict[str, float]
    run_dir: Path
    checkpoint_path: Path
    interrupted: int | None = None
    sampled: bool = False  # whether evaluations drew their actions
    signal: int | None = None
    stopped: str = ""  # why an observer, or `stop_at`, ended it early


class Progress(Stateful):
    """How far a run is, and when each thing that happens now and then was last done."""

    def __init__(self, info_metrics: Sequence[str] = ()) -> None:
        self.iteration = 0
        self.steps = 0
        self.done_at = {"log": 0, "evaluate": 0, "checkpoint": 0}
        self.metrics_bytes = 0
        # The newest hash in the log, and the number of bytes before its first one.
        self.chain, self.chain_begins = chain.START, 0
        self.best_return = -math.inf
        self.latest: dict[str, float] = {}  # every metric as last logged
        self.window = MetricsWindow(info_metrics)

    def check_state(self) -> None:
        counts = (self.iteration, self.steps, self.metrics_bytes, self.chain_begins)
        require(all(is_whole(count) for count in counts), "Progress: a count that is negative or too large")
        done_at = self.done_at.keys() == Progress().done_at.keys()
        done_at = done_at and all(is_whole(step, high=self.steps + 1) for step in self.done_at.values())
        require(done_at, "Progress.done_at: no steps at which things were done")
        require(not math.isnan(self.best_return), "Progress.best_return: not a number")
        require(are_finite(self.latest.values()), "Progress.latest: not a number")

    def is_over(self, total: int) -> bool:
        """Whether the run has reached its end, or was asked to stop and has come to one."""
        return self.steps >= total or STOPPED in self.latest

    def due(self, what: str, every: int, total: int) -> bool:
        """Whether `every` steps have passed since a multiple of it; the end of the run is always due.

        Cadences count steps and never seconds, so that two runs do the same things at the same steps.
        """
        due = self.steps // every > self.done_at[what] // every or self.steps >= total
        if due:
            self.done_at[what] = self.steps
        return due


class Engine:
    """One run: its trainer, its progress and its files."""

    def __init__(
        self,
        trainer: Trainer,
        config: Config,
        run: RunDirectory,
        display: Display,
        watch: Watch,
    ) -> None:
        self.trainer, self.config, self.run, self.display = trainer, config, run, display
        self.keep = keep_of(config)
        self.controls = Controls.of(config)
        self.steering = Steering(config, self.controls, run)
        self.progress = Progress(config.info_metrics)
        self.watch = watch
        self.last_good: Path | None = None
        self.store = SegmentStore(run.replay)
        trainer.keep_segments_in(self.store)

    def restore(self, path: Path, tree: Mapping[str, Any]) -> None:
        """Go back to a checkpoint; what does not fit closes the trainer."""
        self.store.entries = dict(tree.get("segments", {}))
        try:
            self.steering.journal.check(tree.get("journal", {}))
            self.progress.load_state_dict(tree["progress"])
            self._restore_watch(tree)
            self.trainer.agent.load_state_dict(tree["policy"]["agent"])
            self.trainer.load_state_dict(tree["trainer"])
            self.controls.restore(tree.get("decided", {}))
        except BaseException:
            self.trainer.close()
            raise
        self.last_good = path

    def _restore_watch(self, tree: Mapping[str, Any]) -> None:
        """What the observers remember; in a fork with others they begin anew, and what stopped the run is no more."""
        before = tree["policy"]["config"]
        if any(before.get(key) != value for key, value in watched(self.config).items()):
            self.progress.latest.pop(STOPPED, None)
        elif "watch" in tree:
            self.watch.load_state_dict(tree["watch"])

    def move_to(self, run: RunDirectory, checkpoint: Path) -> None:
        """Go on in another run directory, which holds the checkpoint this run was restored from."""
        self.run, self.store.folder, self.last_good = run, run.replay, checkpoint

    def train(self, until: float = math.inf) -> Result:
        """Run to the end, to the iteration that reaches `until`, or until a signal asks to stop after this one."""
        config, progress, total = self.config, self.progress, self.config.total_timesteps
        with stop_signals() as stop, self.running(tracked=True):
            self.advance(stop, until)
            for text in self.controls.unheard() if progress.is_over(total) else ():
                self.display.warning(text)
            self.save_here()  # a signal came between two checkpoints, or someone removed the last one
        assert self.last_good is not None
        interrupted = None if progress.is_over(total) else stop.number
        sampled = config.samples_evaluations
        latest, stopped = dict(progress.latest), self.watch.reason if STOPPED in progress.latest else ""
        return Result(latest, self.run.path, self.last_good, interrupted, sampled, stop.number, stopped)

    @contextmanager
    def running(self, tracked: bool = False) -> Iterator[None]:
        """The run's files and environments, held open while it goes on, and let go of however that ends.

        tracked: show metrics in the trackers of the config, and listen to the run's owner.
        """
        config, progress, total = self.config, self.progress, self.config.total_timesteps
        with self._storing():
            self.metrics_log = AppendLog(self.run.metrics_path)
            self.metrics_log.truncate(progress.metrics_bytes)
            self.timing_log = AppendLog(self.run.timing_path)
            self.held = HeldDirectory(self.run.path)
            beginnings = (self.run.config_path, self.run.manifest_path)
            self.beginnings = {path: path.read_bytes() for path in beginnings if path.exists()}
        self.trackers = Trackers(self.display.warning)
        self.began, self.began_at, self.cpu_began = time.perf_counter(), progress.steps, cpu_seconds()
        self.pace, self.look_again_at, self.cpu_seconds, self.peak_memory = Pace(total), 0.0, 0.0, 0.0
        self.spent = dict.fromkeys(("collect", "learn", "evaluate", "checkpoint"), 0.0)
        try:
            self.steering.follow(self.run)
            if tracked and not progress.is_over(total):
                self.trackers.start(config, self.run)
                with self._storing():
                    self.steering.listen(self.run)
            self.display.start(config, self.run.path, progress.steps, total)
            for line in (
                *self.trainer.encoders(),
                *path_lines(self.trainer),
                *rounded_up(config, progress.steps),
            ):
                self.display.message(line)
            if not progress.is_over(total):
                self._tell()
            with nothing_loaded_is_garbage():
                yield
        except EnvironmentFault as fault:
            fault.step, fault.going_on = progress.steps, self._going_on()
            raise
        finally:
            try:
                self._close()
            finally:  # a panel that is left running would catch what is printed later
                self.display.finish(progress.latest)

    def advance(self, stop: StopSignals, until: float = math.inf) -> None:
        """Iterate until `until` steps are taken, the run is over, or a signal asks to stop."""
        while self.progress.steps < until and not self.is_over and not self._asked_to_stop(stop):
            self._iterate()

    @property
    def is_over(self) -> bool:
        return self.progress.is_over(self.config.total_timesteps)

    def save_here(self) -> Path:
        """A checkpoint of the run as it stands, unless it has one at this step."""
        self._refuse_lost_directory()
        if self.progress.done_at["checkpoint"] != self.progress.steps or not self._is_saved():
            self._checkpoint()
        assert self.last_good is not None
        return self.last_good

    def _going_on(self) -> str:
        """What is left of a run that fails now, and the command that continues it."""
        step = int(self.last_good.name.rpartition("-")[2]) if self.last_good else 0
        left = f"continues from step {step}" if step else "starts again: there is no checkpoint yet"
        return f"`{resume_command(self.config, self.run.path)}` {left}"

    def _close(self) -> None:
        """Let go of files, environments and worker processes, however the run ended."""
        self.trainer.close()
        self.steering.close()
        self.trackers.close(finished=self.progress.is_over(self.config.total_timesteps))
        for log in (self.metrics_log, self.timing_log):
            with self._storing():
                log.close()
        self.held.close()

    def _asked_to_stop(self, stop: StopSignals) -> bool:
        """Do what the run's owner asks for between two iterations; whether that is to stop, or a signal came."""
        while stop.number is None and self.steering.has_news():
            with self._storing():
                due = self.steering.due(self.progress.iteration, self.progress.steps, self.display.message)
            if "checkpoint" in due:
                self._checkpoint()
            if "stop" in due:
                stop.number = signal.SIGTERM  # of the same effect: everything is saved, to be resumed
            if not self.steering.paused:
                break
            time.sleep(PAUSE)
        return stop.number is not None

    def iterate(self, knobs: Knobs) -> Metrics:
        """The trainer's iteration; tools that look into one put their own in its place."""
        return self.trainer.iterate(knobs)

    def _iterate(self) -> None:
        config, progress, total = self.config, self.progress, self.config.total_timesteps
        if self.steering.wants_evaluation(progress.steps, progress.done_at["evaluate"]):
            progress.done_at["evaluate"] = progress.steps
            with self._spending("evaluate"):
                self._evaluate()
            self._tell()
        seed_everything(fold(config.seed, "iteration", progress.iteration))
        knobs, began = self.controls.at(progress.steps), time.perf_counter()
        if config.env_kwargs_schedule:
            self.trainer.begin_with(knobs.arguments_after)
        with self._spending("learn"):
            try:
                metrics = self.iterate(knobs)
            except NonFiniteError as error:
                error.step = progress.steps + (error.step or 0)
                error.env_id, error.largest_reward = config.env_id, self.trainer.largest_reward()
                raise
        collect = metrics.gathered - (began if metrics.began is None else metrics.began)
        self.spent["collect"] += collect
        self.spent["learn"] -= collect
        progress.iteration += 1
        progress.steps += metrics.steps
        progress.window.add(metrics)
        self.pace.mark(progress.steps, time.perf_counter())
        if progress.due("log", config.log_every, total):
            self._log(metrics.standing)
        if progress.due("evaluate", config.eval_every, total):
            with self._spending("evaluate"):
                self._evaluate()
        self._tell()
        if self.watch.reason and progress.steps < total:
            self._end_early(metrics.standing)
        if self._checkpoint_is_due():
            with self._spending("checkpoint"):
                self._checkpoint()
            self._tell()

    def _checkpoint_is_due(self) -> bool:
        """Whether a checkpoint is due at this step; if so, the observers shall hear of it."""
        progress, total = self.progress, self.config.total_timesteps
        end = progress.steps if progress.is_over(total) else total
        due = progress.due("checkpoint", self.config.checkpoint_every, end)
        if due:
            self.watch.owe("checkpoint", progress.steps, {})
        return due

    def _end_early(self, standing: Mapping[str, float]) -> None:
        """What the end of a run has: a log line and an evaluation at its last step, and why it is the last."""
        steps, done_at = self.progress.steps, self.progress.done_at
        if done_at["log"] != steps:
            done_at["log"] = steps
            self._log(standing)
        if done_at["evaluate"] != steps:
            done_at["evaluate"] = steps
            with self._spending("evaluate"):
                self._evaluate()
        self._write({STOPPED: 1.0}, {"stopped_by": self.watch.reason})
        self._tell()
        self.display.message(f"stopped at step {steps}: {self.watch.reason}")

    def _tell(self) -> None:
        """Let the observers hear of what happened; one that fails ends the run, with all of it saved."""
        try:
            self.watch.tell(self.last_good)
        except ObserverError as error:
            if self.progress.done_at["checkpoint"] != self.progress.steps:
                self._checkpoint_is_due()  # what is saved here stands for it
            self._checkpoint()
            error.going_on = self._going_on()
            raise

    def _log(self, standing: Mapping[str, float]) -> None:
        line = self.progress.window.take() | self.controls.used(self.progress.steps) | dict(standing)
        self._write(line)
        self.controls.hear(line)
        self.watch.owe("log", self.progress.steps, line)

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        """Count the seconds of the clock that something takes."""
        began = time.perf_counter()
        yield
        self.spent[what] += time.perf_counter() - began

    def _write(self, values: Mapping[str, float], marks: Mapping[str, str] | None = None) -> None:
        """One line of metrics.jsonl, which holds nothing that depends on the clock, and one of timing.jsonl.

        `marks` are words about the state: they are in the line, and nowhere else. The digest of the parameters is one.
        """
        for name, value in values.items():
            if not math.isfinite(value):
                raise NonFiniteError(name, step=self.progress.steps)
        seconds = time.perf_counter() - self.began
        speed = (self.progress.steps - self.began_at) / seconds
        timing = {"wall_seconds": round(seconds, 3), "steps_per_second": round(speed, 1)}
        timing |= {f"{name}_seconds": round(spent, 3) for name, spent in self.spent.items()}
        if seconds >= self.look_again_at or self.is_over:
            self.look_again_at = seconds + LOOK_EVERY
            # A process that has ended says no more: what was seen of it stays.
            self.cpu_seconds = max(self.cpu_seconds, cpu_seconds() - self.cpu_began)
            self.peak_memory = max(self.peak_memory, peak_memory() or 0.0)
        timing |= {"cpu_seconds": round(self.cpu_seconds, 2)}
        if self.peak_memory:
            timing |= {"peak_memory_mb": round(self.peak_memory, 1)}
        timing |= self.trainer.timing()
        self._refuse_lost_directory()
        with self._storing():
            said: dict[str, float | str] = {"step": self.progress.steps, **values, **(marks or {})}
            said[DIGEST] = self.trainer.digest()
            line, self.progress.chain = chain.linked(self.progress.chain, said)
            self.metrics_log.write(line)
            self.timing_log.write(_line({"step": self.progress.steps, **timing}))
            self.metrics_log.flush()
            self.timing_log.flush()
        self.trackers.write(self.progress.steps, values)
        self.progress.latest |= values
        self.display.update(self.progress.steps, values, timing | self.pace.timing())

    def _evaluate(self) -> None:
        """A line of its own: training's lines are the same however often a run is evaluated."""
        config, steps = self.config, self.progress.steps
        seed = fold(config.seed, "evaluate", steps)
        episodes, sample = config.eval_episodes, config.samples_evaluations
        compiled = self.trainer.paths().get(EVALUATIONS) == COMPILED
        how: dict[str, Any] = {"episodes": episodes, "seed": seed, "sample": sample, "compiled": compiled}
        result = evaluate(self.trainer.agent, config, **how)
        line = {f"eval/{name}": value for name, value in result.items()}
        self._write(line)
        self.controls.hear(line)
        self.watch.owe("evaluation", steps, line)
        if result["mean_return"] > self.progress.best_return:
            self.progress.best_return = result["mean_return"]
            self._refuse_lost_directory()
            with self._storing():
                checkpoints.save_policy(self.run.best, steps, {"policy": self._policy()})

    def _checkpoint(self) -> None:
        self._refuse_lost_directory()
        with self._storing():
            self._restore_files()
            lost = self.store.forget_missing()
            self.metrics_log.fsync()
            self.timing_log.fsync()
            self.progress.metrics_bytes = self.metrics_log.tell()
            self.progress.done_at["checkpoint"] = self.progress.steps
            self.save()
        if lost:
            assert self.last_good is not None
            raise StorageError(
                f"{self.store.folder}: {lost} segments were removed during the run; not lost: "
                f"{self.last_good.name}, saved whole from memory; lost: older checkpoints that need them; "
                f"continue with {resume_command(self.config, self.run.path)}"
            )

    def save(self) -> None:
        """Write all of the run's state as a checkpoint."""
        tree = {
            "policy": self._policy(),
            "trainer": self.trainer.state_dict(),
            "progress": self.progress.state_dict(),
            "paths": record_of(self.trainer),
            **({"decided": self.controls.state()} if self.controls.decided else {}),
            **self.steering.journal.mark(self.progress.steps),
            "segments": self.store.entries,  # the trainer's state has brought them up to date
        }
        if self.watch.observers:
            tree["watch"] = self.watch.state_dict()
        self.last_good = checkpoints.save_checkpoint(
            self.run.checkpoints, self.progress.steps, tree, self.keep
        )

    def _is_saved(self) -> bool:
        return self.last_good is not None and self.last_good.is_dir()

    def _restore_files(self) -> None:
        """Write again what someone removed of the run's own files, so that a checkpoint can be resumed."""
        gone = [log.path for log in (self.metrics_log, self.timing_log) if log.restore()]
        gone += [self.steering.journal.path] if self.steering.journal.restore() else []
        for path, content in self.beginnings.items():
            if not path.exists():
                files.replace_file(path, content)
                gone.append(path)
        for path in gone:
            self.display.warning(f"{path}: was removed or replaced during the run; rewritten")

    def _refuse_lost_directory(self) -> None:
        """End where the run directory is no longer: what is written to its name would be no run."""
        if self.held.is_here():
            return
        moved = self.held.moved_to()
        if moved is None:
            raise StorageError(
                f"{self.run.path}: was removed during the run; lost: its checkpoints, metrics and config; "
                "nothing of it is left"
            )
        name = self.last_good.name if self.last_good else None
        kept = (
            f"all up to {name}" if name and (moved / "checkpoints" / name).is_dir() else "config and metrics"
        )
        raise StorageError(
            f"{self.run.path}: was moved to {moved} during the run; lost: the steps since its last "
            f"checkpoint; not lost: {kept}; continue with {resume_command(self.config, moved)}"
        )

    def _policy(self) -> dict[str, Any]:
        """All that is needed to act again: the agent's state, and what its networks are built from."""
        return {
            "config": self.config.model_dump(mode="json"),
            "observation_space": space_to_json(self.trainer.observation_space),
            "action_space": space_to_json(self.trainer.action_space),
            "agent": self.trainer.agent.state_dict(),
        }

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            left = (
                f"the last good checkpoint is {self.last_good}"
                if self.last_good
                else "no checkpoint was written yet"
            )
            raise StorageError(f"cannot write to {self.run.path}: {error}; {left}") from error


def is_over(progress: Mapping[str, Any], config: Config) -> bool:
    """Whether the run whose saved progress this is has come to its end."""
    return progress["steps"] >= config.total_timesteps or STOPPED in progress["latest"]


def watched(config: Config) -> dict[str, Any]:
    """The settings that say who watches a run."""
    return {key: config.model_dump(mode="json")[key] for key in ("observers", "stop_at")}


def rounded_up(config: Config, steps: int = 0) -> list[str]:
    """A line that says where a run at this step will end, unless it is at `total_timesteps` exactly."""
    per, total = config.steps_per_iteration, config.total_timesteps
    end = steps + -(-(total - steps) // per) * per
    if end <= total or steps >= total:
        return []
    return [f"total_timesteps {total:,} is rounded up to {end:,}: an iteration has {per:,} steps"]


def resume_command(config: Config, run_dir: Path) -> str:
    """The command that continues a run, to be pasted into a shell."""
    trust = " --trust" if foreign(config) else ""
    return f"rl-training resume {shlex.quote(str(run_dir))}{trust}"


def _line(values: Mapping[str, float]) -> bytes:
    return chain.ENCODER.encode(values).encode() + b"\n"


@contextmanager
def nothing_loaded_is_garbage() -> Iterator[None]:
    """Keep the garbage collector from looking through what was there before: modules, classes and compiled functions.

    One look takes as long as thousands of steps in compiled environments. What is made within is collected as always.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


SAME_REQUEST = 1.0  # seconds
PAUSE = 0.05  # seconds between two looks of a paused run at its commands


class StopSignals:
    """The signal that asked to stop, once one did."""

    number: int | None = None


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """SIGINT and SIGTERM ask once politely; a second one acts as it would have done without us.

    `timeout` and its like send one to the process and one to its group: what comes within a second of the first is the
    same request.
    """
    stop, asked = StopSignals(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if stop.number is None:
            stop.number, asked = number, time.monotonic()
        elif time.monotonic() - asked > SAME_REQUEST:
            for each, handler in before.items():
                signal.signal(each, handler)
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
