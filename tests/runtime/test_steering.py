"""Steering a run that trains: what it is told holds, survives kills, and is what a config could have said before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from runs import Command, child_process, go_on, in_child, metrics_in, small_config
from test_cli import cli, refused

from rl_training import load_config, resume, train
from rl_training.errors import RunError
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime.controls import Controls
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import resume_until_stopped, train_until_stopped
from rl_training.state import inbox
from rl_training.state.journal import Event, Journal
from rl_training.tools.forking import fork
from rl_training.tools.verifying import verify

# A knob of each algorithm that is read after a rollout, before a search, at each step; and its steps per iteration.
STEERED = {
    "ppo-cartpole": ("learning_rate", "clip_coef"),
    "sac-pendulum": ("learning_rate", "tau"),
    "muzero-cartpole": ("learning_rate", "temperature"),
}


class Telling(QuietDisplay):
    """Sends commands to a run from inside it, before its iterations with given numbers; none that it took before."""

    def __init__(self, run_dir: Path, commands: dict[int, list[dict[str, Any]]], patch: Any) -> None:
        self.run_dir, self.commands, self.answers = run_dir, commands, list[dict[str, Any]]()
        asked = Engine._asked_to_stop
        patch.setattr(inbox, "BETWEEN", 0.0)

        def telling(engine: Engine, stop: Any) -> bool:
            self.tell(engine)
            return asked(engine, stop)

        patch.setattr(Engine, "_asked_to_stop", telling)

    def tell(self, engine: Engine) -> None:
        iteration = engine.progress.iteration
        if any(event.iteration == iteration for event in Journal(engine.run.journal_path).events):
            return
        with open(self.run_dir / inbox.NAME, "ab") as file:
            for number, command in enumerate(self.commands.get(iteration, ())):
                said = {"id": f"{iteration}-{number}", "at": None, "values": {}} | command
                file.write(json.dumps(said).encode() + b"\n")


def steered_and_killed(
    config: Any, run_dir: Path, commands: dict[int, list[dict[str, Any]]], kills: list[int]
) -> None:
    """Train with these commands; killed before the iterations with these numbers, and resumed each time."""

    def go(kill: int | None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            display = Telling(run_dir, commands, patch)
            iterate = Engine._iterate

            def dying(engine: Engine) -> None:
                if engine.progress.iteration == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                iterate(engine)

            patch.setattr(Engine, "_iterate", dying)
            if (run_dir / "config.yaml").exists():
                resume_until_stopped(run_dir, display=display)
            else:
                train_until_stopped(config, run_dir=run_dir, display=display)

    for kill in kills:
        assert in_child(go, kill) is None
    go(None)


def weights(run_dir: Path) -> bytes:
    return (sorted((run_dir / "checkpoints").iterdir())[-1] / "weights.safetensors").read_bytes()


def set_to(at: int | None = None, **values: Any) -> dict[str, Any]:
    return {"do": "set", "at": at, "values": values}


@pytest.mark.parametrize("name", STEERED)
def test_a_steered_run_is_the_run_of_a_config_with_these_schedules_however_often_it_is_killed(
    name: str, tmp_path: Path
) -> None:
    first, second = STEERED[name]
    config = small_config(name, **{f"{first}_schedule": None, f"{second}_schedule": None})
    per = config.steps_per_iteration
    one, two = getattr(config, first), getattr(config, second)
    last = config.total_timesteps // per
    moments = [last // 4, last // 2, 3 * last // 4]
    later = moments[1] * per + 2 * per + 1
    commands = {
        moments[0]: [set_to(**{first: one / 3})],
        moments[1]: [set_to(**{second: two / 2}), set_to(at=later, **{first: one * 2})],
        moments[2]: [set_to(**{first: one / 7, second: two / 5})],
    }
    steered_and_killed(config, tmp_path / "steered", commands, [])
    # Killed right behind a command that no checkpoint knows of, and between the last two.
    steered_and_killed(config, tmp_path / "killed", commands, [moments[1], moments[2] - 1])
    begins = [moment * per + 1 for moment in moments]
    planned = load_config(
        config,
        {
            f"{first}_schedule": {
                "type": "step",
                "points": [[0, one], [begins[0], one / 3], [later, one * 2], [begins[2], one / 7]],
            },
            f"{second}_schedule": {
                "type": "step",
                "points": [[0, two], [begins[1], two / 2], [begins[2], two / 5]],
            },
        },
    )
    train(planned, run_dir=tmp_path / "planned", quiet=True)
    train(config, run_dir=tmp_path / "plain", quiet=True)
    logs = {run: (tmp_path / run / "metrics.jsonl").read_bytes() for run in ("steered", "killed", "planned")}
    assert logs["steered"] == logs["killed"] == logs["planned"]
    assert weights(tmp_path / "steered") == weights(tmp_path / "killed") == weights(tmp_path / "planned")
    assert weights(tmp_path / "steered") != weights(tmp_path / "plain")
    assert {line[first] for line in metrics_in(tmp_path / "steered") if first in line} >= {one / 3, one / 7}
    journals = [(tmp_path / run / "journal.jsonl").read_bytes() for run in ("steered", "killed")]
    assert journals[0] == journals[1] and journals[0].count(b"\n") == 4


TINY = dict(
    algo="ppo",
    env_id="CartPole-v1",
    vectorization="sync",
    total_timesteps=1024,
    num_envs=2,
    num_steps=32,
    hidden_sizes=[8],
    eval_episodes=2,
    eval_interval=512,
    checkpoint_interval=256,
    log_interval=64,
)


@pytest.fixture
def config() -> Any:
    return load_config(TINY)


def test_an_evaluation_that_was_asked_for_is_made_again_at_its_step(config: Any, tmp_path: Path) -> None:
    commands = {4: [{"do": "evaluate"}, {"do": "checkpoint"}], 6: [{"do": "evaluate", "at": 600}]}
    steered_and_killed(config, tmp_path / "one", commands, [])
    steered_and_killed(config, tmp_path / "two", commands, [4, 7, 11])
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "two")]
    assert logs[0] == logs[1]
    evaluated = [line["step"] for line in metrics_in(tmp_path / "one") if "eval/mean_return" in line]
    # At 256 as told; at 512 and 1024 because it is due; at 640, the first iteration that reaches 600.
    assert evaluated == [256, 512, 640, 1024]
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


def answers(run_dir: Path, commands: list[dict[str, Any]], config: Any, patch: Any) -> list[dict[str, Any]]:
    """What a run answers to commands before its fourth iteration."""
    said: list[dict[str, Any]] = []
    real = inbox.Inbox.answer
    patch.setattr(
        inbox.Inbox, "answer", lambda box, command, **told: said.append(told) or real(box, command, **told)
    )
    train_until_stopped(config, run_dir=run_dir, display=Telling(run_dir, {4: commands}, patch))
    return said


def test_what_makes_no_sense_is_refused_and_leaves_no_trace(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        "no knob of this run; did you mean learning_rate?": set_to(learning_rat=1),
        "must be at least 0": set_to(learning_rate=-1),
        "must be a number": set_to(learning_rate="fast"),
        "--at 256 is not ahead of the run, which is at step 256 of 1,024": set_to(at=256, learning_rate=1),
        "--at 1024 is at or beyond the end of the run": set_to(at=1024, learning_rate=1),
        "gamma must be a number, not None": set_to(gamma=None),
        "'dance' is nothing to do": {"do": "dance"},
        "'set' is nothing to do": {"do": "set"},
        "'num_steps' is no knob": set_to(num_steps=64),
    }
    said = answers(tmp_path / "run", list(wrong.values()), config, monkeypatch)
    for words, answer in zip(wrong, said, strict=True):
        assert words in answer["refused"]
    assert not (tmp_path / "run" / "journal.jsonl").exists()
    assert not (tmp_path / "run" / inbox.NAME).exists()


def test_a_paused_run_is_continued_at_no_step(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cli("set", "run", "continue", "--at", 100), "continue takes no --at")


def test_a_value_replaces_schedule_and_warm_up_for_good() -> None:
    config = load_config(
        TINY, {"learning_rate": 1.0, "learning_rate_schedule": "linear", "learning_rate_warmup_steps": 400}
    )
    controls, planned = Controls.of(config), Controls.of(config)
    controls.steer("lr", 300, 0.25)
    controls.steer("learning_rate", 700, 0.5)
    values = [controls.values(step)["learning_rate"] for step in (299, 300, 500, 699, 700, 1024)]
    assert values == [planned.values(299)["learning_rate"], 0.25, 0.25, 0.25, 0.5, 0.5]


def test_memory_that_is_sized_by_a_knob_is_not_exceeded() -> None:
    controls = Controls.of(small_config("muzero-cartpole"))
    assert controls.checked("num_simulations", 4) == 4
    with pytest.raises(ValueError, match="at most 4, the highest value in the config"):
        controls.checked("num_simulations", 5)


def test_what_lay_in_a_copied_run_is_never_obeyed(config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        Telling(run_dir, {8: [{"do": "stop"}]}, patch)
        with pytest.raises(SystemExit):
            train(config, run_dir=run_dir, quiet=True)
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    pending = {"id": "1", "do": "set", "at": None, "values": {"learning_rate": 0.5}}
    (copy / inbox.NAME).write_text(json.dumps(pending) + "\n")
    for path in (run_dir, copy):
        resume(path, quiet=True)
    assert (run_dir / "metrics.jsonl").read_bytes() == (copy / "metrics.jsonl").read_bytes()
    assert [event.do for event in Journal(copy / "journal.jsonl").events] == ["stop"]


def test_only_the_owner_can_send(config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    modes = []
    asked = Engine._asked_to_stop

    def looking(engine: Engine, stop: Any) -> bool:
        modes.append((engine.run.path / inbox.NAME).stat().st_mode & 0o777)
        return asked(engine, stop)

    monkeypatch.setattr(Engine, "_asked_to_stop", looking)
    train(config, run_dir=tmp_path / "run", quiet=True)
    assert set(modes) == {0o600}
    with pytest.raises(RunError, match="no process is training this run"):
        inbox.send(tmp_path / "run", "pause")
    (tmp_path / "run" / inbox.NAME).touch()  # as a kill leaves it
    with pytest.raises(RunError, match="no process is training this run"):
        inbox.send(tmp_path / "run", "pause")


def test_a_journal_is_whole_or_refused(config: Any, tmp_path: Path, monkeypatch: Any) -> None:
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        Telling(
            run_dir, {3: [set_to(learning_rate=1e-3)], 5: [set_to(clip_coef=0.1)], 9: [{"do": "stop"}]}, patch
        )
        with pytest.raises(SystemExit):
            train(config, run_dir=run_dir, quiet=True)
    journal = run_dir / "journal.jsonl"
    whole = journal.read_bytes()
    for damaged, words in (
        (whole.replace(b"0.001", b"0.002"), "its hash does not match"),
        (b"", "not the journal that the checkpoint counts on"),
        (whole[: whole.index(b"\n") + 1], "not the journal that the checkpoint counts on"),
    ):
        journal.write_bytes(damaged)
        with pytest.raises(RunError, match=words):
            resume(run_dir, quiet=True)
    journal.write_bytes(whole + b'{"do": "se')  # which a kill cut off
    resume(run_dir, quiet=True)
    forged = Journal(tmp_path / "journal.jsonl")
    forged.append(Event("set", 1, 64, 65, {"learning_rate": -1.0}))
    (tmp_path / "journal.jsonl").rename(fresh_run(config, tmp_path / "other", monkeypatch) / "journal.jsonl")
    with pytest.raises(RunError, match=r"damaged .*must be at least 0"):
        resume(tmp_path / "other", quiet=True)


def fresh_run(config: Any, run_dir: Path, patch: Any) -> Path:
    """A run that was stopped and never steered."""
    with patch.context() as patched:
        asked = Engine._asked_to_stop

        def stopping(engine: Engine, stop: Any) -> bool:
            if engine.progress.iteration == 5:
                stop.number = signal.SIGTERM
            return asked(engine, stop)

        patched.setattr(Engine, "_asked_to_stop", stopping)
        with pytest.raises(SystemExit):
            train(config, run_dir=run_dir, quiet=True)
    return run_dir


def test_a_fork_goes_on_as_its_parent_was_told_unless_it_is_given_the_knob_anew(
    config: Any, tmp_path: Path
) -> None:
    commands = {3: [set_to(learning_rate=1e-3, clip_coef=0.1), set_to(at=900, ent_coef=0.1)]}
    steered_and_killed(config, tmp_path / "parent", commands, [])
    middle = sorted((tmp_path / "parent" / "checkpoints").iterdir())[0]
    fork(middle, run_dir=tmp_path / "same", quiet=True)
    assert (tmp_path / "same" / "metrics.jsonl").read_bytes() == (
        tmp_path / "parent" / "metrics.jsonl"
    ).read_bytes()
    fork(middle, {"learning_rate": 0.5}, run_dir=tmp_path / "other", quiet=True)
    last = metrics_in(tmp_path / "other")[-2]
    assert (last["learning_rate"], last["clip_coef"], last["ent_coef"]) == (0.5, 0.1, 0.1)
    resume(tmp_path / "other", quiet=True)


def test_a_steered_run_is_verified_from_its_journal(config: Any, tmp_path: Path) -> None:
    commands = {3: [set_to(learning_rate=1e-3), {"do": "evaluate"}], 9: [set_to(clip_coef=0.1, ent_coef=0.1)]}
    config = load_config(config, {"keep_checkpoints": 9})
    steered_and_killed(config, tmp_path / "run", commands, [10])
    verdict = verify(tmp_path / "run")
    assert verdict.is_good and verdict.lines > 16 and verdict.checkpoints == 4, str(verdict)
    (tmp_path / "run" / "journal.jsonl").unlink()
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    assert "step 192, differs" in verify(tmp_path / "run").first  # the evaluation that was asked for there


def test_another_terminal_pauses_sets_and_stops_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = load_config(TINY, {"total_timesteps": 10_000_000, "log_interval": 640})
    child = child_process(go_on, config, run_dir)
    try:
        log = run_dir / "metrics.jsonl"
        while not (log.exists() and log.stat().st_size):  # at step 0 no step is in the past
            assert child.is_alive()
            time.sleep(0.01)
        assert "pause from step" in inbox.send(run_dir, "pause")
        length = (run_dir / "metrics.jsonl").stat().st_size
        command = Command("set", run_dir, "lr=1e-3", "evaluate")
        out, err = command.communicate()
        assert (command.returncode, err) == (0, "") and "set learning_rate = 0.001 from step" in out
        refused = Command("set", run_dir, "lr=1e-3", "--at", "1")
        out, err = refused.communicate()
        assert refused.returncode == 2 and "--at 1 is not ahead of the run" in err
        assert (run_dir / "metrics.jsonl").stat().st_size == length  # it waits
        assert "continue from step" in inbox.send(run_dir, "continue")
        assert inbox.send(run_dir, "continue") == "it was not paused"
        assert "stop from step" in inbox.send(run_dir, "stop")
    finally:
        child.join(60)
        child.kill()
    assert child.exitcode == 128 + signal.SIGTERM
    drawn = Command("schedule", run_dir)
    out, _ = drawn.communicate()
    assert "told while it trained" in out and "learning_rate = 0.001" in out
    told = [event.do for event in Journal(run_dir / "journal.jsonl").events]
    assert told == ["pause", "set", "evaluate", "continue", "stop"] and "continue from step" in out


def test_a_journal_that_was_removed_is_written_again_with_the_next_command(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(Event("set", 1, 64, 65, {"learning_rate": 1e-3}))
    journal.path.unlink()
    journal.append(Event("set", 2, 128, 129, {"learning_rate": 1e-4}))
    assert Journal(journal.path).events == journal.events and len(journal.events) == 2
