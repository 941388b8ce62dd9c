"""`rl-training report`: write an HTML report of a run."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Json, RunDir, Trust, print_json, print_warning
from rl_training.terminal import printable_line


def report(
    run_dir: RunDir,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output file. [default: RUN_DIR/report.html]")] = None,
    video: Annotated[
        bool | None,
        typer.Option(
            "--video/--no-video",
            help="Require a video of the policy, or omit it. [default: if one can be made]",
        ),
    ] = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Write an HTML report of a run: curves, knobs, losses, timing, config, video.

    The report is a single self-contained file. The run may still be training.

    \b
    rl-training report runs/ppo-CartPole-v1-s1 --open
    """
    from rl_training.reporting.report import write_report

    path = write_report(run_dir, out, video=video, trust=trust, warn=print_warning)
    if json_:
        print_json({"report": str(path)})
    else:
        print(f"written  {printable_line(path)}")
    if open_:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
