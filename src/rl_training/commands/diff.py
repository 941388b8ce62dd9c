"""`rl-training diff`: the first step at which two runs differ."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Json, RunDir, Trust, print_json
from rl_training.terminal import printable_line


def diff(
    run_dir: RunDir,
    other: Annotated[Path | None, typer.Argument(metavar="OTHER", help="Another run.")] = None,
    with_this_version: Annotated[
        bool,
        typer.Option(
            "--with-this-version", help="Compare the run with what the installed version computes, instead."
        ),
    ] = False,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Find the first step at which two runs differ, and what differs there first.

    Exit code 1 if they differ. Both runs are only read; the iterations in question are run again in scratch copies.

    \b
    rl-training diff runs/ppo-CartPole-v1-s1 runs/ppo-CartPole-v1-s1-2
    rl-training diff runs/ppo-CartPole-v1-s1 --with-this-version
    """
    from rl_training.errors import UserError
    from rl_training.tools import diffing

    if (other is None) != with_this_version:
        raise UserError("diff compares two runs, or one run --with-this-version")
    if other is None:
        found = diffing.diff_with_this_version(run_dir, trust=trust)
    else:
        found = diffing.diff(run_dir, other, trust=trust)
    if json_:
        print_json({**found._asdict(), "differ": found.differ})
    else:
        for line in found.told():
            print(printable_line(line))
    raise typer.Exit(1 if found.differ else 0)
