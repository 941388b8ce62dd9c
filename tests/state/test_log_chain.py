"""The hash chain of metrics.jsonl: any damage is found, `resume` names the line, and weights are never lost for it."""

import io
import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from runs import assert_same_run, small_config
from test_cli import cli, refused

from rl_training import resume, train
from rl_training.errors import RunError
from rl_training.monitoring.display import QuietDisplay
from rl_training.state import chain
from rl_training.tools.forking import fork


def make_log(lines: int = 40) -> tuple[bytes, chain.Mark]:
    data, value = b"", chain.START
    for number in range(lines):
        said = {"step": 8 * number, "loss": 1 / (number + 1), "weights": f"{number:016x}"}
        line, value = chain.linked(value, said)
        data += line
    return data, chain.Mark(len(data), value, 0)


def corrupted(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A log with one fault, of a kind drawn at random."""
    at, end = sorted(rng.sample(range(len(data)), 2))
    lines = data.splitlines(keepends=True)
    one, other = sorted(rng.sample(range(len(lines)), 2))
    kinds = {
        "bit": lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        "removed": lambda: data[:at] + data[min(end, at + 9) :],
        "inserted": lambda: data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:],
        "doubled": lambda: data[:end] + data[at:],
        "swapped": lambda: b"".join(
            [*lines[:one], lines[other], *lines[one + 1 : other], lines[one], *lines[other + 1 :]]
        ),
        "line removed": lambda: b"".join(lines[:one] + lines[one + 1 :]),
        "line doubled": lambda: b"".join(lines[: one + 1] + lines[one:]),
        "cut": lambda: data[:at],
        "appended": lambda: data + rng.randbytes(rng.randint(1, 300)),
    }
    kind = rng.choice(list(kinds))
    return kind, kinds[kind]()


def test_300_random_corruptions_are_found_or_leave_the_verified_bytes_as_they_were():
    data, mark = make_log()
    assert chain.verify(io.BytesIO(data), mark) is None
    rng, found = random.Random(5), 0
    for _ in range(300):
        kind, bad = corrupted(data, rng)
        damage = chain.verify(io.BytesIO(bad), mark)
        if bad[: mark.length] == data:
            assert damage is None, kind
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(bad, data, strict=False)) if a != b), min(len(bad), len(data))
        )
        assert damage is not None, kind
        assert damage.line == data[:same].count(b"\n") + 1, kind  # the line of the first byte that differs
        found += 1
    assert found > 250


def test_a_log_of_another_run_is_found_although_every_line_follows_the_one_before():
    data, mark = make_log()
    other, _ = make_log(39)
    line, _ = chain.linked(chain.hash_of(other.splitlines(keepends=True)[-1]), {"step": 312, "loss": 0.026})
    padded = other + line[:-3] + b" " * (len(data) - len(other) - len(line)) + line[-3:]
    assert chain.verify(io.BytesIO(other), mark).line == 40
    assert chain.verify(io.BytesIO(padded), mark).line == 40


def test_what_stands_before_the_chain_is_covered_as_a_whole():
    head = b'{"step": 1}\n{"step": 2}\n'
    mark, damage = chain.begin_after(io.BytesIO(head), len(head))
    assert damage is None and mark.begins == mark.length == len(head)
    line, value = chain.linked(mark.value, {"step": 3})
    later = chain.Mark(len(head + line), value, mark.begins)
    assert chain.verify(io.BytesIO(head + line), later) is None
    for at in range(len(head + line)):
        bad = bytearray(head + line)
        bad[at] ^= 4
        assert chain.verify(io.BytesIO(bad), later).line <= 3
    assert chain.begin_after(io.BytesIO(head[:-3]), len(head))[1].line == 2


def test_numbers_are_read_and_words_are_left_out():
    assert chain.numbers(make_log(1)[0]) == {"step": 0, "loss": 1.0}
    for line in (
        b"[1]",
        b"{}",
        b'{"step": NaN}',
        b'{"step": 1, "x": true}',
        b'{"step": 1, "x": [1]}',
        b"[" * 99_999,
    ):
        assert chain.numbers(line) is None
    assert chain.numbers(b'{"step": 1' + b"0" * 400 + b"}") is None


class Told(QuietDisplay):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


class StoppedAt(QuietDisplay):
    """Ends a run in the middle, as a kill would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def update(self, steps, metrics, timing):
        if steps >= self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was killed between two checkpoints, with lines behind the newest one."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        train(small_config("ppo-cartpole"), run_dir=path, display=StoppedAt(1700))
    return path


@pytest.fixture
def run(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def change_line(path: Path, number: int, change) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))


