"""Nothing that comes from a file or a name reaches the terminal unescaped."""

import io
import json
import os
import shutil
import signal
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from test_cli import GOOD, cli, write

from rl_training import load_config
from rl_training.commands.options import print_result
from rl_training.monitoring.display import LiveDisplay, PlainDisplay, QuietDisplay
from rl_training.runtime.workflows import Result
from rl_training.settings.loading import dump_config
from rl_training.terminal import Escaped, printable, printable_line, unescaped
from rl_training.tools.experiment_display import LiveSeeds, PlainSeeds
from rl_training.tools.experiments import SeedRun

NASTY = "a\x1b]0;owned\x07b\x9b2Jc\rd\u202ee\u2066f\x08\x7f\nerror: forged"
SHOWN = r"a\x1b]0;owned\x07b\x9b2Jc\rd\u202ee\u2066f\x08\x7f\nerror: forged"
KEPT = SHOWN.replace("\\n", "\n")  # where lines are allowed


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def steers(text):
    """The characters in a text that a terminal would obey."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {char for char in text if unicodedata.category(char) in kinds and char not in "\n\t"}


def test_what_steers_a_terminal_is_written_out_once():
    assert printable(NASTY) == KEPT and printable_line(NASTY) == SHOWN == printable(SHOWN)
    plain = "two\nlines\tand μ ± ▁█ 𝔼 é 漢\u00a0字"
    assert printable(plain) == plain
    assert printable(os.fsdecode(b"file\xff")) == r"file\udcff"
    assert printable("\u2028\u200b\ufeff\x85\0") == r"\u2028\u200b\ufeff\x85\x00"
    assert printable_line("a\nb\x1b") == r"a\nb\x1b"
    assert all(not steers(printable(chr(code))) for code in range(sys.maxunicode + 1))


def test_a_stream_passes_on_what_is_printable_and_is_else_what_it_was():
    below = io.StringIO()
    stream = Escaped(below)
    print(NASTY, 1, file=stream, flush=True)
    stream.writelines([NASTY, "\n"])
    assert below.getvalue() == f"{KEPT} 1\n{KEPT}\n"
    assert stream.isatty() is False and unescaped(stream) is below and unescaped(below) is below


def said(result, *expected):
    """What a command printed, which holds what is expected and steers nothing."""
    text = result.stdout + result.stderr
    assert not steers(text), repr(text)
    assert "\nerror: forged" not in text, text
    for words in expected:
        assert words in text or words.replace(r"\n", " ") in text, text
    return text


def test_a_run_with_a_nasty_name(trained_run, monkeypatch):
    run = Path(NASTY)
    shutil.copytree(trained_run("ppo-cartpole"), run)
    said(cli("resume", run), SHOWN, "this run is finished")
    said(cli("evaluate", run, "--episodes", 1), SHOWN)
    said(cli("report", run, "--no-video"), f"written  {SHOWN}")
    said(cli("compare", run), "CartPole-v1")
    said(cli("compare", run, "--metric", NASTY), SHOWN)
    said(cli("fork", run, "total_timesteps=1"), SHOWN)
    said(cli("export", run, "--to", NASTY), SHOWN)
    said(cli("play", run, "--video", NASTY), SHOWN)
    said(cli("resume", run / "nothing"), SHOWN)
    newest = max((run / "checkpoints").glob("step-*"))
    (newest / "weights.safetensors").write_bytes(b"damaged")
    said(cli("evaluate", newest), SHOWN)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["versions"]["torch"] = NASTY
    (run / "manifest.json").write_text(json.dumps(manifest))
    said(cli("resume", run), SHOWN)


def test_tables_with_a_nasty_environment(trained_run):
    text = dump_config(load_config(dict(algo="ppo", env_id=NASTY, total_timesteps=100)))
    run = shutil.copytree(trained_run("ppo-cartpole"), Path("run"))
    (run / "config.yaml").write_text(text)
    said(cli("compare", run), SHOWN)
    said(cli("schedule", write(text)), f"ppo on {SHOWN}: its knobs")


def test_the_command_that_continues_a_stopped_run_can_be_pasted(trained_run, capsys):
    for name, shown in ((NASTY, f"'{SHOWN}' --trust"), ("two words", "'two words' --trust")):
        run = shutil.copytree(trained_run("ppo-cartpole"), Path(name))
        (run / "config.yaml").write_text(dump_config(load_config(dict(algo="ppo", env_id="mine:Env-v0"))))
        with pytest.raises(typer.Exit) as ended:
            print_result(Result({}, run, run / "checkpoints", signal.SIGTERM), as_json=False)
        assert ended.value.exit_code == 128 + signal.SIGTERM
        assert capsys.readouterr().out.splitlines()[1:] == [f"resume it    rl-training resume {shown}"]
        print_result(Result({}, run, run / "checkpoints"), as_json=False)
        assert "error: forged" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (GOOD + f"{json.dumps(NASTY)}: 1\n", ()),
        (GOOD.replace("ppo", json.dumps(NASTY)), ()),
        (GOOD.replace("CartPole-v1", json.dumps(NASTY)), ()),
        (GOOD + f"env_kwargs: {{{json.dumps(NASTY)}: 1}}\n", ()),
        (GOOD + f"device: {json.dumps(NASTY)}\n", ()),
        (GOOD + f"extends: {json.dumps(NASTY)}\n", ()),
        (GOOD, (f"gamma={NASTY}",)),
        (GOOD, (NASTY,)),
        (GOOD, ("--seeds", NASTY)),
        (GOOD, (f"--{NASTY}",)),
    ],
)
def test_a_config_with_a_nasty_key_or_value(text, arguments):
    done = cli("train", write(text), *arguments)
    assert done.exit_code == 2
    said(done, "owned")


def test_nasty_arguments_of_every_verb(monkeypatch):
    for verb in (
        "train",
        "resume",
        "evaluate",
        "schedule",
        "describe",
        "check-env",
        "compare",
        "report",
    ):
        said(cli(verb, NASTY), "owned")
    said(cli("tune", NASTY, "--space", NASTY, "--trials", 1), "owned")
    said(cli(NASTY), "owned")
    monkeypatch.setenv("OMP_WAIT_POLICY", NASTY)
    monkeypatch.setattr("rl_training.tools.checkup.self_test", list)
    said(cli("doctor"), SHOWN)
    said(cli("list"), "ppo/cartpole")


def test_warnings_are_escaped_too(capsys):
    from rl_training.cli import one_line_warning

    assert (
        one_line_warning(UserWarning(f"{NASTY}\nmore"))
        == f"warning: {SHOWN.replace(chr(92) + 'r', ' ').replace(chr(92) + 'n', ' ')} more\n"
    )
    QuietDisplay().warning(f"{NASTY}\nmore")
    assert capsys.readouterr().err == f"warning: {SHOWN}\\nmore\n"


CONFIG = load_config(dict(algo="ppo", env_id=NASTY + "[/red]", total_timesteps=100))


def test_plain_lines_are_escaped(capsys):
    out = io.StringIO()
    display = PlainDisplay(out)
    display.start(CONFIG, Path(NASTY), 0, 100)
    display.message(NASTY)
    assert out.getvalue().count(SHOWN) == 3 and not steers(out.getvalue())
    run = SeedRun(1, Path(NASTY), status="failed", problem=NASTY)
    seeds = PlainSeeds()
    seeds.start(SimpleNamespace(path=Path(NASTY), config=CONFIG, runs=[run]))
    seeds.update(run)
    seeds.warning(NASTY)
    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 3 and not steers(printed.out + printed.err)


def test_the_live_panel_steers_the_terminal_by_itself_alone(monkeypatch):
    """The data in it is escaped, and so is what others print while it is up; its own codes pass."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Escaped(terminal))
    monkeypatch.setattr(sys, "stderr", Escaped(terminal))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((200, 50)))
    display = LiveDisplay(Console(file=unescaped(sys.stdout), force_terminal=True, width=200))
    display.start(CONFIG, Path(NASTY), 0, 100)
    display.message(NASTY)
    display.warning(NASTY)
    print(NASTY)
    print(NASTY, file=sys.stderr)
    display.finish({})
    text = terminal.getvalue()
    assert "\x1b[" in text  # the panel's own
    assert (
        text.count(SHOWN) >= 6 and "\x1b]0;owned" not in text and not {"\x9b", "\u202e", "\x07"} & set(text)
    )
    assert isinstance(sys.stdout, Escaped) and unescaped(sys.stdout) is terminal


def test_the_live_table_of_seeds_is_escaped(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Escaped(terminal))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((300, 50)))
    run = SeedRun(1, Path(NASTY), status="failed", problem=NASTY)
    seeds = LiveSeeds()
    seeds.start(SimpleNamespace(path=Path(NASTY), config=CONFIG, runs=[run]))
    seeds.update(run)
    seeds.finish()
    text = terminal.getvalue()
    assert "\x1b[" in text and "owned" in text
    assert "\x1b]0;owned" not in text and not {"\x9b", "\u202e", "\x07"} & set(text)
