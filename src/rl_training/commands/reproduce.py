"""`rl-training reproduce`: train a row of the results page again, and say how it compares."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rl_training.commands.options import Json, Quiet, print_json, print_stopped
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
        typer.Option(
            "--stale", help="List results whose config, revisions or code have changed since; trains nothing."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of seeds to run in parallel.")] = 1,
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the training runs.")] = Path("runs/reproduce"),
    peer: Annotated[
        bool, typer.Option("--peer", help="Also train the row's peer, another library, with the same seeds.")
    ] = False,
    zoo: Annotated[
        Path | None, typer.Option(help="Also write the median seed's policy and its card to ZOO/ROW.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Run the end of every seed again, from the last checkpoint but one on."
        ),
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the seeds of a row, score them, and compare them with published figures.

    Resumes after a kill: run the same command again.

    \b
    rl-training reproduce --list
    rl-training reproduce ppo/cartpole --jobs 2
    rl-training reproduce ppo/cartpole --peer
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
    places = Places(results, runs, zoo)
    done = {row.name: run_row(row, jobs, places, peer, verify, json_, quiet) for row in rows}
    if json_:
        print_json(done)


class Places(NamedTuple):
    """Where a row's files are."""

    results: Path
    runs: Path
    zoo: Path | None


def run_row(
    row: "Row", jobs: int, places: Places, with_peer: bool, verify: bool, as_json: bool, quiet: bool
) -> dict[str, Any]:
    """Train and score one row; exits with 128 + signal when a signal stopped it, with everything saved."""
    from rl_training.reporting.results import verdict
    from rl_training.tools.experiment_display import make_experiment_display
    from rl_training.tools.peers import peer_of, run_peer
    from rl_training.tools.reproducing import (
        probe,
        read_measured,
        read_result,
        reproduce,
        undamaged,
        verified,
    )
    from rl_training.tools.zoo import ship

    results, runs, zoo = places
    if zoo is not None:
        probe(zoo)
    if with_peer:
        peer_of(row)  # before anything is trained
    display = make_experiment_display(quiet)
    try:
        experiment = reproduce(row, jobs=jobs, results=results, runs=runs, display=display)
        if experiment.interrupted:
            raise stopped(experiment.interrupted)
        if with_peer:
            run_peer(row, results=results, runs=runs, tell=(lambda text: None) if quiet or as_json else print)
    except KeyboardInterrupt:  # while seeds are scored, or the peer trains
        raise stopped(signal.SIGINT) from None
    path = results / f"{row.name}.json"
    result = read_result(path)
    assert result is not None
    for seed, told in verified(experiment) if verify else ():
        if not as_json:
            print(f"seed {seed:<7} {told}")
    if zoo is not None and row.zoo:
        ship(row, result, runs, zoo)
    if not as_json:
        measured = read_measured(row, results)
        read = [path, *[results / "peers" / f"{row.name}.json"] * (measured.peer is not None)]
        read += [results / f"{row.beside}.json"] * bool(row.beside)
        with undamaged(" or ".join(map(str, read))):
            lines = verdict(measured)
        for line in (f"row          {row.name}", *lines, f"result       {path}"):
            print(printable_line(line))
    return result


def stopped(number: int) -> typer.Exit:
    print_stopped(number, "run the same command again")
    return typer.Exit(128 + number)


def print_rows(rows: "list[Row]", results: Path) -> None:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        run = (results / f"{row.name}.json").is_file()
        state = (
            f"run, seeds {row.seeds}" if run else f"not run: {row.not_run}" if row.not_run else "not run here"
        )
        print(printable_line(f"{row.name:<{width}}  {row.family}; {state}"))


def print_stale(rows: "list[Row]", results: Path) -> None:
    from rl_training.tools import peers, reproducing

    for row in rows:
        changed, other_code = list[str](), list[str]()
        path, beside = results / f"{row.name}.json", results / "peers" / f"{row.name}.json"
        if (result := reproducing.read_result(path)) is not None:
            with reproducing.undamaged(path):
                changed, other_code = reproducing.stale(row, result)
        if (result := reproducing.read_result(beside)) is not None:
            with reproducing.undamaged(beside):
                changed = changed + peers.stale(row, result)
        if changed:
            print(printable_line(f"{row.name}: changed since: {'; '.join(changed + other_code)}"))
        elif other_code:
            print(printable_line(f"{row.name}: same revisions; changed since: {'; '.join(other_code)}"))
