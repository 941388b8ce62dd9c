"""A study: trials of one config with values from a search space, in one resumable directory.

    DIR/tune.json         how many trials, and how they are searched
    DIR/base.yaml         the config that every trial starts from
    DIR/space.yaml        what is tried
    DIR/study.db          Optuna's storage: every trial, its values and its evaluations
    DIR/trials/0007/      the run of a trial, a run directory like any other
    DIR/best.yaml         at the end: the config with the best values
    DIR/importance.png    at the end: how much each value mattered

A trial that was under way when the process died is a run that can be resumed, and is: a study that was killed proposes
and finds what it would have without.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.envs.making import sees_pictures, with_lanes
from rl_training.envs.worker import refuse_to_train_in_an_import
from rl_training.errors import ConfigError, NonFiniteError, RunError, UntrustedError, one_line
from rl_training.extras import require_extra
from rl_training.monitoring.display import Display, QuietDisplay, number, script_display
from rl_training.runtime.workflows import end_caller, resume_until_stopped, train_until_stopped
from rl_training.settings.config import Config
from rl_training.settings.loading import dump_config, load_config, load_run_config
from rl_training.settings.picture_defaults import with_picture_defaults
from rl_training.settings.yaml import to_yaml
from rl_training.state import files
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold
from rl_training.trust import refuse_untrusted
from rl_training.tuning.folders import begin_folder, read_settings, write_settings
from rl_training.tuning.space import Space, read_space

RETURN = "eval/mean_return"


class Settings(NamedTuple):
    """How a study searches."""

    trials: int
    startup: int = (
        5  # trials with values drawn at random, and runs that are never cut short, before it learns
    )
    pruning: bool = True
    halving: int = 0  # reduction factor η: each rung keeps the best 1/η of the trials; 0 turns halving off

    def rungs(self, total: int) -> list[int]:
        """The steps at which trials are compared: total / ηᵏ, down to one where all η-fold halvings have begun."""
        count = 0
        while self.halving and self.halving ** (count + 1) <= self.trials:
            count += 1
        return [max(1, total // self.halving**k) for k in range(count, 0, -1)] + [total]


class Tuned(NamedTuple):
    """How a study ended, or where it stands if a signal stopped it."""

    folder: Path
    trials: list[dict[str, Any]]  # number, state, return, values, in order
    best: dict[str, Any] | None
    importance: dict[str, float]
    interrupted: int | None


def begin_study(
    config: Config, space: str | Path, settings: Settings, run_dir: str | Path | None = None
) -> Path:
    """Make the directory of a new study; all that is wrong with its parts is said before."""
    refuse_to_train_in_an_import()
    require_extra("tune", "tune")
    if settings.halving == 1 or settings.halving < 0:
        raise ConfigError(
            f"halving {settings.halving}: must be 0 (off) or at least 2: each rung keeps the best 1/halving"
        )
    config = with_lanes(with_picture_defaults(config, sees_pictures))
    if settings.halving:  # trials are compared at rungs, by their evaluations there
        config = load_config(config, {"eval_interval": settings.rungs(config.total_timesteps)[0]})
    read_space(space, config)
    return begin_folder("tune", config, space, settings._asdict(), run_dir)


def tune(
    config: Config | Mapping[str, object],
    space: str | Path,
    *,
    trials: int,
    startup: int = 5,
    pruning: bool = True,
    halving: int = 0,
    run_dir: str | Path | None = None,
    quiet: bool = False,
) -> Tuned:
    """Search for hyper-parameters of a config in a new directory; `space` is a YAML file with the search space.

    Ctrl-C saves the study and raises KeyboardInterrupt; `rl-training tune FOLDER` continues it.
    """
    checked = config if isinstance(config, Config) else load_config(config)
    folder = begin_study(checked, space, Settings(trials, startup, pruning, halving), run_dir)
    done = run_study(folder, trials=trials, display=script_display(quiet), trust=True)
    end_caller(done.interrupted)
    return done


def is_study(path: str | Path) -> bool:
    return Path(path, "tune.json").is_file()


def run_study(
    folder: str | Path,
    *,
    trials: int | None = None,
    display: Display | None = None,
    trust: bool = False,
    trust_env: bool = False,
) -> Tuned:
    """Go on with a study until it has so many trials (those it was begun with, unless given); then sum it up."""
    require_extra("tune", "tune")
    folder, display = Path(folder), display or QuietDisplay()
    settings = _read_settings(folder)
    with RunDirectory(folder).lock():
        if trials is not None and trials != settings.trials:
            if settings.halving:
                raise RunError(
                    f"{folder}: --trials cannot change: its rungs are for {settings.trials} trials"
                )
            settings = settings._replace(trials=trials)
            write_settings(folder, "tune", settings._asdict())
        trust = trust or trust_env
        base = load_run_config(folder / "base.yaml", trust=trust)
        refuse_untrusted(base, trust)
        study = Study(folder, base, read_space(folder / "space.yaml", base), settings, display, trust)
        display.message(f"search in {folder}")
        with _quiet():
            interrupted = study.halve() if settings.halving else study.search()
            return study.summed_up(interrupted)


class Study:
    """The search itself."""

    def __init__(
        self, folder: Path, base: Config, space: Space, settings: Settings, display: Display, trust: bool
    ) -> None:
        import optuna

        self.folder, self.base, self.space, self.settings, self.display = (
            folder,
            base,
            space,
            settings,
            display,
        )
        self.said: set[str] = set()  # what trials have warned of
        self.trust = trust
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=settings.startup)
        self.optuna = optuna
        self.study = optuna.create_study(
            storage=f"sqlite:///{folder.resolve() / 'study.db'}",
            study_name="tune",
            direction="maximize",
            pruner=pruner if settings.pruning else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )

    def search(self) -> int | None:
        """Trials until there are enough; the signal that stopped them, if one did."""
        finished = self.optuna.trial.TrialState.is_finished
        while sum(finished(trial.state) for trial in self.study.trials) < self.settings.trials:
            trial = self.next_trial()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = self.space.ask(trial)
            interrupted = self.try_out(trial, values)
            if interrupted:
                return interrupted
            self.display.message(_told(self._trial(trial.number)))
        return None

    def halve(self) -> int | None:
        """Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943); the signal that stopped it, if one did.

        All trials are trained to the first rung, the best 1/η of them from there to the next, and so on to the end. A
        trial stops at its rung with a checkpoint; if promoted, it resumes there, so no step is trained twice.
        """
        running = self.optuna.trial.TrialState.RUNNING
        while len(self.study.trials) < self.settings.trials:
            self.study.ask()
        rungs = self.settings.rungs(self.base.total_timesteps)
        for level, rung in enumerate(rungs):
            for left in [trial for trial in self.study.trials if trial.state == running]:
                trial = self.optuna.trial.Trial(self.study, left._trial_id)
                # One at the last rung that is still running was reported there, but a kill came before its end.
                if rung == rungs[-1] or rung not in left.intermediate_values:
                    self.study.sampler = self.sampler(left.number)
                    interrupted = self.try_out(trial, self.space.ask(trial), until=rung)
                    if interrupted:
                        return interrupted
            # Of all that came here, those of an earlier process included.
            reached = [trial for trial in self.study.trials if rung in trial.intermediate_values]
            ranked = sorted(reached, key=lambda trial: (-trial.intermediate_values[rung], trial.number))
            kept = {
                trial.number
                for trial in ranked[: max(1, self.settings.trials // self.settings.halving ** (level + 1))]
            }
            for behind in ranked if rung < rungs[-1] else ():
                if behind.number not in kept and behind.state == running:
                    self.study.tell(behind.number, state=self.optuna.trial.TrialState.PRUNED)
                    self.display.message(_told(self._trial(behind.number)))
        return None

    def sampler(self, position: int) -> Any:
        """A sampler that is a function of the trial's number."""
        return self.optuna.samplers.TPESampler(
            seed=fold(self.base.seed, "trial", position) % 2**32, n_startup_trials=self.settings.startup
        )

    def next_trial(self) -> Any:
        """The trial that a kill left open, or a new one, with a sampler that is a function of the trial's number."""
        trials = self.study.trials
        left = [trial for trial in trials if trial.state == self.optuna.trial.TrialState.RUNNING]
        position = left[0].number if left else len(trials)
        self.study.sampler = self.sampler(position)
        return self.optuna.trial.Trial(self.study, left[0]._trial_id) if left else self.study.ask()

    def try_out(self, trial: Any, values: Mapping[str, Any], until: float = math.inf) -> int | None:
        """Train with these values, to step `until`, and tell the study; the signal that stopped the run, if one did."""
        states = self.optuna.trial.TrialState
        path = self.folder / "trials" / f"{trial.number:04d}"
        trial.set_user_attr("values", dict(values))
        try:
            config = self.config(values)
            watch = Watch(None if self.settings.halving else trial, config.total_timesteps, self.said)
            if (path / "config.yaml").exists():
                result = resume_until_stopped(path, display=watch, expected=config, until=until)
            else:
                shutil.rmtree(path, ignore_errors=True)  # what a kill left of its start
                result = train_until_stopped(config, run_dir=path, display=watch, until=until)
        except self.optuna.TrialPruned:
            self.study.tell(trial, state=states.PRUNED)
        except NonFiniteError as error:  # a value to keep away from, and no reason to stop
            trial.set_user_attr("why", one_line(error))
            self.study.tell(trial, state=states.PRUNED)
        except UntrustedError:  # a question to the user, and no fault of the trial's
            raise
        except ConfigError as error:
            trial.set_user_attr("why", one_line(error))
            self.study.tell(trial, state=states.FAIL)
        else:
            if result.interrupted:
                return result.interrupted
            if self.settings.halving:
                trial.report(result.metrics[RETURN], int(until))
            if until >= config.total_timesteps:
                self.study.tell(trial, result.metrics[RETURN])
                if self.settings.halving:
                    self.display.message(_told(self._trial(trial.number)))
            return result.signal  # one that came while the trial ended by itself
        return None

    def config(self, values: Mapping[str, object]) -> Config:
        """The config of a trial: a space comes from the directory too, and may reach what its base does not."""
        config = self.space.config(self.base, values)
        refuse_untrusted(config, self.trust)
        return config

    def summed_up(self, interrupted: int | None) -> Tuned:
        trials = [self._trial(trial.number) for trial in self.study.trials]
        complete = [trial for trial in trials if trial["state"] == "complete"]
        best = max(complete, key=lambda trial: trial["return"], default=None)
        importance: dict[str, float] = {}
        if interrupted is None and best is not None:
            text = _about(best, len(trials), self.base)
            best_config = self.config(best["values"])
            files.replace_file(self.folder / "best.yaml", (text + dump_config(best_config)).encode())
            importance = self.importance()
            if importance:
                from rl_training.tuning.importance_plot import draw_importance

                draw_importance(importance, trials, self.folder / "importance.png")
        return Tuned(self.folder, trials, best, importance, interrupted)

    def importance(self) -> dict[str, float]:
        """How much each value mattered, largest first; nothing where too few trials were completed to say."""
        try:
            importances = self.optuna.importance.get_param_importances(self.study)
        except (ValueError, RuntimeError):
            return {}
        return {name: float(share) for name, share in importances.items()}

    def _trial(self, position: int) -> dict[str, Any]:
        trial = self.study.trials[position]
        last = trial.intermediate_values.get(trial.last_step) if trial.last_step is not None else None
        return {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "return": trial.value if trial.value is not None else last,
            "step": trial.last_step,
            "values": trial.user_attrs.get("values", {}),
            "why": trial.user_attrs.get("why"),
        }


