"""Population-based training on exact forks (Jaderberg et al. 2017, arXiv:1711.09846).

    DIR/evolve.json                    how many members, and how long a generation is
    DIR/base.yaml, DIR/space.yaml      the config that every member starts from, and the knobs in which they differ
    DIR/generations.json               of each generation: values, parent and score of every member
    DIR/generation-003/member-05/      a run directory like any other; those of the last generation are kept
    DIR/winner.yaml                    at the end: a config that trains the winner's policy from step 0

All members have the seed of the config and differ in knobs alone. Each generation is a set of forks: a member goes on
from itself, or, if it was among the worst, from one of the best with other values. A fork takes everything over,
environments and replay included, and new values are a step in the schedules of its config. So the config of a member
holds its whole ancestry, and training it from step 0 gives the same policy, byte for byte.

What happens is a function of the directory's settings: a search that was killed goes on as if it had not been.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.envs.making import sees_pictures, with_lanes
from rl_training.envs.worker import refuse_to_train_in_an_import
from rl_training.errors import ConfigError, NonFiniteError, RunError, one_line
from rl_training.extras import require_extra
from rl_training.monitoring.display import Display, QuietDisplay, SilentDisplay, number, script_display
from rl_training.runtime.controls import SCHEDULE, WARMUP
from rl_training.runtime.workflows import (
    end_caller,
    refuse_other_config,
    resume_until_stopped,
    train_until_stopped,
)
from rl_training.settings.config import Config
from rl_training.settings.keys import accepted_keys
from rl_training.settings.loading import dump_config, load_config, load_run_config
from rl_training.settings.picture_defaults import with_picture_defaults
from rl_training.settings.yaml import to_yaml
from rl_training.state import files
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold
from rl_training.tools.forking import fork_until_stopped
from rl_training.trust import refuse_untrusted
from rl_training.tuning.folders import begin_folder, read_settings
from rl_training.tuning.space import Choice, Fixed, Range, Space, read_space
from rl_training.tuning.study import RETURN

FACTORS = (0.8, 1.2)  # of Jaderberg et al., by which a value is perturbed
SHARE = 4  # the worst fourth copies the best fourth

Values = dict[str, Any]


class Settings(NamedTuple):
    """How a population evolves."""

    members: int
    interval: int  # steps of a generation


class Member(NamedTuple):
    """One member of a generation."""

    history: list[tuple[int, Values]]  # from which step on its knobs had which values
    parent: int | None  # its number in the generation before
    score: float | None = None  # None: it failed, or is not there yet

    @property
    def values(self) -> Values:
        return self.history[-1][1]


class Evolved(NamedTuple):
    """How a search ended, or where it stands if a signal stopped it."""

    folder: Path
    generations: list[list[Member]]
    winner: Path | None
    interrupted: int | None


def begin_evolution(
    config: Config, space: str | Path, settings: Settings, run_dir: str | Path | None = None
) -> Path:
    """Make the directory of a new search; all that is wrong with its parts is said before."""
    refuse_to_train_in_an_import()
    require_extra("tune", "evolve")
    config = with_lanes(with_picture_defaults(config, sees_pictures))
    if not config.resumes_exactly:
        raise ConfigError("order: arrival cannot be repeated, and evolve needs exact forks", ("order",))
    for name in ("stop_at", "observers"):
        if getattr(config, name):
            raise ConfigError(f"{name}: a member that stops early ends no generation; remove it", (name,))
    config = load_config(config, {"eval_interval": settings.interval})
    read_knobs(space, config)
    return begin_folder("evolve", config, space, settings._asdict(), run_dir)


def read_knobs(path: str | Path, base: Config) -> Space:
    """A search space over knobs that are free to be stepped. Raises ConfigError."""
    space, names = read_space(path, base), accepted_keys(type(base))
    for key, node in space.entries.items():
        name = names[key]
        control = type(base).controls.get(name)
        if control is None:
            raise ConfigError(f"{path}: {key} is no knob: members of a population differ in knobs only")
        if control.sizes:
            raise ConfigError(f"{path}: {key} sizes memory, and members share the shape of their state")
        if getattr(base, name + SCHEDULE) is not None or getattr(base, name + WARMUP):
            raise ConfigError(
                f"{path}: {key} has a schedule or a warm-up in the config; remove it: {name}{SCHEDULE}=null"
            )
        numbers = isinstance(node, Choice) and all(map(_is_number, node.options))
        if not isinstance(node, Range) and not numbers:
            raise ConfigError(f"{path}: {key} must be a range or a list of numbers")
    return Space({names[key]: node for key, node in space.entries.items()})


def evolve(
    config: Config | Mapping[str, object],
    space: str | Path,
    *,
    members: int = 8,
    interval: int,
    run_dir: str | Path | None = None,
    quiet: bool = False,
) -> Evolved:
    """Train a population in a new directory; `space` is a YAML file with ranges of knobs.

    Ctrl-C saves everything and raises KeyboardInterrupt; `rl-training evolve FOLDER` continues.
    """
    checked = config if isinstance(config, Config) else load_config(config)
    folder = begin_evolution(checked, space, Settings(members, interval), run_dir)
    done = run_evolution(folder, display=script_display(quiet), trust=True)
    end_caller(done.interrupted)
    return done


def is_evolution(path: str | Path) -> bool:
    return Path(path, "evolve.json").is_file()


def run_evolution(folder: str | Path, *, display: Display | None = None, trust: bool = False) -> Evolved:
    """Go on with a search to its end."""
    require_extra("tune", "evolve")
    folder, display = Path(folder), display or QuietDisplay()
    settings = _read_settings(folder)
    with RunDirectory(folder).lock():
        base = load_run_config(folder / "base.yaml", trust=trust)
        refuse_untrusted(base, trust)
        space = read_knobs(folder / "space.yaml", base)
        return Evolution(folder, base, space, settings, display, trust).run()


class Evolution:
    """The search itself."""

    def __init__(
        self, folder: Path, base: Config, space: Space, settings: Settings, display: Display, trust: bool
    ) -> None:
        self.folder, self.base, self.space, self.settings, self.display = (
            folder,
            base,
            space,
            settings,
            display,
        )
        self.trust = trust
        self.generations = _read_generations(folder)

    def run(self) -> Evolved:
        while self.steps() < self.base.total_timesteps:
            generation = len(self.generations)
            planned = self.planned(generation)
            for old in range(generation - 1):  # what the generation before has taken over
                shutil.rmtree(self.place(old), ignore_errors=True)
            scored = []
            for index, member in enumerate(planned):
                interrupted, score = self.train(generation, index, member)
                if interrupted:
                    return Evolved(self.folder, self.generations, None, interrupted)
                scored.append(member._replace(score=score))
            if all(member.score is None for member in scored):
                raise RunError(f"{self.place(generation)}: every member failed; narrow the space")
            self.generations.append(scored)
            _write(
                self.folder / "generations.json", [[m._asdict() for m in each] for each in self.generations]
            )
            self.display.message(_told(generation, scored))
        return Evolved(self.folder, self.generations, self.crown(), None)

    def place(self, generation: int, index: int | None = None) -> Path:
        folder = self.folder / f"generation-{generation:03d}"
        return folder if index is None else folder / f"member-{index:02d}"

    def planned(self, generation: int) -> list[Member]:
        """Who begins a generation: a function of the one before and of the config's seed."""
        if generation == 0:
            return [Member([(0, values)], None) for values in self.first_values()]
        before = self.generations[-1]
        ranked = sorted(range(len(before)), key=lambda i: (-_score(before[i]), i))
        count = max(1, len(before) // SHARE)
        failed = {i for i, member in enumerate(before) if member.score is None}
        best = [i for i in ranked[:count] if i not in failed]
        worst = failed | set(ranked[-count:] if len(before) > 1 else ())
        begins = self.steps() + 1
        planned = []
        for index, member in enumerate(before):
            if index not in worst:
                planned.append(member._replace(parent=index, score=None))
                continue
            random = np.random.default_rng(fold(self.base.seed, "evolve", generation, index))
            parent = best[int(random.integers(len(best)))]
            values = {
                name: self.explored(name, value, random) for name, value in before[parent].values.items()
            }
            planned.append(Member([*before[parent].history, (begins, values)], parent))
        return planned

    def first_values(self) -> list[Values]:
        """Optuna's draws."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.RandomSampler(seed=fold(self.base.seed, "evolve") % 2**32)
        study = optuna.create_study(sampler=sampler)
        return [self.space.ask(study.ask()) for _ in range(self.settings.members)]

    def steps(self) -> int:
        """At which step the generation that was trained last ended: an iteration may go beyond its interval."""
        if not self.generations:
            return 0
        trained = next(i for i, member in enumerate(self.generations[-1]) if member.score is not None)
        folder = self.place(len(self.generations) - 1, trained) / "checkpoints"
        return max(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))

    def explored(self, name: str, value: Any, random: np.random.Generator) -> Any:
        """A value next to another: a fifth higher or lower and a unit at least, or the next of a list."""
        node, up = self.space.entries[name], bool(random.integers(2))
        if isinstance(node, Choice):
            options = [option.value for option in node.options]
            place = options.index(value) + (1 if up else -1)
            return options[min(max(place, 0), len(options) - 1)]
        unit = node.step or (1 if node.whole else 0)
        moved = value * FACTORS[up]
        if abs(moved - value) < unit:
            moved = value + (unit if up else -unit)
        if unit:  # on the grid, which may end below `high`
            last = math.floor((node.high - node.low) / unit + 1e-9)
            moved = node.low + min(max(round((moved - node.low) / unit), 0), last) * unit
        moved = min(max(moved, node.low), node.high)
        return round(moved) if node.whole else float(moved)

    def config(self, member: Member) -> Config:
        """The config of a member: its ancestry as step schedules."""
        changes: Values = {}
        for name in self.space.entries:
            points = [[begins, values[name]] for begins, values in member.history]
            kept = [point for n, point in enumerate(points) if n == 0 or point[1] != points[n - 1][1]]
            changes[name] = points[0][1]
            changes[name + SCHEDULE] = {"type": "step", "points": kept} if len(kept) > 1 else None
        config: Config = load_config(self.base, changes)
        return config

    def train(self, generation: int, index: int, member: Member) -> tuple[int | None, float | None]:
        """Bring a member to the end of its generation: the signal that stopped it, if one did, and its score."""
        path, config = self.place(generation, index), self.config(member)
        until = (self.steps() // self.settings.interval + 1) * self.settings.interval
        how: Values = {"display": SilentDisplay(), "until": until}
        try:
            if (path / "config.yaml").exists():
                result = resume_until_stopped(path, expected=config, **how)
            else:
                shutil.rmtree(path, ignore_errors=True)  # what a kill left of its start
                if member.parent is None:
                    result = train_until_stopped(config, run_dir=path, **how)
                else:
                    parent = self.place(generation - 1, member.parent)
                    expected = self.config(self.generations[-1][member.parent])
                    written = parent / "config.yaml"  # may have been written by someone else
                    refuse_other_config(written, load_run_config(written), expected)
                    changes = self.changes(config)
                    result = fork_until_stopped(parent, changes, run_dir=path, trust=self.trust, **how)
        except NonFiniteError as error:  # a value to keep away from, and no reason to stop
            self.display.warning(f"generation {generation}, member {index}: {one_line(error)}")
            return None, None
        if result.signal is not None:
            return result.signal, None
        return None, result.metrics[RETURN]

    def changes(self, config: Config) -> Values:
        names = [name + part for name in self.space.entries for part in ("", SCHEDULE)]
        return {name: getattr(config, name) for name in names}

    def crown(self) -> Path:
        """Write down how the best member came about."""
        last = self.generations[-1]
        index = max(range(len(last)), key=lambda i: (_score(last[i]), -i))
        config, run = self.config(last[index]), self.place(len(self.generations) - 1, index)
        about = (
            f"# {config.algo_name} on {config.env_id}: member {index} of {len(last)}, "
            f"return {number(_score(last[index]))} at its end.\n"
            f"# Training this from step 0 gives the policy in {run.parent.name}/{run.name}, byte for byte.\n"
        )
        files.replace_file(self.folder / "winner.yaml", (about + dump_config(config)).encode())
        return run


def _is_number(option: object) -> bool:
    return isinstance(option, Fixed) and type(option.value) in (int, float)


def _score(member: Member) -> float:
    return -math.inf if member.score is None else member.score


def _told(generation: int, members: list[Member]) -> str:
    best = max(range(len(members)), key=lambda i: (_score(members[i]), -i))
    values = ", ".join(
        f"{name} {value if isinstance(value, int) else to_yaml(float(f'{value:.4g}'))}"
        for name, value in members[best].values.items()
    )
    scores = [member.score for member in members if member.score is not None]
    return (
        f"generation {generation:<3}  best {number(max(scores))} (member {best}: {values}), "
        f"mean {number(sum(scores) / len(scores))}, {len(members) - len(scores)} failed"
    )


def _write(path: Path, value: object) -> None:
    files.replace_file(path, json.dumps(value, indent=1).encode() + b"\n")


def _read_settings(folder: Path) -> Settings:
    saved = read_settings(folder, "evolve", "population")
    settings = Settings(**{name: saved.get(name, 0) for name in Settings._fields})
    if any(type(value) is not int or value < 1 for value in settings):
        raise RunError(f"{folder / 'evolve.json'}: damaged (of another format)")
    return settings


def _read_generations(folder: Path) -> list[list[Member]]:
    try:
        saved = json.loads((folder / "generations.json").read_bytes())
        return [
            [
                Member(
                    [(int(step), dict(values)) for step, values in member["history"]],
                    member["parent"],
                    member["score"],
                )
                for member in members
            ]
            for members in saved
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / 'generations.json'}: damaged ({one_line(error)})") from error
