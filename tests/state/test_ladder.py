"""Which checkpoints stay: a ladder is thin where it is old, stays so after kills, and obeys its limit of bytes."""

import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from test_cli import cli

from rl_training import load_config, resume, train
from rl_training.errors import ConfigError
from rl_training.runtime.disk import keep_of
from rl_training.state import checkpoints
from rl_training.state.ladder import Keep
from rl_training.tools.travelling import travelled

CONFIG = dict(
    algo="ppo",
    env_id="CartPole-v1",
    vectorization="sync",
    total_timesteps=2048,
    num_envs=4,
    num_steps=16,
    num_minibatches=1,
    update_epochs=1,
    hidden_sizes=[8],
    eval_episodes=1,
    checkpoint_interval=64,
)


@pytest.mark.parametrize("count", [1, 2, 5, 40, 1000])
def test_a_ladder_keeps_twice_the_logarithm_and_no_step_is_far_from_a_rung(count):
    keep, there = Keep("ladder", every=10), []
    for number in range(1, count + 1):  # one after the other, as a run saves them
        there = keep.kept([*there, 10 * number])
        assert keep.kept(there) == there  # a kill before the end of removing changes nothing
    assert there[-2:] == [10 * number for number in range(1, count + 1)][-2:] and there[0] == 10
    assert len(there) <= 2 * math.log2(count + 1) + 3
    assert len(there) == keep.count(10 * count)
    for before, after in pairwise(there):
        assert after - before <= max(10, 10 * count - before)


def test_a_checkpoint_that_a_signal_asked_for_is_no_rung():
    steps = [100, 200, 250, 300, 400, 500, 600, 700, 800, 900]
    kept = Keep("ladder", every=100).kept(steps)
    assert 250 not in kept and {100, 800, 900} <= set(kept)


def test_the_checkpoint_at_the_end_counts_however_short_the_run():
    assert [Keep("ladder", every=100).count(steps) for steps in (1, 99, 100, 101, 250)] == [1, 1, 1, 2, 3]
    assert Keep(3, every=100).count(1) == 1


def tree(size: int) -> dict:
    return {"policy": {"weights": torch.zeros(size)}, "progress": {}}


def test_a_limit_of_bytes_takes_the_oldest_away_and_leaves_two(tmp_path):
    for step in range(1, 6):
        checkpoints.save_checkpoint(tmp_path, step, tree(1000), Keep("all"))
    one = checkpoints.size_of(checkpoints.listed(tmp_path)[0])
    checkpoints.save_checkpoint(tmp_path, 6, tree(1000), Keep("all", most_bytes=3 * one))
    assert [checkpoints.step_of(path) for path in checkpoints.listed(tmp_path)] == [4, 5, 6]
    checkpoints.save_checkpoint(tmp_path, 7, tree(1000), Keep("all", most_bytes=1))
    assert [checkpoints.step_of(path) for path in checkpoints.listed(tmp_path)] == [6, 7]


def steps_in(run: Path) -> list[int]:
    return [checkpoints.step_of(path) for path in checkpoints.listed(run / "checkpoints")]


def test_a_run_keeps_its_ladder_and_resumes_with_it(tmp_path, capsys):
    config = load_config({**CONFIG, "keep": "ladder"})
    train(config, run_dir=tmp_path / "run")
    assert "checkpoints: 11 at the end (ladder), about 0.0 MB" in capsys.readouterr().out
    # Numbers 1 to 32, the newest being 32: multiples of 8 from an age of 16 on, of 4 from 8 on, and so on.
    expected = [number * 64 for number in (1, 8, 16, 20, 24, 26, 28, 29, 30, 31, 32)]
    assert steps_in(tmp_path / "run") == expected
    resume(tmp_path / "run", quiet=True)
    assert steps_in(tmp_path / "run") == expected


@pytest.mark.parametrize(("settings", "count"), [({}, 2), ({"keep": 3}, 3), ({"keep_checkpoints": 4}, 4)])
def test_numbers_and_the_older_key(settings, count, tmp_path):
    train(load_config({**CONFIG, "total_timesteps": 512, **settings}), run_dir=tmp_path / "run", quiet=True)
    assert len(steps_in(tmp_path / "run")) == count


def test_what_is_no_rule_is_refused():
    for value in (1, "some", 2.5):
        with pytest.raises(ConfigError, match="keep"):
            load_config({**CONFIG, "keep": value})


def test_a_replay_is_shared_between_rungs_until_its_ring_has_turned(tmp_path):
    config = dict(algo="dqn", env_id="CartPole-v1", total_timesteps=1280, num_envs=2, learning_starts=2000)
    config |= dict(buffer_size=640, hidden_sizes=[4], eval_episodes=1, checkpoint_interval=128, keep="all")
    checkpoints._segments_in.cache_clear()
    train(load_config(config), run_dir=tmp_path / "run", quiet=True)
    assert steps_in(tmp_path / "run") == [128 * n for n in range(1, 11)]
    assert checkpoints._segments_in.cache_info().misses == 10  # each state is read once, not at every save
    listed = [
        checkpoints.load_checkpoint(path)["segments"]
        for path in checkpoints.listed(tmp_path / "run" / "checkpoints")
    ]
    assert listed[2].keys() <= listed[3].keys()
    assert not listed[9].keys() >= listed[0].keys()
    assert {path.name for path in (tmp_path / "run" / "replay").iterdir()} == set().union(*listed)
    assert cli("verify", str(tmp_path / "run"), "--from", "300", "--to", "500").exit_code == 0
    for path in checkpoints.listed(tmp_path / "run" / "checkpoints")[1:]:
        shutil.rmtree(path)
    with travelled(tmp_path / "run", 1000) as engine:  # a copy keeps no rungs
        assert len(checkpoints.listed(engine.run.checkpoints)) == 2


@pytest.mark.parametrize("interval", [100, 512, 700, 2000])
def test_a_ladder_has_no_hole_where_iterations_are_longer_than_the_interval_or_no_part_of_it(interval):
    config = load_config({**CONFIG, "num_steps": 128, "checkpoint_interval": interval, "keep": "ladder"})
    keep, there, every = keep_of(config), [], config.checkpoint_every
    for step in range(512, 512 * 300, 512):  # iterations; saved as the engine finds it due
        if step // every == (step - 512) // every:
            continue
        there = keep.kept([*there, step])
        for before, after in pairwise(there):
            assert after - before <= max(every, step - before) + 512
