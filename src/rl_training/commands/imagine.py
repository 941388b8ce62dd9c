"""`rl-training imagine`: compare a world model's open-loop predictions with what happens."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Checkpoint, Json, PlaySeed, PolicyPath, Trust, Which, print_json
from rl_training.terminal import printable_line

SHOWN = (1, 2, 5, 10, 20, 50, 100)  # steps ahead of which the errors are printed


def imagine(
    path: PolicyPath,
    out: Annotated[
        Path | None, typer.Option(help="HTML page to write. [default: RUN_DIR/imagination.html]")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="Also write a video, .mp4 or .gif.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes over which errors are averaged.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps to predict.")] = 45,
    context: Annotated[int, typer.Option(min=1, help="Observations that the model is shown first.")] = 5,
    seed: PlaySeed = None,
    checkpoint: Checkpoint = Which.last,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Compare a world model's open-loop predictions with what happens, over the horizon.

    \b
    rl-training imagine runs/dreamer-CartPole-v1-s1 --video imagined.mp4
    """
    from rl_training.reporting.imagination_page import write_imagination

    options = {"episodes": episodes, "steps": steps, "context": context, "seed": seed}
    done = write_imagination(
        path,
        out,
        video=video,
        checkpoint=checkpoint.value,
        trust=trust,
        **options,  # type: ignore[arg-type]
    )
    if json_:
        errors = {
            name: {kind: values.tolist() for kind, values in each._asdict().items()}
            for name, each in done.errors.items()
        }
        print_json({"page": str(done.page), "video": str(done.video or "") or None, "errors": errors})
        return
    for name, each in done.errors.items():
        ahead = [step for step in SHOWN if step <= len(each.model)]
        print(f"{name:<16}" + "".join(f"{step:>10}" for step in ahead) + "  steps ahead")
        for kind, values in each._asdict().items():
            print(f"  {kind:<14}" + "".join(f"{values[step - 1]:>10.4f}" for step in ahead))
    for written in filter(None, (done.page, done.video)):
        print(f"written  {printable_line(written)}")
