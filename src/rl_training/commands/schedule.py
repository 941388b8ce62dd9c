"""`rl-training schedule`: plot the knobs of a config over the run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import ConfigSource, Overrides
from rl_training.terminal import printable_line


def schedule(
    config: ConfigSource,
    overrides: Overrides = None,
    png: Annotated[Path | None, typer.Option(help="Also write the plot to this file (extra `plot`).")] = None,
) -> None:
    """Plot the knobs of a config over the run, before training."""
    from rl_training.reporting import schedule_plot
    from rl_training.runtime.controls import idle_knobs
    from rl_training.settings.loading import load_config
    from rl_training.settings.picture_defaults import with_picture_defaults

    checked = with_picture_defaults(load_config(config, overrides or ()))
    for text in idle_knobs(checked):
        print(f"warning: {printable_line(text)}", file=sys.stderr)
    if png is not None:  # first, so that what goes wrong with it is not lost below the text
        schedule_plot.draw_png(checked, png)
    print(schedule_plot.draw_text(checked))
    if png is not None:
        print(f"written: {printable_line(png)}")
