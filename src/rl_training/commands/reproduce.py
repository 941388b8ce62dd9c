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
    peer_only: Annotated[
        bool, typer.Option("--peer-only", help="Train only the row's peer, beside the result that is kept.")
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
    rl-training reproduce ppo/cartpole --peer-only
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
    if peer_only and (peer or zoo is not None or verify):
        raise UserError("--peer-only trains nothing of ours: it goes with none of --peer, --zoo and --verify")
    places, silent = Places(results, runs, zoo), quiet or json_
    done = {}
    for row in rows:
        if peer_only:
            run_peer_only(row, places, silent)
        else:
            run_row(row, jobs, places, peer, verify, json_, quiet)
        done[row.name] = kept_result(row, results, json_)
    if json_:
        print_json(done)


class Places(NamedTuple):
    """Where a row's files are."""

    results: Path
    runs: Path
    zoo: Path | None


def run_row(
    row: "Row", jobs: int, places: Places, with_peer: bool, verify: bool, as_json: bool, quiet: bool
) -> None:
    """Train and score one row; exits with 128 + signal when a signal stopped it, with everything saved."""
    from rl_training.tools.experiment_display import make_experiment_display
    from rl_training.tools.peers import peer_of
    from rl_training.tools.reproducing import probe, read_result, reproduce, verified
    from rl_training.tools.zoo import ship

    results, runs, zoo = places
    if zoo is not None:
        probe(zoo)
    if with_peer:
        peer_of(row)  # before anything is trained
    try:
        experiment = reproduce(
            row, jobs=jobs, results=results, runs=runs, display=make_experiment_display(quiet)
        )
    except KeyboardInterrupt:  # while seeds are scored
        raise stopped(signal.SIGINT) from None
    if experiment.interrupted:
        raise stopped(experiment.interrupted)
    if with_peer:
        train_peer(row, places, quiet or as_json)
    for seed, told in verified(experiment) if verify else ():
        if not as_json:
            print(f"seed {seed:<7} {told}")
    if zoo is not None and row.zoo:
        result = read_result(results / f"{row.name}.json")
        assert result is not None
        ship(row, result, runs, zoo)


def run_peer_only(row: "Row", places: Places, silent: bool) -> None:
    """Train a row's peer beside its kept result, which must be there and of the row as it is now."""
    from rl_training.tools.peers import peer_of
    from rl_training.tools.reproducing import read_result, stale, undamaged

    peer_of(row)
    path = places.results / f"{row.name}.json"
    result = read_result(path)
    if result is None:
        raise UserError(f"{row.name}: has no result at {path}; train it first, with --peer")
    with undamaged(path):
        changed, _ = stale(row, result)
    if changed:
        raise UserError(f"{row.name}: its result is stale ({'; '.join(changed)}); train it anew, with --peer")
    train_peer(row, places, silent)


def train_peer(row: "Row", places: Places, silent: bool) -> None:
    from rl_training.tools.peers import run_peer

    try:
        run_peer(row, results=places.results, runs=places.runs, tell=(lambda text: None) if silent else print)
    except KeyboardInterrupt:
        raise stopped(signal.SIGINT) from None


def kept_result(row: "Row", results: Path, as_json: bool) -> dict[str, Any]:
    """The result of a row, whose verdict is printed unless it goes out as JSON."""
    from rl_training.reporting.results import verdict
    from rl_training.tools.reproducing import read_measured, read_result, undamaged

    path = results / f"{row.name}.json"
    result = read_result(path)
    assert result is not None
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

    if not any((results / f"{row.name}.json").exists() for row in rows):
        print(printable_line(f"no results of these rows in {results}"))
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
