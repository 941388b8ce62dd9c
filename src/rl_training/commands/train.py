"""`rl-training train`: train an algorithm from a config, with one seed or with several."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.options import (
    ConfigSource,
    Json,
    Overrides,
    Quiet,
    new_folder,
    pasted,
    print_json,
    print_result,
    print_stopped,
    showing,
)
from rl_training.errors import ConfigError, UserError
from rl_training.terminal import printable_line

if TYPE_CHECKING:
    from rl_training.settings.config import Config
    from rl_training.tools.experiments import Experiment


def train(
    config: ConfigSource,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, new_folder("the run", "runs/ALGO-ENV-sSEED")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Train several seeds as one experiment, in runs/ALGO-ENV-seeds: 1-5 or 1,2,7."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of seeds to run in parallel, with --seeds.")] = 1,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train an algorithm from a config.

    With --seeds each seed is a run of its own; after a kill, the same command resumes them all.

    \b
    rl-training train ppo/cartpole
    rl-training train ppo/cartpole --seeds 1-5 --jobs 2
    rl-training train my.yaml seed=2 clip_coef_schedule='{type: linear, start: 0.3, end: 0.1}'
    """
    from rl_training.settings.loading import load_config, located

    checked = load_config(config, overrides or ())
    if seeds is None and jobs > 1:
        raise UserError("--jobs is for several runs: add --seeds, such as --seeds 1-5")
    from rl_training.runtime import workflows

    try:
        if seeds is not None:
            train_seeds(checked, overrides or (), seeds, jobs, run_dir, json_, quiet)
            return
        with showing(quiet) as display:
            result = workflows.train_until_stopped(checked, run_dir=run_dir, display=display)
    except ConfigError as error:
        raise located(error, config, overrides or ()) from error
    print_result(result, json_)


def train_seeds(
    config: "Config",
    overrides: Sequence[str],
    seeds: str,
    jobs: int,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train every seed, and sum up; exits with 1 when one failed, and 128 + signal when a signal stopped them."""
    from rl_training.tools import experiments
    from rl_training.tools.experiment_display import make_experiment_display

    if any(override.partition("=")[0].strip() == "seed" for override in overrides):
        raise UserError("seed=… and --seeds cannot be combined")
    experiment = experiments.train_seeds_until_stopped(
        config,
        experiments.parse_seeds(seeds),
        jobs=jobs,
        run_dir=run_dir,
        display=make_experiment_display(quiet),
    )
    if as_json:
        print_json(results_of(experiment))
    else:
        print_summary(experiment)
    if experiment.interrupted:
        raise typer.Exit(128 + experiment.interrupted)
    if any(run.status == "failed" for run in experiment.runs):
        raise typer.Exit(1)


def results_of(experiment: "Experiment") -> dict[str, Any]:
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
        print_stopped(experiment.interrupted, "run the same command again")
    else:
        print(f"compare it   rl-training compare {pasted(experiment.path)}")
