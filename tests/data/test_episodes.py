"""The replay of planners: targets by hand, a brute-force memory beside it, and coming back exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.episodes import EpisodeReplay
from rl_training.state.segments import SegmentStore

GAMMA = 0.5


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1)


def add(
    replay: EpisodeReplay, action: int, reward: float, next_obs: float, end: str = "", obs: Any = None
) -> None:
    """One step of one lane with numbers for observations; the policy says which action was taken."""
    replay.add(
        np.array([action]),
        np.array([reward]),
        np.array([end == "terminated"]),
        np.array([end == "truncated"]),
        column(next_obs),
        column(next_obs if obs is None else obs),
        policy=np.eye(3, dtype=np.float32)[[action]],
    )


def everything(replay: EpisodeReplay, gamma: float = GAMMA) -> dict[str, Any]:
    batch = replay._gather(np.arange(replay.first, replay.last), gamma)
    found = {name: np.asarray(part) for name, part in batch.items()}
    found["obs"] = replay.seen_at(batch["places"].reshape(-1)).reshape(*batch["places"].shape, -1)[..., -1]
    found["next"] = replay.seen_at(batch["bootstrap"].reshape(-1)).reshape(*batch["places"].shape, -1)[
        ..., -1
    ]
    return found


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_targets_by_hand(end: str) -> None:
    """0 -1→ 1 -2→ 2 -4→ 3, the end; K = 2, n = 2, γ = ½."""
    replay = EpisodeReplay(200, column(0), num_actions=3, unroll_steps=2, td_steps=2)
    add(replay, 0, 1.0, 1)
    add(replay, 1, 2.0, 2)
    assert len(replay) == 0, "nothing is complete before the end, or before K + n steps"
    add(replay, 2, 4.0, 3, end=end, obs=50)
    assert len(replay) == 3
    found = everything(replay)
    np.testing.assert_array_equal(found["obs"], [[0, 1, 2], [1, 2, 3], [2, 3, 3]])
    np.testing.assert_array_equal(found["reward"], [[1, 2, 4], [2, 4, 0]])
    np.testing.assert_array_equal(found["acted"], [[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    # 1 + 2/2 = 2 up to observation 2; 2 + 4/2 = 4 up to the end; 4 up to the end; beyond it nothing.
    np.testing.assert_array_equal(found["returns"], [[2, 4, 4], [4, 4, 0], [4, 0, 0]])
    np.testing.assert_array_equal(found["next"], [[2, 3, 3], [3, 3, 3], [3, 3, 3]])
    if end == "terminated":  # the end is worth 0, and so is all that could follow it
        np.testing.assert_array_equal(found["discount"], [[0.25, 0, 0], [0, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(found["known"], np.ones((3, 3)))
    else:  # the last observation is bootstrapped from, and nobody knows what would have followed
        np.testing.assert_array_equal(found["discount"], [[0.25, 0.25, 0.5], [0.25, 0.5, 0], [0.5, 0, 0]])
        np.testing.assert_array_equal(found["known"], found["acted"])
    taken = found["acted"][:-1] > 0
    np.testing.assert_array_equal(found["action"][taken], [0, 1, 2, 1, 2])
    np.testing.assert_array_equal(found["policy"].argmax(-1)[found["acted"] > 0], [0, 1, 2, 1, 2, 2])


def test_an_open_episode_can_be_drawn_from_once_all_is_known() -> None:
    replay = EpisodeReplay(200, column(0), num_actions=3, unroll_steps=2, td_steps=1)
    for step in range(4):
        add(replay, step % 3, float(step), step + 1)
    assert len(replay) == 2
    found = everything(replay)
    np.testing.assert_array_equal(found["obs"], [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_array_equal(found["next"], [[1, 2], [2, 3], [3, 4]])
    np.testing.assert_array_equal(found["returns"], [[0, 1], [1, 2], [2, 3]])
    assert (found["discount"] == GAMMA).all() and found["acted"].all() and found["known"].all()


def test_two_players_see_returns_from_their_own_side() -> None:
    """Three moves, the last one wins: worth +1 to who makes it, -1 to the other side, +1 two moves before."""
    replay = EpisodeReplay(2000, column(0), num_actions=3, unroll_steps=3, td_steps=9)
    add(replay, 0, 0.0, 1)
    add(replay, 1, 0.0, 2)
    add(replay, 2, 1.0, 3, end="terminated", obs=9)
    found = everything(replay, gamma=-1.0)
    np.testing.assert_array_equal(found["returns"], [[1, -1, 1], [-1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert not found["discount"].any()


class Memory:
    """Random episodes in some lanes, every observation a number of its own, remembered in full beside a replay."""

    def __init__(self, lanes: int, stack: int, seed: int, capacity: int = 900) -> None:
        self.chance, self.lanes, self.stack = random.Random(seed), lanes, stack
        self.names = iter(range(1, 10**9))
        self.steps: dict[float, tuple[Any, ...]] = {}  # newest frame -> what was done there
        self.obs = np.stack([self.fresh() for _ in range(lanes)])
        self.replay = EpisodeReplay(
            capacity, self.obs, num_actions=3, unroll_steps=2, td_steps=3, stack=stack
        )

    def fresh(self) -> np.ndarray:
        return np.array([[next(self.names)] for _ in range(self.stack)], np.float32).squeeze(
            0 if self.stack == 1 else ()
        )

    def step(self) -> None:
        chance, lanes = self.chance, range(self.lanes)
        action = np.array([chance.randrange(3) for _ in lanes])
        reward = np.array([chance.randrange(8) for _ in lanes], np.float64)
        end = [chance.choice(["", "", "", "", "", "terminated", "truncated"]) for _ in lanes]
        policy = np.array([[chance.random() for _ in range(3)] for _ in lanes], np.float32)
        new = np.array([[next(self.names)] for _ in lanes], np.float32)
        next_obs = new if self.stack == 1 else np.concatenate([self.obs[:, 1:], new[:, None]], 1)
        obs = next_obs.copy()
        for lane in lanes:
            key = float(self.obs[lane].reshape(-1)[-1])
            self.steps[key] = (action[lane], reward[lane], end[lane], policy[lane], next_obs[lane])
            if end[lane]:
                obs[lane] = self.fresh()
        terminated, truncated = (np.array([e == kind for e in end]) for kind in ("terminated", "truncated"))
        self.replay.add(action, reward, terminated, truncated, next_obs, obs, policy=policy)
        self.obs = obs

    def compare(self) -> None:
        replay = self.replay
        batch = replay._gather(np.arange(replay.first, replay.last), 0.9)
        places, shape = batch["places"], batch["places"].shape
        stacks = replay.seen_at(places.reshape(-1)).reshape(*shape, self.stack)
        final = replay.seen_at(batch["bootstrap"].reshape(-1)).reshape(*shape, self.stack)
        for row in range(len(replay)):
            for k in range(3):
                key = float(stacks[k, row, -1])
                if not batch["acted"][k, row]:
                    assert key not in self.steps or self.steps[key] is None
                    continue
                action, reward, end, policy, _ = self.steps[key]
                np.testing.assert_array_equal(batch["policy"][k, row], policy)
                total, factor, at = 0.0, 1.0, key
                for _ in range(3):
                    _, earned, end, _, led_to = self.steps[at]
                    total, factor, at = total + factor * earned, factor * 0.9, float(led_to.reshape(-1)[-1])
                    if end:
                        break
                assert float(batch["returns"][k, row]) == pytest.approx(total, abs=1e-4)
                expected = 0.0 if end == "terminated" else factor
                assert float(batch["discount"][k, row]) == pytest.approx(expected, abs=1e-6)
                np.testing.assert_array_equal(final[k, row], led_to.reshape(-1))
                if k < 2:
                    assert (batch["action"][k, row], batch["reward"][k, row]) == (action, reward)


def test_what_led_to_a_place_by_hand() -> None:
    """Two episodes of one lane, 0 → 1 → 2 → 3 and 50 → 51 → 52; actions count up from 1."""
    replay = EpisodeReplay(200, column(0), num_actions=3, unroll_steps=1, td_steps=1)
    taken = iter(range(1, 9))
    for to, end in ((1, ""), (2, ""), (3, "truncated"), (51, ""), (52, "")):
        replay.add(
            np.array([next(taken)]),
            np.zeros(1),
            np.zeros(1, np.bool_),
            np.array([end != ""]),
            column(to),
            column(50 if end else to),
            policy=np.zeros((1, 3), np.float32),
        )
    places, actions, past = replay.before(np.array([0, 1, 3, 4, 6]), 2)
    assert past.tolist() == [0, 1, 2, 0, 2]
    seen = replay.seen_at(places.reshape(-1)).reshape(5, 3)
    assert seen.tolist() == [[0, 0, 0], [0, 1, 1], [1, 2, 3], [50, 50, 50], [50, 51, 52]]
    assert actions.tolist() == [[0, 0], [1, 0], [2, 3], [0, 0], [4, 5]]
    assert replay.before(np.array([3]), 0)[0].tolist() == [[3]]


@pytest.mark.parametrize(("lanes", "stack"), [(1, 1), (3, 1), (2, 4)])
def test_everything_drawn_is_what_happened_and_comes_back_exactly(
    lanes: int, stack: int, tmp_path: Path
) -> None:
    memory, store = Memory(lanes, stack, seed=1), SegmentStore(tmp_path)
    memory.replay.store = store
    for step in range(2000 // lanes):
        memory.step()
        if step % (500 // lanes) == 100:
            memory.compare()
            other = Memory(lanes, stack, seed=9).replay
            state = memory.replay.state_dict()
            other.store = SegmentStore(tmp_path)
            other.store.entries = dict(store.entries)
            other.load_state_dict(state)
            for replay in (memory.replay, other):
                np.random.seed(4)
                drawn = replay.sample_by_priority(16, 0.9, 0.5)
                replay.set_priorities(drawn["index"], np.random.random(16) * 3, 0.6)
            assert memory.replay.priorities is not None and other.priorities is not None
            np.testing.assert_array_equal(other.priorities.nodes, memory.replay.priorities.nodes)
            one, two = everything(memory.replay), everything(other)
            for name in one:
                if name != "action":  # random beyond an end
                    np.testing.assert_array_equal(one[name], two[name], err_msg=name)
            memory.replay, store = other, other.store  # and go on with the loaded one
    assert memory.replay.head > 2 * memory.replay.capacity and len(store.entries) > 10
