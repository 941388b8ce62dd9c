"""`rl-training schedule`: plot the knobs of a config over the run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Overrides, print_warning
from rl_training.terminal import printable_line

Source = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG_OR_RUN_DIR", help="A shipped config, a file, or a run: its knobs as they were."
    ),
]


def schedule(
    config: Source,
    overrides: Overrides = None,
    png: Annotated[Path | None, typer.Option(help="Also write the plot to this file (extra `plot`).")] = None,
) -> None:
    """Plot the knobs of a config over the run, before training, or those of a run as they were."""
    from rl_training.reporting import schedule_plot
    from rl_training.runtime.controls import idle_knobs
    from rl_training.settings.loading import load_config
    from rl_training.settings.picture_defaults import with_picture_defaults

    if (Path(config) / "config.yaml").is_file():
        _of_run(Path(config), overrides, png)
        return
    checked = with_picture_defaults(load_config(config, overrides or ()))
    for text in idle_knobs(checked):
        print(f"warning: {printable_line(text)}", file=sys.stderr)
    if png is not None:  # first, so that what goes wrong with it is not lost below the text
        schedule_plot.draw_png(checked, png)
    print(schedule_plot.draw_text(checked))
    if png is not None:
        print(f"written: {printable_line(png)}")


def _of_run(path: Path, overrides: list[str] | None, png: Path | None) -> None:
    from rl_training.errors import UserError
    from rl_training.reporting import schedule_plot
    from rl_training.reporting.records import Log
    from rl_training.runtime.controls import ARGUMENT, ARGUMENTS
    from rl_training.settings.loading import load_run_config
    from rl_training.state.journal import Journal
    from rl_training.state.run_directory import RunDirectory

    if overrides:
        raise UserError(f"{path}: is a run, which went as it went; leave out {overrides[0]}")
    run = RunDirectory.open(path)
    config = load_run_config(run.config_path)
    knobs = [*type(config).controls, *(ARGUMENT + name for name in getattr(config, ARGUMENTS) or ())]
    log = Log(run.metrics_path)
    curves = schedule_plot.logged_curves(knobs, log)
    if log.damage:
        print_warning(log.damage)
    if png is not None:
        schedule_plot.draw_png(config, png, curves)
    print(schedule_plot.draw_text(config, curves))
    for number, event in enumerate(Journal(run.journal_path).events):
        print(("" if number else "\ntold while it trained\n") + f"  at step {event.step:,}: {event.told()}")
    if png is not None:
        print(f"written: {printable_line(png)}")
