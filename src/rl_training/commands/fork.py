"""`rl-training fork`: branch a new run off a checkpoint, with changed settings."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import (
    AcceptDamagedLog,
    Json,
    Overrides,
    Quiet,
    Trust,
    new_folder,
    print_result,
    showing,
)

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_DIR_OR_CHECKPOINT",
        help="A run (its latest checkpoint), RUN_DIR/checkpoints/step-N, or zoo:NAME (a new run with its weights).",
    ),
]


def fork(
    source: Source,
    overrides: Overrides = None,
    at: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Branch off after the iteration that reaches this step; it is run again from the checkpoint before.",
        ),
    ] = None,
    run_dir: Annotated[Path | None, new_folder("the fork", "runs/ALGO-ENV-sSEED-fork")] = None,
    trust: Trust = False,
    accept_damaged_log: AcceptDamagedLog = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Branch a new run off a checkpoint, with changed settings.

    \b
    rl-training fork runs/ppo-CartPole-v1-s1 total_timesteps=200_000 learning_rate=1e-4
    rl-training fork runs/ppo-CartPole-v1-s1 --at 30_000 ent_coef=0.02
    """
    from rl_training.tools import forking

    with showing(quiet) as display:
        result = forking.fork_until_stopped(
            source,
            overrides or (),
            at=at,
            run_dir=run_dir,
            display=display,
            trust=trust,
            accept_damaged_log=accept_damaged_log,
        )
    print_result(result, json_)
