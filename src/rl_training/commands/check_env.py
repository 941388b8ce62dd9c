"""`rl-training check-env`: check that an environment can be trained on and restored."""

from typing import Annotated

import typer

from rl_training.commands.options import Json, print_json


def check_env(
    env_id: Annotated[
        str, typer.Argument(metavar="ENV_ID", help="A registered id, module:EnvId or FILE.py:Class.")
    ],
    env_kwargs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keyword arguments of the environment.")
    ] = None,
    json_: Json = False,
) -> None:
    """Check an environment: API, spaces, seeding, replay, autoreset.

    Exits with 1 if a check fails. Warnings do not prevent training.
    """
    from rl_training.envs import checking

    findings = checking.check_env(env_id, checking.parse_env_kwargs(env_kwargs or ()))
    failed = any(finding.outcome == "fail" for finding in findings)
    if json_:
        print_json(
            {"env_id": env_id, "ok": not failed, "findings": [finding._asdict() for finding in findings]}
        )
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.outcome:<4}  {finding.name:<{width}}  {finding.sentence}")
    if failed:
        raise typer.Exit(1)
