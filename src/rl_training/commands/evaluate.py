"""`rl-training evaluate`: evaluate a trained policy."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from rl_training.commands.options import Json, PolicyOptions, print_json, with_policy_options
from rl_training.errors import UserError
from rl_training.terminal import printable_line


@with_policy_options
def evaluate(
    policy: PolicyOptions,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Number of episodes. [default: the run's eval_episodes]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Search with other settings, such as num_simulations=200."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Play a game of two against random, minimax:DEPTH, solver, me or another run; --episodes is the games."
        ),
    ] = None,
    elo: Annotated[
        bool,
        typer.Option(
            "--elo", help="Rate the run's checkpoints by games of two; --episodes is the games of a pair."
        ),
    ] = False,
    solved: Annotated[
        int | None,
        typer.Option(min=1, help="Judge the moves in N random positions of Connect Four by the solver."),
    ] = None,
    random_moves: Annotated[
        int | None,
        typer.Option(min=0, help="Random moves before each pair of games. [default: 0; with --elo 4]"),
    ] = None,
    json_: Json = False,
) -> None:
    """Evaluate a trained policy and print its returns."""
    if against is None and not elo and random_moves is not None:
        raise UserError("--random-moves needs --against or --elo")
    games_of_two = {"--elo": elo, "--against": against is not None, "--solved": solved is not None}
    asked = [name for name, is_asked in games_of_two.items() if is_asked]
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} cannot be used together")
    if asked and policy.task is not None:
        raise UserError(f"--task cannot be used with {asked[0]}: a game of two is one task")
    if elo and policy.checkpoint.value != "last":
        raise UserError("--checkpoint cannot be used with --elo: it rates all that are kept")
    if solved is not None:
        judge(policy, solved, settings or (), json_)
        return
    if elo:
        rate(policy, episodes or 20, settings or (), 4 if random_moves is None else random_moves, json_)
        return
    if against is not None:
        games = episodes or (2 if against == "me" else 100)
        play_against(policy, against, games, settings or (), random_moves or 0, json_)
        return
    from rl_training.registry import policy_path
    from rl_training.runtime import workflows

    scores = workflows.evaluate_checkpoint(**policy.arguments(), episodes=episodes, settings=settings or ())
    if json_:
        print_json(scores)
        return
    manner = "sampled actions" if policy.sample else "greedy actions"
    print(f"return  {scores['mean_return']:.2f} ± {scores['std_return']:.2f}", end="  ")
    print(f"(lowest {scores['min_return']:.2f}, highest {scores['max_return']:.2f})")
    print(f"length  {scores['mean_length']:.1f} steps")
    for name in (name for name in scores if name.startswith("info/")):
        print(f"{printable_line(name.removeprefix('info/'))}  {scores[name]:.4g}")
    for name in (name for name in scores if re.fullmatch(r"task/.*/mean_return", name)):
        prefix = name.removesuffix("mean_return")
        print(
            f"task    {scores[name]:.2f} ± {scores[f'{prefix}std_return']:.2f}  {printable_line(prefix[5:-1])}"
        )
    episodes = int(scores["episodes"])
    print(f"played  {episodes} {'episode' if episodes == 1 else 'episodes'} with {manner}")
    which = (
        ""
        if (policy_path(policy.path) / "state.json").exists()
        else f", {policy.checkpoint.value} checkpoint"
    )
    print(f"policy  {printable_line(policy.path)}{which}")


def play_against(
    policy: PolicyOptions,
    against: str,
    games: int,
    settings: Sequence[str],
    random_moves: int,
    as_json: bool,
) -> None:
    """Play a game of two and print wins, draws and losses from both sides."""
    from rl_training.runtime.matches import OUTCOMES, match_checkpoints

    arguments = {name: value for name, value in policy.arguments().items() if name != "task"}
    found = match_checkpoints(
        **arguments, against=against, games=games, settings=settings, random_moves=random_moves
    )
    if as_json:
        print_json(found)
        return
    for side in ("first", "second"):
        counts = ", ".join(f"{found[f'{outcome}_as_{side}']} {outcome}" for outcome in OUTCOMES)
        print(f"moving {side:<6} {counts}")
    print(f"played        {games} games against {printable_line(against)}")


def rate(
    policy: PolicyOptions, games: int, settings: Sequence[str], random_moves: int, as_json: bool
) -> None:
    """Print the Elo of each checkpoint of a run."""
    from rl_training.runtime.ratings import rate_checkpoints

    arguments = {
        name: value
        for name, value in policy.arguments().items()
        if name not in ("task", "checkpoint", "path")
    }
    found = rate_checkpoints(
        policy.path, games=games, settings=settings, random_moves=random_moves, **arguments
    )
    if as_json:
        print_json(found)
        return
    for step, rating in found.items():
        print(f"{step:>12}  {rating:+.0f}")
    print(f"Elo by checkpoint, {games} games a pair; random play is 0")


def judge(policy: PolicyOptions, positions: int, settings: Sequence[str], as_json: bool) -> None:
    """Print how many moves keep what their positions are worth under perfect play."""
    from rl_training.runtime.exactness import judge_moves

    arguments = {name: value for name, value in policy.arguments().items() if name != "task"}
    found = judge_moves(**arguments, positions=positions, settings=settings)
    if as_json:
        print_json(found)
        return
    print(f"kept       {100 * found['kept']:.1f} % of moves keep the theoretical value")
    print(f"untrained  {100 * found['untrained']:.1f} %")
    print(f"judged     {positions} random positions of Connect Four with 8 to 30 stones")
