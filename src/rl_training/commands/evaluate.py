"""`rl-training evaluate`: evaluate a trained policy."""

import re
from typing import Annotated

import typer

from rl_training.commands.options import Json, PolicyOptions, print_json, with_policy_options
from rl_training.terminal import printable_line


@with_policy_options
def evaluate(
    policy: PolicyOptions,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Number of episodes. [default: the run's eval_episodes]")
    ] = None,
    json_: Json = False,
) -> None:
    """Evaluate a trained policy and print its returns."""
    from rl_training.registry import policy_path
    from rl_training.runtime import workflows

    scores = workflows.evaluate_checkpoint(**policy.arguments(), episodes=episodes)
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
