"""The displays, driven by made-up updates."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from rl_training.monitoring.display import (
    Display,
    LiveDisplay,
    Pace,
    PlainDisplay,
    QuietDisplay,
    duration,
    make_display,
    number,
    sparkline,
)

CONFIG = SimpleNamespace(
    algo="ppo",
    env_id="CartPole-v1",
    seed=3,
    clip_coef=0.2,
    clip_coef_schedule="linear",
    ent_coef=0.01,
    ent_coef_schedule=None,
)
RUN = Path("runs/ppo-CartPole-v1-s3")


def drive(display: Display, updates: int = 200, total: int = 100_000) -> None:
    """A whole run: returns climb from 10 to 500, the clip range falls, ten evaluations."""
    display.start(CONFIG, RUN, 0, total)
    for update in range(1, updates + 1):
        share = update / updates
        metrics = {
            "episode_return": 10 + 490 * share,
            "episode_length": 10 + 490 * share,
            "policy_loss": -0.0123,
            "clip_coef": 0.2 * (1 - share),
            "ent_coef": 0.01,
        }
        if update % (updates // 10) == 0:
            metrics["eval/mean_return"] = 480 * share
        display.update(int(total * share), metrics, {"wall_seconds": 30 * share, "pace": 3333.0})
    display.finish({"episode_return": 500.0})


def live() -> tuple[LiveDisplay, Console]:
    console = Console(file=io.StringIO(), record=True, force_terminal=True, width=110, _environ={})
    return LiveDisplay(console), console


def test_plain_display_prints_some_twenty_lines_with_all_evaluations() -> None:
    out = io.StringIO()
    drive(PlainDisplay(out))
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["ppo on CartPole-v1, seed 3", "run directory: runs/ppo-CartPole-v1-s3"]
    assert len(lines) - 2 == 20
    assert sum("evaluation" in line for line in lines) == 10
    assert lines[-1].startswith("step 100,000 (100 %)  return 500  length 500  evaluation 480")
    assert lines[-1].endswith("3,333 steps/s  0 s left")
    assert "27 s left" in lines[3], "90 % of 100,000 steps at 3,333 a second are left"


def test_plain_display_prints_every_update_of_a_short_run() -> None:
    out = io.StringIO()
    drive(PlainDisplay(out), updates=10)
    assert sum(line.startswith("step") for line in out.getvalue().splitlines()) == 10


def test_plain_display_says_when_an_evaluation_was_if_not_now() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, lines=2)
    display.start(CONFIG, RUN, 0, 1000)
    display.update(300, {"eval/mean_return": 7.5}, {})
    display.update(500, {"episode_return": 3.0}, {})
    display.update(1000, {"episode_return": 4.0}, {})
    display.update(1000, {"eval/mean_return": 9.0}, {})
    assert out.getvalue().splitlines()[2:] == [
        "step   500 ( 50 %)  return 3  evaluation 7.5 at 300",
        "step 1,000 (100 %)  return 4",
        "step 1,000 (100 %)  evaluation 9",
    ]


def test_plain_display_of_a_resumed_run_spreads_its_lines_over_the_rest() -> None:
    out = io.StringIO()
    display = PlainDisplay(out)
    display.start(CONFIG, RUN, 90_000, 100_000)
    for steps in range(90_100, 100_001, 100):
        display.update(steps, {"episode_return": 1.0}, {})
    assert 2 <= sum(line.startswith("step") for line in out.getvalue().splitlines()) <= 21
    assert "step 100,000" in out.getvalue()


def test_live_display_shows_progress_returns_evaluation_and_moving_knobs_only() -> None:
    display, console = live()
    drive(display)
    console.print(display.render())
    final = console.export_text()[-2000:]
    for expected in (
        "ppo on CartPole-v1, seed 3",
        "100 %",
        "100,000 of 100,000 steps",
        "30 s elapsed, 0 s left, 3,333 steps/s",
        "500",
        "480",
        "at step 100,000",
        "policy_loss",
        "clip_coef",
        "▁",
        "█",
        str(RUN),
    ):
        assert expected in final, f"{expected!r} is missing in\n{final}"
    assert "ent_coef" not in final, "a knob that does not move is not shown"


def test_live_display_halfway() -> None:
    display, console = live()
    display.start(CONFIG, RUN, 0, 1000)
    display.update(500, {"clip_coef": 0.1}, {"wall_seconds": 61.0, "pace": 8.0})
    console.print(display.render())
    display.finish({})
    text = console.export_text()
    assert "50 %" in text
    assert "1 min 01 s elapsed, 1 min 02 s left" in text
    assert "evaluation" not in text
    assert "knobs" not in text


def test_the_first_iteration_compiles_and_says_nothing_about_the_time_left() -> None:
    pace = Pace(total=1000)
    pace.mark(10, 120.0)  # two minutes of compiling
    assert pace.timing() == {}
    for display, text in (
        (PlainDisplay(io.StringIO(), lines=100), "step    10 (  1 %)"),
        (live()[0], "2 min 00 s elapsed"),
    ):
        display.start(CONFIG, RUN, 0, 1000)
        display.update(10, {}, {"wall_seconds": 120.0, "steps_per_second": 0.1} | pace.timing())
        display.finish({})
        shown = display.out.getvalue() if isinstance(display, PlainDisplay) else display.console.export_text()
        assert text in shown and "left" not in shown and "steps/s" not in shown
    pace.mark(20, 120.5)
    assert pace.timing() == {"pace": 20.0}


def test_the_pace_is_that_of_the_last_fifth_of_the_run() -> None:
    pace = Pace(total=1000)
    for step in range(501):
        pace.mark(step, float(step))
    assert pace.timing()["pace"] == 1.0
    for step in range(501, 701):
        pace.mark(step, 500 + (step - 500) / 10)
    assert pace.timing()["pace"] == pytest.approx(10.0)
    assert len(pace.marks) <= 52


def test_a_run_that_is_over_says_so() -> None:
    out = io.StringIO()
    PlainDisplay(out).start(CONFIG, RUN, 1024, 1000)
    assert out.getvalue().splitlines()[-1] == "this run is finished: all 1,024 steps are done"
    display, console = live()
    display.start(CONFIG, RUN, 1024, 1000)
    display.finish({})
    assert "this run is finished" in console.export_text()


def test_live_display_prints_messages_once_and_literally(capsys: pytest.CaptureFixture[str]) -> None:
    display, console = live()
    display.start(CONFIG, RUN, 0, 1000)
    display.message("resumed from step 512 [bold]of[/bold] 1000")
    display.warning("step-000000000512 is damaged")
    display.finish({})
    assert "resumed from step 512 [bold]of[/bold] 1000" in console.export_text()
    assert capsys.readouterr().err == "warning: step-000000000512 is damaged\n"
    assert not display.live.is_started


def test_messages_before_the_start_and_a_finish_without_one_are_fine() -> None:
    display, console = live()
    display.message("replaying the open episodes")
    display.finish({})
    assert "replaying" in console.export_text()
    assert not display.live.is_started


def test_warnings_go_to_stderr_and_all_else_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    for display in (QuietDisplay(), PlainDisplay()):
        drive(display)
        display.message("a notice")
        display.warning("a warning")
    captured = capsys.readouterr()
    assert captured.err == "warning: a warning\n" * 2
    assert captured.out.count("a notice") == 1, "the quiet display prints no notices"


def test_make_display_is_live_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_display(quiet=True)) is QuietDisplay
    assert type(make_display(quiet=False)) is PlainDisplay

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert type(make_display(quiet=False)) is LiveDisplay


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.9, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(475.0, "475"), (475.26, "475.3"), (0.0123456, "0.01235"), (2.5e-5, "2.5e-05"), (float("nan"), "nan")],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([1.0], "▄"), ([0.0, 7.0], "▁█"), ([0.0, float("nan"), 1.0], "▁█"), ([5.0] * 3, "▄▄▄")],
)
def test_sparkline(values: list[float], text: str) -> None:
    assert sparkline(values) == text


def test_sparkline_of_a_long_series_has_its_width_and_keeps_the_shape() -> None:
    line = sparkline([float(value) for value in range(1000)], width=8)
    assert line == "▁▂▃▄▅▆▇█"
