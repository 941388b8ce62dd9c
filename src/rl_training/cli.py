"""The command `rl-training`.

Exit codes: 0 done; 1 the run failed (numbers that are not finite, a failed write, an environment that fails
its check); 2 something the user can put right, said in one line on stderr; 130 and 143 after SIGINT and
SIGTERM, with everything saved. Progress and results go to stdout, only warnings and errors to stderr.

Nothing heavy is imported at the top: `rl-training --help` must not wait for torch.
"""

import itertools
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.commands.compare import compare
from rl_training.commands.doctor import doctor
from rl_training.commands.export import export
from rl_training.commands.fork import fork
from rl_training.commands.options import (
    AcceptDamagedLog,
    Checkpoint,
    Config,
    Json,
    Overrides,
    PlaySeed,
    PolicyPath,
    Quiet,
    RunDir,
    Sample,
    TaskName,
    Trust,
    Which,
    print_json,
    report_run,
    showing,
)
from rl_training.commands.play import play
from rl_training.commands.report import report
from rl_training.commands.seeds import train_seeds
from rl_training.commands.tune import tune
from rl_training.errors import (
    ConfigError,
    EnvironmentFault,
    ExportError,
    NonFiniteError,
    StorageError,
    UserError,
    traceback_of,
)
from rl_training.terminal import escape_streams, printable, printable_line

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
        except (NonFiniteError, StorageError, ExportError) as error:
            return fail(1, error)
        except EnvironmentFault as error:  # what helps is the environment's own traceback
            print(traceback_of(error), end="", file=sys.stderr)
            return fail(1, error)
        except USAGE_ERRORS as error:
            told = error.format_message().replace("Value error, ", "").rstrip(".")
            return fail(2, told + " (see rl-training --help)")
        except (KeyboardInterrupt, typer.Abort):
            return fail(130, "interrupted")


def fail(code: int, error: Exception | str) -> int:
    print("error: " + " ".join(printable(str(error)).splitlines()), file=sys.stderr, flush=True)
    return code


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


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Where to write the run; must be new or empty. [default: runs/ALGO-ENV-sSEED]"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Train several seeds as one experiment, in runs/ALGO-ENV-seeds: 1-5 or 1,2,7."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="With --seeds: how many run side by side.")] = 1,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train an algorithm from a config.

    With --seeds every seed is a run of its own; killed, the same command goes on where it was.

    \b
    rl-training train ppo/cartpole
    rl-training train ppo/cartpole --seeds 1-5 --jobs 2
    rl-training train my.yaml seed=2 clip_coef_schedule='{type: linear, start: 0.3, end: 0.1}'
    """
    from rl_training.settings.loading import load_config, located

    checked = load_config(config, overrides or ())
    if seeds is None and jobs > 1:
        raise UserError("--jobs is for several runs: add --seeds, such as --seeds 1-5")
    from rl_training.runtime import workflows

    try:
        if seeds is not None:
            train_seeds(checked, overrides or (), seeds, jobs, run_dir, json_, quiet)
            return
        with showing(quiet) as display:
            result = workflows.train_until_stopped(checked, run_dir=run_dir, display=display)
    except ConfigError as error:
        raise located(error, config, overrides or ()) from error
    report_run(result, json_)


@app.command()
def resume(
    run_dir: RunDir,
    changes: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    trust: Trust = False,
    accept_damaged_log: AcceptDamagedLog = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run, exactly as if it had never stopped."""
    if changes:
        command = shlex.join(["rl-training", "fork", str(run_dir), *changes])
        raise UserError(f"resume continues a run as it is; to change something, fork it: {command}")
    from rl_training.runtime import workflows

    with showing(quiet) as display:
        result = workflows.resume_until_stopped(
            run_dir, display=display, trust=trust, accept_damaged_log=accept_damaged_log
        )
    report_run(result, json_)


@app.command()
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
        own = name.removesuffix("mean_return")
        print(f"task    {scores[name]:.2f} ± {scores[f'{own}std_return']:.2f}  {printable_line(own[5:-1])}")
    episodes = int(scores["episodes"])
    print(f"played  {episodes} {'episode' if episodes == 1 else 'episodes'} with {manner}")
    is_checkpoint = (path / "state.json").exists()
    print(f"policy  {printable_line(path)}" + ("" if is_checkpoint else f", {checkpoint.value} checkpoint"))


