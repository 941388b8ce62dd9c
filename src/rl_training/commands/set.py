"""`rl-training set`: steer a run that is training."""

from typing import Annotated

import typer

from rl_training.commands.options import RunDir
from rl_training.terminal import printable_line

WORDS = ("evaluate", "checkpoint", "pause", "continue", "stop")


def set_(
    run_dir: RunDir,
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="KNOB=VALUE|COMMAND", help=f"New values of knobs, or commands: {', '.join(WORDS)}."
        ),
    ],
    at: Annotated[
        int | None, typer.Option(min=1, help="The step from which on it holds. [default: from now on]")
    ] = None,
) -> None:
    """Steer a run that is training, from another terminal.

    \b
    rl-training set runs/ppo-CartPole-v1-s1 learning_rate=1e-4 clip_range=0.1
    rl-training set runs/ppo-CartPole-v1-s1 ent_coef=0 --at 50_000
    rl-training set runs/ppo-CartPole-v1-s1 pause

    A value takes the place of the knob's schedule and warm-up. Everything that changes results is written to the run's
    journal first: the run resumes exactly, whenever it is killed.
    """
    from rl_training.errors import UserError, did_you_mean
    from rl_training.settings.yaml import parse_yaml
    from rl_training.state.inbox import send

    values = {}
    for word in commands:
        name, equals, text = word.partition("=")
        if equals:
            values[name.strip()] = parse_yaml(text, "").data
        elif word not in WORDS:
            raise UserError(
                f"{word!r}: write KNOB=VALUE, or one of {', '.join(WORDS)}{did_you_mean(word, WORDS)}"
            )
    if "continue" in commands and at is not None:
        raise UserError("continue takes no --at: a run that is paused takes no steps")
    asked = [("set", values)] if values else []
    for do, given in (*asked, *((word, {}) for word in commands if word in WORDS)):
        print(printable_line(send(run_dir, do, at, given)))
