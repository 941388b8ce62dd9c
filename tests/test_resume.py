"""Exact resume: a run killed at any instant ends byte for byte like one that never was."""

import random
import time

import pytest
from runs import RUNS, assert_same_run, fresh, go_on, in_child, kill_and_resume, small_config

from rl_training.runtime import engine
from rl_training.runtime.optim import Adam


def compare_killed_with_whole(name, folder, kills, seed):
    config = small_config(name)
    start = "forkserver" if config.env_id.startswith("ALE/") else "fork"
    began = time.monotonic()
    assert in_child(go_on, config, folder / "whole", start=start) == 0
    seconds = time.monotonic() - began
    rng, hits = random.Random(seed), 0
    for _ in range(10):  # a kill after the run's end is none: then it is killed once more from its start
        hits += kill_and_resume(config, fresh(folder / "killed"), kills - hits, seconds, rng, start)
        assert_same_run(folder / "whole", folder / "killed")
        if hits >= kills:
            return
    raise RuntimeError(f"only {hits} of {kills} kills came before the run was over")


@pytest.mark.parametrize("name", RUNS)
def test_killed_three_times(name, tmp_path):
    compare_killed_with_whole(name, tmp_path, kills=3, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", RUNS)
def test_killed_twenty_times(name, seed, tmp_path):
    compare_killed_with_whole(name, tmp_path, kills=20, seed=seed)


def test_the_same_run_twice_is_the_same(tmp_path):
    config = small_config("ppo-cartpole")
    for place in ("one", "two"):
        assert in_child(go_on, config, tmp_path / place) == 0
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("fault", ["state not saved", "no seeding"])
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch):
    """The test above must be able to fail: an optimizer that forgets its moments, an iteration without a seed."""
    if fault == "state not saved":
        monkeypatch.setattr(Adam, "transient", (*Adam.transient, "mean", "square"))
    else:
        monkeypatch.setattr(engine, "seed_everything", lambda seed: None)
    with pytest.raises(AssertionError, match="differs"):
        for seed in range(5):  # a kill before the first checkpoint restarts the run, and hides the fault
            compare_killed_with_whole("ppo-cartpole", fresh(tmp_path / "runs"), kills=4, seed=seed)