class Watch(QuietDisplay):
    """Reports a run's evaluations to its trial, if there is one to hear, and ends the run where they are too low."""

    def __init__(self, trial: Any, total: int, said: set[str]) -> None:
        self.trial, self.total, self.said = trial, total, said
        if trial is not None:
            self.reported = max(trial.storage.get_trial(trial._trial_id).intermediate_values, default=-1)

    def warning(self, text: str) -> None:
        if text not in self.said:
            super().warning(text)
        self.said.add(text)

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        # What was reported before a kill comes again, and was judged then.
        if self.trial is None or RETURN not in metrics or steps < self.reported:
            return
        if steps > self.reported:
            self.trial.report(metrics[RETURN], steps)
        if steps < self.total and self.trial.should_prune():
            import optuna

            raise optuna.TrialPruned


def _told(trial: Mapping[str, Any]) -> str:
    """A trial in one line."""
    values = ", ".join(f"{name} {to_yaml(_short(value))}" for name, value in trial["values"].items())
    if trial["state"] == "complete":
        outcome = f"return {number(trial['return'])}"
    elif trial["why"]:
        outcome = f"stopped: {trial['why']}"
    else:
        outcome = f"cut short at step {trial['step']:,} with {number(trial['return'])}"
    return f"trial {trial['number']:<3}  {outcome}  ({values})"


def _short(value: object) -> Any:
    """A value with four digits, to be read and not to be used."""
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _about(best: Mapping[str, Any], trials: int, base: Config) -> str:
    """The comment that opens best.yaml."""
    values = "".join(f"#   {name}: {to_yaml(_short(value))}\n" for name, value in best["values"].items())
    head = f"# {base.algo_name} on {base.env_id}, the best of {trials} trials: trial {best['number']}"
    return f"{head}, return {number(best['return'])} at its end.\n# Found:\n{values}"


def _read_settings(folder: Path) -> Settings:
    saved = read_settings(folder, "tune", "study")
    settings = Settings(**{name: saved.get(name, 0) for name in Settings._fields})
    counts = (settings.trials, settings.startup, settings.halving)
    whole = all(type(count) is int and count >= 0 for count in counts) and settings.halving != 1
    if not whole or settings.pruning not in (True, False):
        raise RunError(f"{folder / 'tune.json'}: damaged (of another format)")
    return settings


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna warns about what is experimental in it, which is not for our user."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        yield
