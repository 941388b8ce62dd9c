"""`rl-training describe`: every config field of an algorithm."""

from pathlib import Path
from typing import Annotated

import typer


def describe(
    algo: Annotated[
        str, typer.Argument(metavar="ALGO", help="An algorithm, such as ppo, or FILE.py:Trainer.")
    ],
) -> None:
    """Print every config field of an algorithm: meaning, default, range, aliases."""
    from rl_training.parts import located
    from rl_training.registry import config_class_of
    from rl_training.settings.describing import describe_config

    config_class = config_class_of(located(algo, Path()))
    sentence = (config_class.__doc__ or config_class.__name__).strip().splitlines()[0]
    print(f"{algo}: {sentence}")
    print("Fields marked [knob] also take <name>_schedule and <name>_warmup_steps, under any alias.")
    for row in describe_config(config_class):
        names = " or ".join((row.name, *row.aliases))
        facts = [row.type, row.range, row.default if row.default == "required" else f"default {row.default}"]
        print(f"\n{names}{'  [knob]' if row.knob else ''}")
        print(f"    {row.sentence}")
        print(f"    {'; '.join(filter(None, facts))}")
