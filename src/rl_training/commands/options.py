"""Shared by the commands: common options, the display of a run, and printing results.

Light on purpose: it is imported before torch is.
"""

import functools
import inspect
import json
import math
import shlex
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rl_training.terminal import printable_line

if TYPE_CHECKING:
    from rl_training.runtime.workflows import Result


ConfigSource = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A shipped config (ppo/cartpole) or a file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Config fields to override, with values in YAML."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object on the last line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Allow the run's config to import modules and to connect to other machines."
    ),
]

AcceptDamagedLog = Annotated[
    bool,
    typer.Option(
        "--accept-damaged-log", help="Continue although metrics.jsonl is damaged; recorded in the manifest."
    ),
]


def new_folder(what: str, default: str) -> Any:
    """The option of a command that writes a new folder."""
    return typer.Option(help=f"Where to write {what}; must be new or empty. [default: {default}]")


class Which(str, Enum):
    last = "last"
    best = "best"


PolicyPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_DIR_OR_CHECKPOINT", help="A run, a checkpoint, or a shipped policy: zoo:ppo/cartpole."
    ),
]
Checkpoint = Annotated[Which, typer.Option(help="Checkpoint to load from a run.")]
PlaySeed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the episodes. [default: the run's]")
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Environment id of the task to play, for multi-task policies."),
]
Sample = Annotated[bool, typer.Option("--sample", help="Sample actions instead of acting greedily.")]


class PolicyOptions(NamedTuple):
    """Which policy plays, and how: what evaluate, record and play are all told."""

    path: PolicyPath
    seed: PlaySeed = None
    checkpoint: Checkpoint = Which.last
    sample: Sample = False
    trust: Trust = False
    task: TaskName = None

    def arguments(self) -> dict[str, Any]:
        """By the names that the functions behind these commands have for them."""
        return self._asdict() | {"checkpoint": self.checkpoint.value}


def with_policy_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The command of a verb whose first argument is `PolicyOptions`: their fields become arguments and options."""
    shared = inspect.signature(PolicyOptions).parameters
    own = list(inspect.signature(verb).parameters.values())[1:]

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        policy = PolicyOptions(**{name: given.pop(name) for name in shared})
        verb(policy, **given)

    options = [option.replace(kind=option.KEYWORD_ONLY) for option in (*own, *shared.values())]
    vars(command)["__signature__"] = inspect.Signature(options)
    return command


class showing:
    """The display of a run; its panel is taken down also when the run ends by an exception."""

    def __init__(self, quiet: bool) -> None:
        from rl_training.monitoring.display import make_display

        self.display = make_display(quiet)

    def __enter__(self) -> Any:
        return self.display

    def __exit__(self, *exception: object) -> None:
        self.display.finish({})


def print_result(result: "Result", as_json: bool) -> None:
    """Prints what came out and where it lies, and exits with 128 + signal when a signal ended the run."""
    from rl_training.settings.loading import load_run_config
    from rl_training.trust import foreign

    interrupted = result.interrupted
    if as_json:
        print_json(
            {
                "run_dir": str(result.run_dir),
                "checkpoint_path": str(result.checkpoint_path),
                "interrupted": interrupted,
                "stopped": result.stopped,
                "metrics": result.metrics,
            }
        )
    elif interrupted:
        from rl_training.runtime.engine import resume_command

        command = resume_command(load_run_config(result.run_dir / "config.yaml"), result.run_dir)
        print_stopped(interrupted, printable_line(command))
    else:
        metrics = result.metrics
        if result.stopped:
            print(f"stopped      {printable_line(result.stopped)}")
        if "eval/mean_return" in metrics:
            actions = "sampled" if result.sampled else "greedy"
            print(
                f"return       {metrics['eval/mean_return']:.2f}  (evaluation at the end, {actions} actions)"
            )
        if "episode_return" in metrics:
            print(f"             {metrics['episode_return']:.2f}  (last training episodes)")
        print(f"run          {printable_line(result.run_dir)}")
        print(f"metrics      {printable_line(result.run_dir / 'metrics.jsonl')}")
        print(f"checkpoint   {printable_line(result.checkpoint_path)}")
        asked = foreign(load_run_config(result.run_dir / "config.yaml"), doing="playing")
        run = pasted(result.run_dir) + (" --trust" if asked else "")
        print(f"evaluate it  rl-training evaluate {run}")
        print(f"play it      rl-training play {run}")
    if interrupted:
        raise typer.Exit(128 + interrupted)


def pasted(path: object) -> str:
    """A path as it can be pasted into a shell."""
    return printable_line(shlex.quote(str(path)))


def print_stopped(number: int, resume: str) -> None:
    """Says which signal ended something, and the command that resumes it."""
    import signal

    print(f"stopped by {signal.Signals(number).name}; everything is saved")
    print(f"resume it    {resume}")


def print_warning(text: str) -> None:
    print(f"warning: {printable_line(text)}", file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """One line of strict JSON; numbers that JSON does not know (NaN, infinities) become null."""
    print(json.dumps(json_value(value), allow_nan=False), flush=True)


def json_value(value: object) -> Any:
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
