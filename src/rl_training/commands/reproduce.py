"""`rl-training reproduce`: train a row of the results page again, and say how it compares."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.options import Json, Quiet, print_json, signal_name
from rl_training.errors import UserError
from rl_training.terminal import printable_line

if TYPE_CHECKING:
    from rl_training.tools.rows import Row

Results = Annotated[Path, typer.Option(help="Folder of the results: RESULTS/ROW.json.")]


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ROW...", help="Rows, such as ppo/cartpole.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the rows and what has been run.")] = False,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="List results whose config or code has changed since; trains nothing."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of seeds to run in parallel.")] = 1,
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the training runs.")] = Path("runs/reproduce"),
    zoo: Annotated[
        Path | None, typer.Option(help="Also write the median seed's policy and its card to ZOO/ROW.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the seeds of a row, score them, and compare them with published figures.

    Resumes after a kill: run the same command again.

    \b
    rl-training reproduce --list
    rl-training reproduce ppo/cartpole --jobs 2
    """
    from rl_training.tools.rows import read_row, row_names

    rows = [read_row(name) for name in names or row_names()]
    if list_:
        print_rows(rows, results)
        return
    if stale:
        print_stale(rows, results)
        return
    if not names:
        raise UserError("name a row, or use --list to see them")
    done = {row.name: run_row(row, jobs, results, runs, zoo, json_, quiet) for row in rows}
    if json_:
        print_json(done)


def run_row(
    row: "Row", jobs: int, results: Path, runs: Path, zoo: Path | None, as_json: bool, quiet: bool
) -> dict[str, Any]:
    """Train and score one row; exits with 128 + signal when a signal stopped it, with everything saved."""
    from rl_training.reporting.results import Measured, verdict
    from rl_training.tools.experiment_display import make_experiment_display
    from rl_training.tools.reproducing import read_result, reproduce, undamaged
    from rl_training.tools.zoo import ship

    display = make_experiment_display(quiet)
    experiment = reproduce(row, jobs=jobs, results=results, runs=runs, display=display)
    if experiment.interrupted:
        print(f"stopped by {signal_name(experiment.interrupted)}; everything is saved")
        print("resume it    run the same command again")
        raise typer.Exit(128 + experiment.interrupted)
    path = results / f"{row.name}.json"
    result = read_result(path)
    assert result is not None
    if zoo is not None and row.zoo:
        ship(row, result, runs, zoo)
    if not as_json:
        beside = results / "peers" / f"{row.name}.json"
        peer = read_result(beside)
        with undamaged(path if peer is None else beside):
            lines = verdict(Measured(row, result, peer))
        for line in (f"row          {row.name}", *lines, f"result       {path}"):
            print(printable_line(line))
    return result


def print_rows(rows: "list[Row]", results: Path) -> None:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        run = (results / f"{row.name}.json").is_file()
        state = (
            f"run, seeds {row.seeds}" if run else f"not run: {row.not_run}" if row.not_run else "not run here"
        )
        print(printable_line(f"{row.name:<{width}}  {row.family}; {state}"))


def print_stale(rows: "list[Row]", results: Path) -> None:
    from rl_training.tools.reproducing import read_result, stale, undamaged

    for row in rows:
        path = results / f"{row.name}.json"
        result = read_result(path)
        if result is None:
            continue
        with undamaged(path):
            reasons = stale(row, result)
        if reasons:
            print(printable_line(f"{row.name}: changed since: {'; '.join(reasons)}"))
