"""`rl-training diagnose`: what is wrong with a run."""

import sys
from typing import Annotated, Any

import typer

from rl_training.commands.options import Json, RunDir, Trust, print_json, print_warning, showing
from rl_training.terminal import printable_line


def diagnose(
    run_dir: RunDir,
    prove: Annotated[
        bool, typer.Option("--prove", help="Try the first change that is proposed, against forks without it.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=2, help="Pairs of runs of a proof.")] = 5,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each run of a proof. [default: a quarter of the run]")
    ] = None,
    no_play: Annotated[
        bool,
        typer.Option("--no-play", help="Read the log alone; no environment is made, and nothing measured."),
    ] = False,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Say what is wrong with a run, as far as its log and some episodes show, and what to change.

    \b
    rl-training diagnose runs/ppo-CartPole-v1-s1
    rl-training diagnose runs/ppo-CartPole-v1-s1 --no-play
    rl-training diagnose runs/ppo-CartPole-v1-s1 --prove --seeds 5 --steps 20_000
    """
    from rl_training.errors import EnvironmentFault, UserError
    from rl_training.reporting.diagnosis import PLAYED, diagnose, of_record, unseen
    from rl_training.reporting.records import read_run
    from rl_training.settings.yaml import to_yaml

    seen, not_played = of_record(read_run(run_dir, warn=print_warning)), ""
    if not no_play:
        from rl_training.tools.probing import LANES, probed

        if not json_:
            told = f"playing {2 * LANES} episodes of random actions and {LANES} of the newest policy"
            print(f"{told} (--no-play: the log alone)", file=sys.stderr, flush=True)
        try:
            seen = probed(seen, run_dir, trust=trust)
        except (UserError, EnvironmentFault) as error:  # the log says what it says all the same
            not_played = str(error)
    found, proof = diagnose(seen), None
    for finding in [] if json_ else found:
        print(printable_line(f"{finding.rule}: {finding.said}"))
        print(printable_line(f"    from step {finding.step:,}; {finding.advice}"))
        if finding.changes:
            settings = " ".join(f"{name}={to_yaml(value)}" for name, value in finding.changes.items())
            print(printable_line(f"    try {settings}"))
        print(printable_line(f"    source: {finding.source}"))
    if not found and not json_:
        print("nothing found")
    if not json_ and not_played:
        print(printable_line(f"not played: {not_played}"))
    if not json_ and (missing := unseen(seen)):
        print(printable_line(f"not looked at, for want of their metrics: {', '.join(missing)}"))
    tried: Any = next((finding for finding in found if finding.changes), None)
    if prove and tried is not None:
        from rl_training.tools.proving import prove as try_out

        with showing(json_) as display:
            proof = try_out(
                run_dir,
                tried.changes,
                step=tried.try_from,
                seeds=seeds,
                steps=steps,
                trust=trust,
                display=display,
            )
        low, high = float(proof.improvement.low), float(proof.improvement.high)
        if not json_:
            print(
                f"proof of {tried.rule!r}: {seeds} pairs of {proof.steps:,} steps from step {proof.step:,}; the "
                f"change is better with probability {float(proof.improvement.value):.2f} "
                f"(95 % interval {low:.2f} to {high:.2f})"
            )
    elif prove and not json_:
        print("nothing to prove: no change of settings is proposed")
    if json_:
        proven = None if proof is None else proof._asdict() | {"improvement": proof.improvement._asdict()}
        print_json(
            {
                "findings": [finding._asdict() for finding in found],
                "unseen": unseen(seen),
                "not_played": not_played,
                "measured": {
                    name: seen.played(name.removeprefix(PLAYED))
                    for name in seen.curves
                    if name.startswith(PLAYED)
                },
                "proof": proven,
            }
        )
