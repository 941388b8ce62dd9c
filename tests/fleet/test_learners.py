"""Several learners: the mean of their gradients is the gradient of the whole batch, and runs stay exact."""

import copy
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import assert_same_run, small_config

from rl_training import resume, train
from rl_training.errors import ConfigError, RunError
from rl_training.fleet.learners import device_of, received, threads, threads_of_each, to_send
from rl_training.networks.recurrent import Sequences
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.runtime.impala_trainer import IMPALATrainer
from rl_training.runtime.metrics import Metrics
from rl_training.state.seeding import seed_everything

SMALL = dict(total_timesteps=192, log_interval=1, eval_interval=192, eval_episodes=1, fleet="inline")
RUNS = {
    "impala": ("impala-cartpole", {}),
    "impala with a memory": ("impala-memory", {}),
    "appo": ("appo-cartpole", {}),
    "appo with a memory": ("appo-cartpole", dict(cell="lstm", recurrent_size=8)),
}


def trainer_of(name, **changes):
    run, own = RUNS[name]
    seed_everything(1)
    config = small_config(run, **SMALL | own | changes)
    return trainer_class(config.algo)(config)


def on_the_same_batches(name, count, iterations=3, **changes):
    """Weights and metrics after some iterations with one and with several learners, on what the one gathered."""
    Path("selectors.py").write_text(
        "open('owned', 'w').close()"
    )  # of the working directory nothing is imported
    one, two = trainer_of(name, **changes), trainer_of(name, num_learners=count, **changes)
    gathered, collect = [], one.collect

    def collecting(now):
        batch, metrics = collect(now)
        gathered.append(copy.deepcopy(batch))
        return batch, metrics

    one.collect = collecting
    two.collect = lambda now: (gathered.pop(0), Metrics(two.config.steps_per_iteration, []))
    metrics = [iterated(trainer, iterations) for trainer in (one, two)]
    weights = [trainer.optimizer.parameters.clone() for trainer in (one, two)]
    process = two.learners.processes[0]
    assert process.poll() is None and not one.learners.processes
    one.close(), two.close()
    assert process.poll() is not None  # nobody is left behind
    assert not Path("owned").exists()
    return weights, *metrics


def iterated(trainer, iterations):
    controls, means = Controls.of(trainer.config), []
    for number in range(iterations):
        seed_everything(number)
        means.append(trainer.iterate(controls.at(number * trainer.config.steps_per_iteration)).means())
    return means


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "memory" in name else name for name in RUNS]
)
def test_several_learners_move_the_weights_as_one_does(name):
    three = name == "impala"  # of them, two meet apart from the first
    weights, alone, together = on_the_same_batches(
        name, 3 if three else 2, **dict(num_envs=3, learning_rate=1e-3) if three else {}
    )
    before = trainer_of(name)
    assert (weights[0] - before.optimizer.parameters).abs().max() > 1e-4  # something has moved
    torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=1e-4)
    for mine, ours in zip(alone, together, strict=True):
        for key in ("policy_loss", "value_loss", "entropy", "grad_norm"):
            assert ours[key] == pytest.approx(mine[key], rel=1e-3, abs=1e-5), key
    before.close()


def test_a_share_arrives_as_it_was_sent():
    sequences = Sequences(*(torch.arange(3) + i for i in range(4)))
    share = {
        "obs": {"a": torch.ones(2, 3)},
        "cut": [(1, 2, np.zeros(2))],
        "carry": (torch.zeros(1),),
        "s": sequences,
    }
    again = received(to_send(share))
    assert torch.equal(again["obs"]["a"], share["obs"]["a"]) and isinstance(again["s"], Sequences)
    assert torch.equal(again["s"].places, sequences.places) and isinstance(again["cut"][0][2], np.ndarray)
    assert again["cut"][0][:2] == (1, 2) and isinstance(again["carry"], tuple)


@pytest.mark.faults
def test_a_run_with_two_learners_resumes_exactly(tmp_path):
    config = small_config("impala-cartpole", **SMALL, num_learners=2, checkpoint_interval=64)
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(RunError, match="a learner was lost"):
        lose_a_learner(config, tmp_path / "broken", at=2)
    resume(tmp_path / "broken")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def lose_a_learner(config, folder, at):
    """Train, and kill the second learner before the iteration `at`."""
    iterate, numbers = IMPALATrainer.iterate, []

    def iterating(trainer, knobs):
        numbers.append(len(numbers))
        if len(numbers) - 1 == at:
            os.kill(trainer.learners.processes[0].pid, signal.SIGKILL)
        return iterate(trainer, knobs)

    IMPALATrainer.iterate = iterating
    try:
        train(config, run_dir=folder)
    finally:
        IMPALATrainer.iterate = iterate


def test_a_learner_that_does_not_start_ends_the_run_at_once(monkeypatch):
    monkeypatch.setattr("rl_training.fleet.learners.sys.executable", shutil.which("false"))
    trainer = trainer_of("impala", num_learners=2)
    with pytest.raises(RunError, match="a learner was lost"):
        trainer.iterate(Controls.of(trainer.config).at(0))
    trainer.close()


def test_learners_share_the_threads_and_each_has_a_gpu_of_its_own():
    with threads(5):
        assert [threads_of_each(count) for count in (1, 2, 8)] == [5, 2, 1]
    assert [device_of("cpu", 1), device_of("cuda", 1), device_of("cuda:2", 1)] == ["cpu", "cuda:1", "cuda:3"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("impala-cartpole", dict(num_learners=3), "num_learners must divide the 4 environments"),
        (
            "appo-cartpole",
            dict(num_learners=4, num_minibatches=3),
            "num_learners must divide every minibatch",
        ),
        ("appo-cartpole", dict(num_learners=4, cell="lstm"), "num_learners must divide every minibatch"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused_in_one_line(name, changes, said):
    with pytest.raises(ConfigError, match=said) as caught:
        small_config(name, **changes)
    assert "\n" not in str(caught.value)
