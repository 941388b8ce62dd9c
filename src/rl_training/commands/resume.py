"""`rl-training resume`: continue a run."""

import shlex
from typing import Annotated

import typer

from rl_training.commands.options import AcceptDamagedLog, Json, Quiet, RunDir, Trust, print_result, showing
from rl_training.errors import UserError


def resume(
    run_dir: RunDir,
    changes: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    trust: Trust = False,
    accept_damaged_log: AcceptDamagedLog = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its latest intact checkpoint, exactly as if it had never stopped."""
    if changes:
        command = shlex.join(["rl-training", "fork", str(run_dir), *changes])
        raise UserError(f"resume continues a run as it is; to change something, fork it: {command}")
    from rl_training.runtime import workflows

    with showing(quiet) as display:
        result = workflows.resume_until_stopped(
            run_dir, display=display, trust=trust, accept_damaged_log=accept_damaged_log
        )
    print_result(result, json_)
