"""`rl-training play`: watch a trained policy, or write a video of it."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.options import Json, PolicyOptions, print_json, with_policy_options
from rl_training.terminal import printable_line


@with_policy_options
def play(
    policy: PolicyOptions,
    video: Annotated[
        Path | None, typer.Option(help="Write a video to this new .mp4 or .gif file instead (extra `video`).")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 1,
    json_: Json = False,
) -> None:
    """Watch a trained policy, or record a video of it.

    \b
    rl-training play runs/ppo-CartPole-v1-s1
    rl-training play runs/ppo-CartPole-v1-s1 --video cartpole.mp4
    """
    from rl_training.tools import playing

    played = playing.play_run(**policy.arguments(), video=video, episodes=episodes)
    if json_:
        print_json({"episodes": played.episodes, "video": video and str(video), "frames": played.frames})
        return
    for number, (returned, length) in enumerate(played.episodes, start=1):
        print(f"episode {number}  return {returned:.2f}  length {length}")
    if video is not None:
        print(
            f"written  {printable_line(video)}: {played.frames} frames, {played.frames_per_second} per second"
        )
