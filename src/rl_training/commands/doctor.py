"""`rl-training doctor`: check the installation, and that a small run trains and resumes."""

import typer

from rl_training.commands.options import Json, print_json
from rl_training.terminal import printable_line


def doctor(json_: Json = False) -> None:
    """Check the installation: versions, devices, threads, numba's cache, disk space, extras, a small run.

    Exits with 1 if the small run fails. A missing extra is not a failure.
    """
    from rl_training.tools.checkup import check_up

    checkup = check_up()
    if json_:
        print_json(checkup)
    else:
        for heading in ("versions", "devices", "threads", "cache", "disk"):
            print(heading)
            width = max(map(len, checkup[heading]))
            for name, value in checkup[heading].items():
                print(f"  {name:<{width}}  {'not installed' if value is None else printable_line(value)}")
        print("extras")
        width = max(map(len, checkup["extras"]))
        for name, extra in checkup["extras"].items():
            print(f"  {'ok' if extra['installed'] else 'missing':<7}  {name:<{width}}  {extra['what_for']}")
            if not extra["installed"]:
                print(f"  {'':<7}  {'':<{width}}  install it with: {extra['add']}")
        print("self-test")
        for test in checkup["self_test"]:
            print(f"  {'ok' if test['ok'] else 'FAILED':<7}  {test['what']}")
    if not all(test["ok"] for test in checkup["self_test"]):
        raise typer.Exit(1)
