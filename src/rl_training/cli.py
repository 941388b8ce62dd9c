"""The command `rl-training`.

Exit codes: 0 done; 1 the run failed (numbers that are not finite, a failed write, an environment that fails
its check); 2 something the user can put right, said in one line on stderr; 130 and 143 after SIGINT and
SIGTERM, with everything saved. Progress and results go to stdout, only warnings and errors to stderr.

Nothing heavy is imported at the top: `rl-training --help` must not wait for torch.
"""

import re
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.commands.check_env import check_env
from rl_training.commands.compare import compare
from rl_training.commands.debug import debug
from rl_training.commands.describe import describe
from rl_training.commands.diagnose import diagnose
from rl_training.commands.diff import diff
from rl_training.commands.doctor import doctor
from rl_training.commands.evaluate import evaluate
from rl_training.commands.evolve import evolve
from rl_training.commands.export import export
from rl_training.commands.fork import fork
from rl_training.commands.imagine import imagine
from rl_training.commands.list import list_configs
from rl_training.commands.play import play
from rl_training.commands.record import record
from rl_training.commands.report import report
from rl_training.commands.reproduce import reproduce
from rl_training.commands.resume import resume
from rl_training.commands.schedule import schedule
from rl_training.commands.set import set_
from rl_training.commands.train import train
from rl_training.commands.tune import tune
from rl_training.commands.verify import verify
from rl_training.errors import (
    EnvironmentFault,
    ExportError,
    NonFiniteError,
    ObserverError,
    StorageError,
    UserError,
    traceback_of,
)
from rl_training.terminal import escape_streams, printable

# Newer typers carry their own copy of click, so its base exception is found through typer, not imported.
USAGE_ERRORS: Any = tuple(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class OneLineErrors(TyperGroup):
    """Turns whatever ends a command into an exit code and at most one line on stderr."""

    def main(self, *args: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        before = escape_streams()
        try:
            sys.exit(self._run(*args, **options))
        finally:
            sys.stdout, sys.stderr = before

    def _run(self, *args: Any, **options: Any) -> int:
        try:
            return super().main(*args, **options) or 0
        except UserError as error:
            return fail(2, error)
        except (NonFiniteError, StorageError, ExportError, ObserverError) as error:
            return fail(1, error)
        except EnvironmentFault as error:  # what helps is the environment's own traceback
            print(traceback_of(error), end="", file=sys.stderr)
            return fail(1, error)
        except USAGE_ERRORS as error:
            told = error.format_message().replace("Value error, ", "").rstrip(".")
            name, command = getattr(error, "option_name", None), getattr(error.ctx, "command", None)
            known = [option for parameter in getattr(command, "params", ()) for option in parameter.opts]
            parameter, meant = OTHER_WORDS.get(str(name), ("", ""))
            if parameter in known:
                told = f"No such option: {name}; did you mean {meant}?"
            return fail(2, told + " (see rl-training --help)")
        except (KeyboardInterrupt, typer.Abort):
            return fail(130, "interrupted")


def fail(code: int, error: Exception | str) -> int:
    print("error: " + " ".join(printable(str(error)).splitlines()), file=sys.stderr, flush=True)
    return code


# What an option may be taken to be called: the parameter of the command that is meant, and how it is written.
OTHER_WORDS = {"--games": ("--episodes", "--episodes"), "--set": ("overrides", "KEY=VALUE alone")}
FORMER_OPTIONS = {"trust-env": "trust"}  # still understood, and no longer shown

app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda option: FORMER_OPTIONS.get(option, option),
    },
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Reinforcement learning that resumes exactly."""
    if version:
        from rl_training import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "resume": resume,
    "set": set_,
    "evaluate": evaluate,
    "record": record,
    "list": list_configs,
    "describe": describe,
    "schedule": schedule,
    "check-env": check_env,
    "tune": tune,
    "evolve": evolve,
    "fork": fork,
    "play": play,
    "export": export,
    "imagine": imagine,
    "report": report,
    "compare": compare,
    "diagnose": diagnose,
    "verify": verify,
    "debug": debug,
    "diff": diff,
    "reproduce": reproduce,
    "doctor": doctor,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    """The text alone: no place in the source, no colours, no second `WARN` from Gymnasium."""
    text = re.sub(r"\x1b\[[0-9;]*m|WARN: ", "", str(message))
    return f"warning: {printable(' '.join(text.split()))}\n"


def main() -> None:
    # Gymnasium and torch warn through `warnings`: one line each, like everything else on stderr.
    warnings.formatwarning = one_line_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows '?', and the run goes on
    escape_streams()  # for good: also the traceback of what nobody expected
    app(prog_name="rl-training")