@app.command()
def record(
    path: PolicyPath,
    episodes: Annotated[int, typer.Option(min=1, help="How many.")],
    out: Annotated[str, typer.Option(help="A new file ending in .npz, or minari:ID for a Minari dataset.")],
    seed: PlaySeed = None,
    checkpoint: Checkpoint = Which.last,
    sample: Sample = False,
    trust: Trust = False,
    task: TaskName = None,
    json_: Json = False,
) -> None:
    """Play episodes with a trained policy and write them as demonstrations."""
    from rl_training.runtime import workflows

    made = workflows.record_demonstrations(
        path,
        out,
        episodes=episodes,
        seed=seed,
        sample=sample,
        checkpoint=checkpoint.value,
        trust=trust,
        task=task,
    )
    returns = made.returns
    mean = sum(returns) / len(returns)
    if json_:
        print_json({"out": out, "episodes": len(returns), "steps": sum(made.lengths), "mean_return": mean})
        return
    print(f"return   {mean:.2f}  (lowest {min(returns):.2f}, highest {max(returns):.2f})")
    print(f"played   {len(returns)} episodes, {sum(made.lengths)} steps")
    print(f"written  {printable_line(out)}")


@app.command("list")
def list_() -> None:
    """List the algorithms and the shipped configs."""
    from rl_training.registry import ALGORITHMS, shipped_config_path, shipped_configs

    print("algorithms (rl-training describe ALGO)")
    for name in sorted(ALGORITHMS):
        print(f"  {name}")
    print("configs (rl-training train CONFIG)")
    names = shipped_configs()
    width = max(map(len, names), default=0)
    for name in names:
        print(f"  {name:<{width}}  {opening_sentence(shipped_config_path(name))}".rstrip())


def opening_sentence(path: Path) -> str:
    """The first sentence of the comment that opens a config, which says what it is for."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    return " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")


@app.command()
def describe(algo: Annotated[str, typer.Argument(metavar="ALGO", help="An algorithm, such as ppo.")]) -> None:
    """Print every config field: meaning, default, range, aliases."""
    from rl_training.registry import config_class_of
    from rl_training.settings.describing import describe_config

    config_class = config_class_of(algo)
    print(f"{algo}: {(config_class.__doc__ or '').strip().splitlines()[0]}")
    print("A knob also takes <name>_schedule and <name>_warmup_steps, under any of its names.")
    for row in describe_config(config_class):
        names = " or ".join((row.name, *row.aliases))
        facts = [row.type, row.range, row.default if row.default == "required" else f"default {row.default}"]
        print(f"\n{names}{'  [knob]' if row.knob else ''}")
        print(f"    {row.sentence}")
        print(f"    {'; '.join(filter(None, facts))}")


@app.command()
def schedule(
    config: Config,
    overrides: Overrides = None,
    png: Annotated[Path | None, typer.Option(help="Also draw to this file (needs the extra plot).")] = None,
) -> None:
    """Draw the knobs of a config over the run, before training."""
    from rl_training.reporting import schedule_plot
    from rl_training.runtime.controls import idle_knobs
    from rl_training.runtime.picture_defaults import with_picture_defaults
    from rl_training.settings.loading import load_config

    checked = with_picture_defaults(load_config(config, overrides or ()), by_id_alone=True)
    for text in idle_knobs(checked):
        print(f"warning: {printable_line(text)}", file=sys.stderr)
    if png is not None:  # first, so that what goes wrong with it is not lost below the text
        schedule_plot.draw_png(checked, png)
    print(schedule_plot.draw_text(checked))
    if png is not None:
        print(f"written: {printable_line(png)}")


@app.command("check-env")
def check_env(
    env_id: Annotated[
        str, typer.Argument(metavar="ENV_ID", help="A registered id, module:EnvId or FILE.py:Class.")
    ],
    env_kwargs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments of the environment.")
    ] = None,
    json_: Json = False,
) -> None:
    """Check an environment: API, spaces, seeding, replay, autoreset.

    Exits with 1 when a check fails. A warning is something the engine can live with.
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


for verb in (tune, fork, play, export, report, compare, doctor):
    app.command()(verb)


def one_line_warning(message: Warning | str, *_: Any, **__: Any) -> str:
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
