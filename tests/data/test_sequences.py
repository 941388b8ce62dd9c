"""Rollouts cut into sequences, by hand: two lanes of three steps, row t · 2 + lane."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rl_training.data.sequences import append_bootstraps, cut_sequences, sequence_minibatches
from rl_training.runtime.actor_learner import ActorLearnerTrainer

# The first lane's episode ends with its second step: rows 0 2 | 4, and 1 3 5.
ENDED = np.array([[False, False], [True, False], [False, False]])
NEVER = np.zeros((3, 2), bool)


def test_lanes_are_cut_after_each_end() -> None:
    found = cut_sequences(ENDED)
    assert found.rows.tolist() == [[0, 4, 1], [2, 0, 3], [0, 0, 5]]
    assert found.places.tolist() == [0, 2, 3, 5, 1, 8]
    assert found.lanes.tolist() == [0, 0, 1] and found.fresh.tolist() == [False, True, False]


def test_without_an_end_every_lane_is_a_sequence() -> None:
    found = cut_sequences(NEVER)
    assert found.rows.tolist() == [[0, 1], [2, 3], [4, 5]] and found.places.tolist() == list(range(6))
    assert found.lanes.tolist() == [0, 1] and not found.fresh.any()


def test_what_actions_led_to_follows_the_sequences() -> None:
    """Rows 6 and 7 are what the lanes see after the rollout, row 8 what was seen where the time limit cut."""
    found = append_bootstraps(cut_sequences(ENDED), ENDED, [(1, 0)])
    assert found.rows.tolist() == [[0, 4, 1], [2, 6, 3], [8, 0, 5], [0, 0, 7]]
    assert found.places.tolist() == [0, 2, 3, 5, 1, 8, 4, 11, 6]


def test_nothing_follows_an_end_at_the_end() -> None:
    ended = NEVER.copy()
    ended[2, 1] = True
    found = append_bootstraps(cut_sequences(ended), ended, [])
    assert found.rows.tolist() == [[0, 1], [2, 3], [4, 5], [6, 0]]
    assert found.places.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


def test_minibatches_are_whole_lanes_with_their_carries() -> None:
    torch.manual_seed(0)
    ended = torch.zeros(3, 4, dtype=torch.bool)
    rollout = {"reward": torch.arange(12.0).view(3, 4)}
    carry = (torch.arange(4.0)[:, None] * 100,)
    seen = []
    for minibatch in sequence_minibatches(rollout, ended, carry, epochs=2, num_minibatches=2):
        lanes = (minibatch["carry"][0][:, 0] / 100).long().tolist()
        assert len(lanes) == 2
        assert minibatch["reward"].view(3, 2).tolist() == [[4 * t + lane for lane in lanes] for t in range(3)]
        assert minibatch["sequences"].rows.tolist() == [[0, 1], [2, 3], [4, 5]]
        seen += lanes
    assert sorted(seen[:4]) == sorted(seen[4:]) == [0, 1, 2, 3]


def test_a_fleets_batch_is_cut_at_terminations_and_at_time_limits() -> None:
    terminated, truncated = NEVER.copy(), NEVER.copy()
    terminated[0, 1], truncated[1, 0] = True, True
    batch = {
        "terminated": torch.from_numpy(terminated),
        "truncated": torch.from_numpy(truncated),
        "cut": [(1, 0, np.zeros(4))],
    }
    trainer: Any = SimpleNamespace(agent=SimpleNamespace(device="cpu"))
    found = ActorLearnerTrainer._sequences(trainer, batch)
    # Rows 0 2 | 4 of the first lane and 1 | 3 5 of the second, with rows 8 | 6 and nothing | 7 behind them.
    assert found.rows.tolist() == [[0, 4, 1, 3], [2, 6, 0, 5], [8, 0, 0, 7]]
    assert found.fresh.tolist() == [False, True, False, True]
