"""`rl-training compare`: compare runs, with confidence intervals."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Json, print_json, print_warning
from rl_training.errors import UserError
from rl_training.terminal import printable_line

SCORE = "eval/mean_return"


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Runs, or folders of runs.")],
    metric: Annotated[str, typer.Option(help="Metric by which runs are scored, at their last step.")] = SCORE,
    at: Annotated[
        int | None, typer.Option(min=0, help="Score runs at this step instead of the last.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write an HTML page with curves and profiles.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Also write the plot to this file (extra `plot`).")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label of a RUN_DIR; once for each, in their order."),
    ] = None,
    json_: Json = False,
) -> None:
    """Compare runs: interquartile means with 95 % confidence intervals, curves, profiles.

    Runs whose configs differ only in the seed are grouped.

    \b
    rl-training compare runs/ppo-CartPole-v1-seeds runs/a2c-CartPole-v1-seeds
    rl-training compare runs --html compare.html --png compare.png
    rl-training compare runs/a runs/b --label baseline --label mine
    """
    from rl_training.reporting import comparison
    from rl_training.reporting.records import find_runs

    if label and len(label) != len(runs):
        raise UserError(f"{len(label)} --label for {len(runs)} RUN_DIR; give one for each")
    labels = dict(zip(runs, label, strict=True)) if label else None
    warn = print_warning
    records = find_runs(runs, warn, only=comparison.compared_metrics(metric))
    compared = comparison.compare(records, metric=metric, at=at, warn=warn, labels=labels)
    if html is not None:  # first, so that what goes wrong with a file is not lost below the text
        comparison.write_html(compared, html)
    if png is not None:
        comparison.write_png(compared, png)
    if json_:
        print_json(comparison.numbers_of(compared))
        return
    print(comparison.draw_text(compared))
    for path in (html, png):
        if path is not None:
            print(f"written: {printable_line(path)}")
