"""`rl-training evaluate`: the returns of a trained policy."""

import re
from typing import Annotated

import typer

from rl_training.commands.options import (
    Checkpoint,
    Json,
    PolicyPath,
    Sample,
    TaskName,
    Trust,
    Which,
    print_json,
)
from rl_training.terminal import printable_line


def evaluate(
    path: PolicyPath,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="How many. [default: the run's eval_episodes]")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the evaluation's episodes.")] = None,
    checkpoint: Checkpoint = Which.last,
    sample: Sample = False,
    trust: Trust = False,
    task: TaskName = None,
    json_: Json = False,
) -> None:
    """Play episodes with a trained policy and print their returns."""
    from rl_training.runtime import workflows

    scores = workflows.evaluate_checkpoint(
        path,
        episodes=episodes,
        seed=seed,
        sample=sample,
        checkpoint=checkpoint.value,
        trust=trust,
        task=task,
    )
    if json_:
        print_json(scores)
        return
    manner = "sampled actions" if sample else "greedy actions"
    print(f"return  {scores['mean_return']:.2f} ± {scores['std_return']:.2f}", end="  ")
    print(f"(lowest {scores['min_return']:.2f}, highest {scores['max_return']:.2f})")
    print(f"length  {scores['mean_length']:.1f} steps")
    for name in (name for name in scores if re.fullmatch(r"task/.*/mean_return", name)):
        prefix = name.removesuffix("mean_return")
        print(
            f"task    {scores[name]:.2f} ± {scores[f'{prefix}std_return']:.2f}  {printable_line(prefix[5:-1])}"
        )
    episodes = int(scores["episodes"])
    print(f"played  {episodes} {'episode' if episodes == 1 else 'episodes'} with {manner}")
    is_checkpoint = (path / "state.json").exists()
    print(f"policy  {printable_line(path)}" + ("" if is_checkpoint else f", {checkpoint.value} checkpoint"))
