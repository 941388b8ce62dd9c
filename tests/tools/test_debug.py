"""`debug`: what it shows of an iteration is, bit for bit, what an uninterrupted run computed there."""

import copy

import numpy as np
import pytest
from runs import CADENCES, RUNS
from test_cli import cli, refused
from test_travelling import between, files_in

from rl_training import load_config, train
from rl_training.registry import trainer_class
from rl_training.runtime.engine import Engine
from rl_training.tools.recording import copied_arrays
from rl_training.trees import tree_leaves

BATCHES = {
    "ppo-cartpole": "time_batch",
    "sac-pendulum": "on_device",
    "muzero-cartpole": "draw",
    "impala-cartpole": "collect",
}


@pytest.mark.parametrize(("name", "method"), BATCHES.items())
def test_the_dumped_batch_is_the_one_an_uninterrupted_run_saw(name, method, tmp_path, monkeypatch):
    config = load_config({**CADENCES, **RUNS[name]})
    seen, now = {}, []

    kind = trainer_class(config.algo)
    original, iterate = getattr(kind, method), Engine._iterate

    def seeing(self, *args):
        result = original(self, *args)
        seen.setdefault(now[-1], []).append(copy.deepcopy(result))
        return result

    def noting(engine):
        now.append(engine.progress.steps)
        iterate(engine)

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, seeing)
        patch.setattr(Engine, "_iterate", noting)
        train(config, run_dir=tmp_path / "run", quiet=True)
    before, step = files_in(tmp_path / "run"), between(tmp_path / "run")
    if name == "muzero-cartpole":  # which does not learn in every iteration
        step = max(each for each in seen if each <= step + 100) + config.steps_per_iteration
    done = cli("debug", str(tmp_path / "run"), "--at", str(step), "--dump", str(tmp_path / "it.npz"))
    assert done.exit_code == 0, done.output
    assert "loss " in done.output and "gradient " in done.output
    assert files_in(tmp_path / "run") == before

    dumped = dict(np.load(tmp_path / "it.npz"))
    assert dumped["step/ends"] == step
    (expected,) = seen[step - config.steps_per_iteration][:1]
    number = min(int(key.split("/")[1]) for key in dumped if f"/{method}/" in key)
    arrays = dict(tree_leaves(copied_arrays(expected), f"batch/{number}/{method}"))
    assert len(arrays) >= 5
    for key, array in arrays.items():
        assert dumped[key].dtype == array.dtype and dumped[key].tobytes() == array.tobytes(), key
    assert {key.split("/")[0] for key in dumped} == {"step", "knob", "batch", "loss", "gradient", "parameter"}


def test_an_existing_file_and_another_ending_are_refused(trained_run, tmp_path):
    run = str(trained_run("ppo-cartpole"))
    (tmp_path / "there.npz").touch()
    for name in ("there.npz", "it.txt"):
        refused(cli("debug", run, "--at", "100", "--dump", str(tmp_path / name)), "must be a new file")
    absent = str(tmp_path / "absent" / "it.npz")
    refused(cli("debug", run, "--at", "100", "--dump", absent), "no such directory")


def test_without_a_file_there_is_a_prompt_with_the_iteration(trained_run, monkeypatch):
    from rl_training.tools import debugging

    told = {}

    def interact(banner, local, exitmsg):
        told.update(local, banner=banner)

    monkeypatch.setattr(debugging.code, "interact", interact)
    monkeypatch.setitem(__import__("sys").modules, "IPython", None)
    run = trained_run("ppo-cartpole")
    debugging.debug(run, between(run))
    assert told["trainer"].config.algo == "ppo" and told["engine"].progress.steps == between(run)
    assert set(told["losses"]) >= {"policy_loss", "value_loss"} and told["knobs"]["clip_coef"] > 0
    layers = told["gradients"]["optimizer"]
    assert sum(part.size for part in layers.values()) == told["trainer"].optimizer.gradient.numel()
    assert any(part.any() for part in layers.values()) and "compiled code" in told["banner"]


def test_a_video_of_the_policy_there(trained_run, tmp_path):
    pytest.importorskip("imageio")
    run = trained_run("ppo-cartpole")
    film = tmp_path / "there.gif"
    done = cli("debug", str(run), "--at", str(between(run)), "--episode", str(film))
    assert done.exit_code == 0, done.output
    assert film.stat().st_size > 1000


def test_pairs_of_an_expert_are_a_batch_and_an_optimizer_that_did_nothing_has_no_gradient(trained_run):
    from rl_training.tools.recording import recorded_at

    run = trained_run("bc-cartpole")
    with recorded_at(run, between(run)) as (_, record):
        assert [set(batch["draw"]) for batch in record.batches] == [{"obs", "action"}]
        assert set(record.gradients) == {"optimizer"}
    with recorded_at(trained_run("sac-pendulum"), 1) as (engine, record):
        assert engine.progress.steps < engine.config.learning_starts
        assert record.gradients == {} and record.compiled == []
