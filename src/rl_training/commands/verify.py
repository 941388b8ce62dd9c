"""`rl-training verify`: run an interval of a run again and compare."""

from typing import Annotated

import typer

from rl_training.commands.options import Json, RunDir, Trust, print_json


def verify(
    run_dir: RunDir,
    begin: Annotated[int, typer.Option("--from", min=0, help="First step of the interval.")] = 0,
    end: Annotated[
        int | None, typer.Option("--to", min=1, help="Last step of it. [default: the end of the log]")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Also with other versions, on another CPU, or of a run with `order: arrival`."
        ),
    ] = False,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Run an interval of a run again and compare metrics, parameters and checkpoints with what it wrote.

    Exit code 1 if something differs. The run is only read.

    \b
    rl-training verify runs/ppo-CartPole-v1-s1 --from 40_000 --to 60_000
    """
    from rl_training.tools.verifying import verify

    verdict = verify(run_dir, begin=begin, end=end, anyway=anyway, trust=trust)
    if json_:
        print_json({**verdict._asdict(), "verified": verdict.is_good})
    else:
        print(verdict)
        if verdict.note:
            print(f"note     {verdict.note}")
        for reason in verdict.why:
            print(f"note     {reason}")
        if not verdict.is_good and not verdict.why:
            print(
                "note     versions, CPU and threads are those of the manifest: files or code were changed, or a"
            )
            print("         computation went wrong")
    raise typer.Exit(0 if verdict.is_good else 1)
