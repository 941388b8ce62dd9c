"""`rl-training tune`: search for hyper-parameters."""

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
from rl_training.terminal import printable_line

Source = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG_OR_TUNE_DIR", help="Config to tune, or the directory of a search to resume."
    ),
]


def tune(
    config: Source,
    overrides: Overrides = None,
    space: Annotated[
        Path | None, typer.Option(help="YAML file with the search space; required for a new search.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Total number of trials; required for a new search.")
    ] = None,
    run_dir: Annotated[Path | None, new_folder("the search", "runs/tune-ALGO-ENV-sSEED")] = None,
    startup: Annotated[
        int,
        typer.Option(min=1, help="Number of random trials, without pruning, before the sampler takes over."),
    ] = 5,
    no_pruning: Annotated[
        bool,
        typer.Option("--no-pruning", help="Train every trial to the end."),
    ] = False,
    halving: Annotated[
        int,
        typer.Option(
            min=0,
            help="Reduction factor η of successive halving: each rung keeps the best 1/η of the trials; 0: off.",
        ),
    ] = 0,
    trust: Trust = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for hyper-parameters; resumes after a kill.

    \b
    rl-training tune ppo/cartpole --space space.yaml --trials 20
    rl-training tune runs/tune-ppo-CartPole-v1-s1
    """
    from rl_training.settings.yaml import to_yaml
    from rl_training.tuning import study

    if study.is_study(config):
        if space is not None or overrides or run_dir is not None:
            raise typer.BadParameter(f"{config} has its own config, space and place; give only --trials")
        folder = Path(config)
    else:
        if space is None or trials is None:
            raise typer.BadParameter("a new search needs --space FILE and --trials N")
        if halving == 1:
            raise typer.BadParameter("--halving 1 would drop no trial; 3 is usual")
        from rl_training.settings.loading import load_config

        settings = study.Settings(trials, startup, not no_pruning, halving)
        folder = study.begin_study(load_config(config, overrides or ()), space, settings, run_dir)
        trust = True  # the user wrote the config
    with showing(quiet) as display:
        done = study.run_study(folder, trials=trials, display=display, trust=trust)
    best, written = done.best, folder / "best.yaml"
    if json_:
        print_json(done._asdict() | {"folder": str(folder)})
    elif done.interrupted:
        print_stopped(done.interrupted, f"rl-training tune {pasted(folder)}")
    elif best is not None:
        print(f"best         trial {best['number']} of {len(done.trials)}: return {best['return']:.2f}")
        for name, value in best["values"].items():
            print(f"             {name}: {to_yaml(value)}")
        print("importance" if done.importance else "importance   too few trials")
        for name, share in done.importance.items():
            print(f"{100 * share:9.0f} %  {name}")
        if done.importance:
            print(f"picture      {printable_line(folder / 'importance.png')}")
        print(f"train it     rl-training train {pasted(written)}")
    if done.interrupted:
        raise typer.Exit(128 + done.interrupted)
    if best is None:
        print("no trial was trained to the end")
        raise typer.Exit(1)
