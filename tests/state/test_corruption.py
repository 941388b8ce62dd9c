"""Damaged run directories: `resume` ends exactly like a run that was never damaged, or refuses in one line."""

from __future__ import annotations

import shutil

import pytest
from corruption import KILLED, campaign, table, train_and_kill

from rl_training import evaluate_checkpoint, resume
from rl_training.errors import CheckpointError
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime.on_policy import OnPolicyTrainer

FEW, MANY = 30, 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.mark.parametrize("name", KILLED)
def test_a_damaged_file_is_recovered_exactly_or_refused_in_one_line(name, folder):
    _, wrong = campaign(name, range(FEW), folder)
    assert not wrong, "\n".join(wrong)


@pytest.mark.faults
@pytest.mark.parametrize("name", KILLED)
def test_many_damaged_files(name, folder, capsys):
    counts, wrong = campaign(name, range(FEW, FEW + MANY), folder)
    with capsys.disabled():  # the counts are shown of a test that passes, too
        print(f"\n{name}\n{table(counts)}")
    assert not wrong, "\n".join(wrong)


class Listening(QuietDisplay):
    def __init__(self):
        self.said = []

    def warning(self, text):
        self.said.append(text)


def test_a_damaged_best_policy_is_refused_and_one_that_was_removed_is_found_anew(
    folder, tmp_path, monkeypatch
):
    _, killed = train_and_kill("ppo", folder)
    run, display = tmp_path / "run", Listening()
    shutil.copytree(killed, run)
    weights = run / "best" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    closed, close = [], OnPolicyTrainer.close
    monkeypatch.setattr(OnPolicyTrainer, "close", lambda trainer: (closed.append(trainer), close(trainer)))
    with pytest.raises(
        CheckpointError, match=r"checksum does not match.*remove .*best to continue without it"
    ):
        resume(run)
    assert len(closed) == 1
    shutil.rmtree(run / "best")
    assert resume(run, display=display).interrupted is None
    assert "is missing; the next evaluation becomes the best so far" in display.said[-1]
    evaluate_checkpoint(run, checkpoint="best", episodes=1)