DAMAGE = {
    "a digit": (lambda path: change_line(path, 3, lambda line: line.replace(b"1", b"2", 1)), 3),
    "the hash left out": (
        lambda path: change_line(path, 2, lambda line: line.partition(b', "chain"')[0] + b"}\n"),
        2,
    ),
    "a line left out": (lambda path: change_line(path, 4, lambda line: b""), 4),
    "every hash left out": (
        lambda path: path.write_bytes(
            b"".join(line.partition(b', "chain"')[0] + b"}\n" for line in path.read_bytes().splitlines())
        ),
        1,
    ),
    "cut in a line": (lambda path: path.write_bytes(path.read_bytes()[:700]), 2),
    "deleted": (lambda path: path.unlink(), 1),
    "noise": (lambda path: change_line(path, 2, lambda line: b"\xff\x00" * 30 + b"\n"), 2),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_log_refuses_to_resume_and_to_fork_and_can_be_accepted(kind, run, tmp_path):
    damage, line = DAMAGE[kind]
    damage(run / "metrics.jsonl")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for go in (resume, lambda path: fork(path, run_dir=tmp_path / "fork")):
        with pytest.raises(RunError, match=rf"metrics.jsonl: line {line} is damaged .*--accept-damaged-log"):
            go(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    told = Told()
    forked = fork(run, run_dir=tmp_path / "fork", display=told, accept_damaged_log=True)
    assert forked.metrics["episodes"] > 0 and any(f"line {line} is damaged" in text for text in told.warnings)
    ended = resume(run, accept_damaged_log=True)
    assert ended.metrics == forked.metrics
    for path in (run, tmp_path / "fork"):
        (entry,) = json.loads((path / "manifest.json").read_bytes())["accepted_damage"]
        assert entry["line"] == line and entry["step"] < 1700
    log = (run / "metrics.jsonl").read_bytes()
    assert resume(run).metrics == ended.metrics  # and from here on the log is whole again
    assert (run / "metrics.jsonl").read_bytes() == log
    if kind == "a digit":
        assert log.count(b"\n") == len((tmp_path / "fork" / "metrics.jsonl").read_bytes().splitlines())


def test_damage_that_is_accepted_again_after_a_kill_leaves_no_line_twice(run):
    (run / "metrics.jsonl").unlink()
    with pytest.raises(KeyboardInterrupt):  # lines, and no checkpoint yet
        resume(run, accept_damaged_log=True, display=StoppedAt(1700))
    resume(run, accept_damaged_log=True)
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    said = [(line["step"], "eval/mean_return" in line) for line in map(json.loads, lines)]
    assert len(said) == len(set(said)) and said == sorted(said)
    resume(run)  # and the chain verifies


def test_weights_after_accepted_damage_are_those_of_the_run_without(run, stopped, tmp_path):
    whole = Path(shutil.copytree(stopped, tmp_path / "whole"))
    resume(whole)
    (run / "metrics.jsonl").unlink()
    result = resume(run, accept_damaged_log=True)
    for name in ("weights.safetensors", "state.safetensors"):
        assert (result.checkpoint_path / name).read_bytes() == (
            whole / "checkpoints" / result.checkpoint_path.name / name
        ).read_bytes()


def test_lines_behind_the_checkpoint_may_be_damaged(run, stopped, tmp_path):
    whole = Path(shutil.copytree(stopped, tmp_path / "whole"))
    resume(whole)
    log = run / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-40] + b"\x00\x00")
    resume(run)
    assert_same_run(run, whole)


def test_a_finished_run_is_refused_too_and_accepting_changes_nothing(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run("ppo-cartpole"), "run")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert cli("resume", "run").exit_code == 0
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    change_line(Path("run/metrics.jsonl"), 5, lambda line: line.replace(b"0.", b"1.", 1))
    refused(cli("resume", "run"), "line 5 is damaged")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert cli("resume", "run", "--accept-damaged-log").exit_code == 0
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_every_line_carries_a_hash_and_the_checkpoint_the_newest(trained_run):
    from rl_training.state import checkpoints

    path = trained_run("ppo-cartpole")
    newest = max((path / "checkpoints").glob("step-*"))
    progress = checkpoints.load_checkpoint(newest)["progress"]
    mark = chain.Mark(progress["metrics_bytes"], progress["chain"], progress["chain_begins"])
    with chain.opened(path / "metrics.jsonl") as log:
        assert chain.verify(log, mark) is None
    last = (path / "metrics.jsonl").read_text().splitlines()[-1]
    assert last.endswith(f', "chain": "{progress["chain"]}"}}') and mark.begins == 0


def test_a_pipe_in_place_of_a_log_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    signal.alarm(60)  # what waits ends by it
    said = "metrics.jsonl: cannot be read: it is not a regular file"
    with pytest.raises(RunError, match=said), chain.opened(tmp_path / "metrics.jsonl"):
        pass
    signal.alarm(0)
