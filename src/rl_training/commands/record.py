"""`rl-training record`: record episodes of a trained policy as demonstrations."""

from typing import Annotated

import typer

from rl_training.commands.options import Json, PolicyOptions, print_json, with_policy_options
from rl_training.terminal import printable_line


@with_policy_options
def record(
    policy: PolicyOptions,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")],
    out: Annotated[str, typer.Option(help="Output file ending in .npz, or minari:ID for a Minari dataset.")],
    json_: Json = False,
) -> None:
    """Record episodes of a trained policy as demonstrations."""
    from rl_training.runtime import workflows

    made = workflows.record_demonstrations(**policy.arguments(), out=out, episodes=episodes)
    returns = made.returns
    mean = sum(returns) / len(returns)
    if json_:
        print_json({"out": out, "episodes": len(returns), "steps": sum(made.lengths), "mean_return": mean})
        return
    print(f"return   {mean:.2f}  (lowest {min(returns):.2f}, highest {max(returns):.2f})")
    print(f"played   {len(returns)} episodes, {sum(made.lengths)} steps")
    print(f"written  {printable_line(out)}")
