"""`rl-training export`: export a trained policy to one file that runs without this package."""

from typing import Annotated

import typer

from rl_training.commands.options import Checkpoint, Json, PolicyPath, Trust, Which, print_json
from rl_training.terminal import printable_line


def export(
    path: PolicyPath,
    to: Annotated[
        str,
        typer.Option(
            help="Output file ending in .onnx or .pt2; `onnx` or `torch` writes policy.onnx or policy.pt2."
        ),
    ],
    checkpoint: Checkpoint = Which.last,
    without_search: Annotated[
        bool,
        typer.Option("--without-search", help="Export the network's own choice for a policy that plans."),
    ] = False,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Export a policy to ONNX or a torch program, and verify its outputs.

    \b
    rl-training export runs/ppo-CartPole-v1-s1 --to policy.onnx
    """
    from rl_training.tools import exporting

    done = exporting.export_policy(
        path, to, checkpoint=checkpoint.value, without_search=without_search, trust=trust
    )
    if json_:
        print_json(done._asdict() | {"path": str(done.path)})
        return
    print(f"policy    {printable_line(done.policy)}")
    if done.left_out:
        print(f"          without {done.left_out}: actions are what its network alone would choose")
    for heading, tensors in (("inputs", done.inputs), ("outputs", done.outputs)):
        for index, (name, kind) in enumerate(tensors.items()):
            print(f"{heading if index == 0 else '':<8}  {name}  {kind}")
    print(
        f"compared  {done.compared:,} observations in {done.engine}: largest difference {done.difference:.1e}"
    )
    print(f"written   {printable_line(done.path)}")
