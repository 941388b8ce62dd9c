"""`rl-training train --seeds`: several seeds of one config as one experiment."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.commands.options import pasted, print_json, signal_name
from rl_training.errors import UserError
from rl_training.terminal import printable_line

if TYPE_CHECKING:
    from rl_training.tools.seeds import Experiment


def train_seeds(
    config: Any,
    overrides: Sequence[str],
    seeds: str,
    jobs: int,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train every seed, and sum up; exits with 1 when one failed, and 128 + signal when a signal stopped them."""
    from rl_training.tools import seeds as experiments
    from rl_training.tools.seeds_display import make_seeds_display

    if any(override.partition("=")[0].strip() == "seed" for override in overrides):
        raise UserError("seed=… and --seeds: give one of the two")
    experiment = experiments.train_seeds(
        config,
        experiments.parse_seeds(seeds),
        jobs=jobs,
        run_dir=run_dir,
        display=make_seeds_display(quiet),
    )
    if as_json:
        print_json(plain(experiment))
    else:
        print_summary(experiment)
    if experiment.interrupted:
        raise typer.Exit(128 + experiment.interrupted)
    if any(run.status == "failed" for run in experiment.runs):
        raise typer.Exit(1)


def plain(experiment: "Experiment") -> dict[str, Any]:
    names = ("seed", "status", "steps", "metrics", "problem")
    return {
        "experiment": str(experiment.path),
        "interrupted": experiment.interrupted,
        "runs": [
            {"run_dir": str(run.path)} | {name: getattr(run, name) for name in names}
            for run in experiment.runs
        ],
    }


def print_summary(experiment: "Experiment") -> None:
    from rl_training.monitoring.display import number

    scores = []
    for run in experiment.runs:
        score = run.metrics.get("eval/mean_return")
        words = f"{number(score):>8}" if score is not None and run.status == "done" else f"{run.status:>8}"
        if run.status == "done" and score is not None:
            scores.append(score)
        problem = f"  {run.problem}" if run.problem else ""
        print(f"seed {run.seed:<4} {words}  {printable_line(run.path)}{printable_line(problem)}")
    if scores:
        import numpy as np

        from rl_training.reporting.statistics import iqm_interval

        value, low, high = (number(float(part)) for part in iqm_interval([np.array(scores)]))
        interval = f", 95 % interval {low} to {high}" if len(scores) > 1 else ""
        print(f"return       interquartile mean {value} of {len(scores)} runs{interval}")
        actions = "sampled" if experiment.config.samples_evaluations else "greedy"
        print(f"             (evaluations at the end, {actions} actions)")
    if experiment.interrupted:
        print(f"stopped by {signal_name(experiment.interrupted)}; everything up to here is saved")
        print("go on with   the same command")
    else:
        print(f"compare it   rl-training compare {pasted(experiment.path)}")
