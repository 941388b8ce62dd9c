"""`rl-training debug`: look at one iteration of a run from inside."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import RunDir, Trust
from rl_training.terminal import printable_line


def debug(
    run_dir: RunDir,
    at: Annotated[int, typer.Option(min=1, help="Go to the iteration that reaches this step.")],
    dump: Annotated[
        Path | None, typer.Option(help="Write batch, losses and gradients to this new .npz file; no prompt.")
    ] = None,
    episode: Annotated[
        Path | None,
        typer.Option(help="Write a video of the policy there to this new .mp4 or .gif file; no prompt."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Go to an iteration of a run's past and look at its batch, losses and gradients, in a Python prompt.

    The steps since the nearest checkpoint are run again in a scratch copy; the run is only read.

    \b
    rl-training debug runs/ppo-CartPole-v1-s1 --at 30_000
    rl-training debug runs/ppo-CartPole-v1-s1 --at 30_000 --dump step.npz
    """
    from rl_training.tools import debugging

    record = debugging.debug(run_dir, at, dump=dump, episode=episode, trust=trust)
    if dump is None and episode is None:
        return
    for line in debugging.told(record):
        print(printable_line(line))
    for path in filter(None, (dump, episode)):
        print(f"written    {printable_line(path)}")
