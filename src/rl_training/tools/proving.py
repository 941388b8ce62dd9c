"""Whether a change helps a run: forks with it against forks without it, from before the fault, over several seeds.

Both arms branch off the same step and differ in the change alone; each pair has a seed of its own for all that follows.
Their policies are then evaluated, on the same episodes and as their runs do it, and the probability that a changed run
is better is reported with its interval (reporting/statistics.py). Nothing is claimed beyond these seeds and steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import NonFiniteError
from rl_training.monitoring.display import Display, QuietDisplay, SilentDisplay
from rl_training.reporting.statistics import Interval, improvement_interval
from rl_training.runtime.controls import SCHEDULE, WARMUP
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.workflows import end_caller, load_agent, made_for, train_until_stopped
from rl_training.settings.loading import load_run_config
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold
from rl_training.tools.forking import fork_until_stopped
from rl_training.tools.travelling import saved_at
from rl_training.trust import refuse_untrusted

MARGIN = 10  # a tenth of a run lies between a fork and the line that shows the fault
FIRST_SEED = 1001  # of the pairs, unlike any that a preset was chosen or reported on


class Proof(NamedTuple):
    """What came of a change."""

    step: int  # where the forks began
    steps: int  # how long they were
    without: list[float]  # returns, seed by seed
    with_change: list[float]
    improvement: Interval


def prove(
    run_dir: str | Path,
    changes: Mapping[str, Any],
    *,
    step: int,
    seeds: int = 5,
    steps: int | None = None,
    episodes: int = 20,
    trust: bool = False,
    display: Display | None = None,
) -> Proof:
    """Try a change from before step `step` on; `steps` is a quarter of the run unless given.

    Forks begin a tenth of the run before that step, for a fault is there before a line shows it; steps are run
    again where no checkpoint is kept. What is seen in the first tenth of a run is tried from step 0; so are settings
    other than knobs, which may change what a state looks like.
    """
    display, run = display or QuietDisplay(), RunDirectory.open(run_dir)
    config = load_run_config(run.config_path, trust=trust)
    refuse_untrusted(config, trust)
    steps = steps or max(1, config.total_timesteps // 4)
    margin = max(config.log_every, config.total_timesteps // MARGIN)
    begin = min(step - margin, config.total_timesteps - steps)
    knobs = {name + part for name in type(config).controls for part in ("", SCHEDULE, WARMUP)}
    begin = begin if begin >= config.total_timesteps / 10 and knobs.issuperset(changes) else 0
    arms: list[list[float]] = [[], []]
    with ExitStack() as scratch:
        source = scratch.enter_context(saved_at(run.path, begin, trust=trust)) if begin else None
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            for returns, settings in zip(arms, ({}, dict(changes)), strict=True):
                arm = source or run.config_path, {**settings, "seed": seed}, begin + steps
                returns.append(_score(*arm, episodes, config.max_episode_steps, trust))
            display.message(f"seed {seed}: {arms[0][-1]:.4g} without the change, {arms[1][-1]:.4g} with it")
    interval = improvement_interval([np.array(arms[1])], [np.array(arms[0])])
    return Proof(begin, steps, arms[0], arms[1], interval)


def _score(
    source: Path, changes: dict[str, Any], until: int, episodes: int, limit: int | None, trust: bool
) -> float:
    """The return of a fork of a checkpoint, or of a new run of a config, at step `until`.

    A run whose numbers are not finite has the lowest there is.

    limit: `max_episode_steps` of the episodes, alike in both arms: returns of shorter ones are no improvement
    """
    with TemporaryDirectory(prefix="rl-training-") as folder:
        quiet: dict[str, Any] = {"run_dir": Path(folder) / "run", "display": SilentDisplay(), "until": until}
        try:
            if source.is_dir():
                result = fork_until_stopped(source, changes, trust=trust, **quiet)
            else:
                result = train_until_stopped(load_run_config(source, changes, trust=trust), **quiet)
        except NonFiniteError:
            return -np.finfo(np.float64).max
        end_caller(result.signal)
        config, agent, saved = load_agent(result.run_dir, "last", trust=trust)
        config = config.model_copy(update={"max_episode_steps": limit})
        how: dict[str, Any] = {"episodes": episodes, "seed": fold(0, "evaluate"), "sample": result.sampled}
        return evaluate(agent, config, made_for=made_for(saved), **how)["mean_return"]
