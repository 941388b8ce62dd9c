"""`rl-training evolve`: population-based training."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import (
    Json,
    Overrides,
    Quiet,
    Trust,
    new_folder,
    pasted,
    print_json,
    print_stopped,
    showing,
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG_OR_EVOLVE_DIR", help="Config to evolve, or the directory of a population to resume."
    ),
]


def evolve(
    config: Source,
    overrides: Overrides = None,
    space: Annotated[
        Path | None, typer.Option(help="YAML file with ranges of knobs; required for a new population.")
    ] = None,
    members: Annotated[int, typer.Option(min=2, help="Size of the population.")] = 8,
    interval: Annotated[
        int | None, typer.Option(min=1, help="Steps of a generation. [default: a tenth of total_timesteps]")
    ] = None,
    run_dir: Annotated[Path | None, new_folder("the population", "runs/evolve-ALGO-ENV-sSEED")] = None,
    trust: Trust = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a population whose worst members copy the best, with other values of knobs; resumes after a kill.

    \b
    rl-training evolve ppo/cartpole learning_rate_schedule=null --space space.yaml --members 8 --interval 10_000
    rl-training evolve runs/evolve-ppo-CartPole-v1-s1
    """
    from rl_training.tuning import evolution

    if evolution.is_evolution(config):
        if space is not None or overrides or run_dir is not None or interval is not None:
            raise typer.BadParameter(f"{config} has its own config, space and place")
        folder = Path(config)
    else:
        if space is None:
            raise typer.BadParameter("a new population needs --space FILE")
        from rl_training.settings.loading import load_config

        loaded = load_config(config, overrides or ())
        settings = evolution.Settings(members, interval or max(1, loaded.total_timesteps // 10))
        folder = evolution.begin_evolution(loaded, space, settings, run_dir)
        trust = True  # the user wrote the config
    with showing(quiet) as display:
        done = evolution.run_evolution(folder, display=display, trust=trust)
    if json_:
        generations = [[member._asdict() for member in each] for each in done.generations]
        print_json(
            {
                "folder": str(folder),
                "generations": generations,
                "winner": str(done.winner) if done.winner else None,
                "interrupted": done.interrupted,
            }
        )
    elif done.interrupted:
        print_stopped(done.interrupted, f"rl-training evolve {pasted(folder)}")
    else:
        print(f"winner       {pasted(done.winner)}")
        print(f"train it     rl-training train {pasted(folder / 'winner.yaml')}")
    if done.interrupted:
        raise typer.Exit(128 + done.interrupted)
