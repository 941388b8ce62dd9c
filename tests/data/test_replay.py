"""Replay: hand-checked transitions, and a brute-force memory that everything is compared with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.replay import Replay
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError, ConfigError, RunError
from rl_training.state.segments import SegmentStore


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1)


def add(replay: Replay, action: Any, reward: Any, next_obs: Any, *, end: str = "", obs: Any = None) -> None:
    """One step of one lane with numbers for observations."""
    replay.add(
        np.array([action]),
        np.array([reward]),
        np.array([end == "terminated"]),
        np.array([end == "truncated"]),
        column(next_obs),
        column(next_obs if obs is None else obs),
    )


def all_transitions(replay: Replay, gamma: float = 0.9) -> list[tuple[float, ...]]:
    """Every transition that can be sampled, in the order of the ring."""
    batch = replay._gather(np.arange(replay.first, replay.last), gamma)
    names = ("obs", "action", "reward", "discount", "next_obs")
    return list(zip(*(batch[name].reshape(len(replay)).tolist() for name in names), strict=True))


def test_one_lane_by_hand() -> None:
    """0 → 1 → 2 (terminated), then 10 → 11 (truncated), then 20 → 21."""
    replay = Replay(100, column(0))
    add(replay, 5, 0.5, 1)
    add(replay, 6, 1.0, 2, end="terminated", obs=10)
    add(replay, 7, 2.0, 11, end="truncated", obs=20)
    add(replay, 8, 4.0, 21)
    assert all_transitions(replay) == [
        (0, 5, 0.5, pytest.approx(0.9), 1),
        (1, 6, 1.0, 0.0, 2),  # terminated: the value of 2 counts nothing
        (10, 7, 2.0, pytest.approx(0.9), 11),  # cut by a time limit: bootstraps from the final observation
        (20, 8, 4.0, pytest.approx(0.9), 21),
    ]


def test_three_steps_by_hand() -> None:
    replay = Replay(100, column(0), n_step=3)
    for step, reward in enumerate((1.0, 2.0, 4.0)):
        add(replay, step, reward, step + 1)
    # 1 + 0.9 · 2 + 0.81 · 4 = 6.04, and the value of 3 is worth 0.9³ = 0.729.
    assert all_transitions(replay) == [(0, 0, pytest.approx(6.04), pytest.approx(0.729), 3)]
    add(replay, 3, 8.0, 4, end="truncated", obs=50)
    assert all_transitions(replay)[1:] == [
        (1, 1, pytest.approx(2 + 0.9 * 4 + 0.81 * 8), pytest.approx(0.729), 4),
        (2, 2, pytest.approx(4 + 0.9 * 8), pytest.approx(0.81), 4),  # two steps were left
        (3, 3, 8.0, pytest.approx(0.9), 4),
    ]
    add(replay, 4, 1.0, 51)
    add(replay, 5, 3.0, 52, end="terminated", obs=60)
    assert all_transitions(replay)[4:] == [(50, 4, pytest.approx(3.7), 0.0, 52), (51, 5, 3.0, 0.0, 52)]


class Memory:
    """Random episodes in some lanes, each observation a number of its own, remembered in full beside a replay."""

    def __init__(self, lanes: int, capacity: int, n_step: int, stack: int, seed: int, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.lanes, self.n_step, self.stack = lanes, n_step, stack
        self.names = iter(range(1, 10**9))
        self.episodes: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]
        self.known: dict[float, tuple[Any, ...]] = {}  # newest frame of obs -> the transition
        self.obs = np.stack([self.fresh() for _ in range(lanes)])
        self.replay = Replay(capacity, self.obs, n_step=n_step, stack=stack, **options)

    def fresh(self) -> np.ndarray:
        return np.array([[next(self.names)] for _ in range(self.stack)], np.float32).squeeze(
            0 if self.stack == 1 else ()
        )

    def step(self) -> None:
        action = np.array([self.chance.randrange(9) for _ in range(self.lanes)])
        reward = np.array([self.chance.random() for _ in range(self.lanes)])
        end = [self.chance.choice(["", "", "", "", "terminated", "truncated"]) for _ in range(self.lanes)]
        if self.stack == 1:
            next_obs = np.stack([self.fresh() for _ in range(self.lanes)])
        else:
            new = np.array([[[next(self.names)]] for _ in range(self.lanes)], np.float32)
            next_obs = np.concatenate([self.obs[:, 1:], new], 1)
        obs = next_obs.copy()
        for lane in range(self.lanes):
            self.episodes[lane].append(
                dict(obs=self.obs[lane], action=action[lane], reward=reward[lane], next_obs=next_obs[lane])
            )
            self.remember(lane, end[lane])
            if end[lane]:
                self.episodes[lane] = []
                obs[lane] = self.fresh()
        terminated, truncated = (np.array([e == kind for e in end]) for kind in ("terminated", "truncated"))
        self.replay.add(action, reward, terminated, truncated, next_obs, obs)
        self.obs = obs

    def remember(self, lane: int, end: str) -> None:
        episode = self.episodes[lane]
        for first in range(max(len(episode) - self.n_step, 0), len(episode)):
            steps = episode[first : first + self.n_step]
            if len(steps) == self.n_step or end:
                total = sum(0.9**k * step["reward"] for k, step in enumerate(steps))
                discount = 0.0 if end == "terminated" else 0.9 ** len(steps)
                key = float(steps[0]["obs"].reshape(-1)[-1])
                self.known[key] = (
                    steps[0]["obs"],
                    steps[0]["action"],
                    total,
                    discount,
                    steps[-1]["next_obs"],
                )

    def compare(self) -> int:
        """Everything in the replay against what is remembered; how many transitions there were."""
        replay = self.replay
        batch = replay._gather(np.arange(replay.first, replay.last), 0.9)
        for row in range(len(replay)):
            key = float(batch["obs"][row].reshape(-1)[-1])
            obs, action, total, discount, next_obs = self.known[key]
            np.testing.assert_array_equal(batch["obs"][row], obs)
            np.testing.assert_array_equal(batch["next_obs"][row], next_obs)
            assert int(batch["action"][row]) == action
            assert float(batch["reward"][row]) == pytest.approx(total, abs=1e-5)
            assert float(batch["discount"][row]) == pytest.approx(discount, abs=1e-6)
        newest = set(list(self.known)[-len(replay) :])
        return sum(float(obs.reshape(-1)[-1]) in newest for obs in batch["obs"])


SHAPES = [(1, 1, 1), (3, 1, 1), (1, 3, 1), (4, 3, 1), (1, 1, 4), (3, 2, 4)]


@pytest.mark.parametrize(("lanes", "n_step", "stack"), SHAPES)
def test_everything_sampled_is_what_happened(lanes: int, n_step: int, stack: int) -> None:
    """Over several turns of the ring, with stacks rebuilt at starts, ends and the seam."""
    memory = Memory(lanes, 700, n_step, stack, seed=lanes)
    for step in range(1500 // lanes):
        memory.step()
        if step % 97 == 20:
            memory.compare()
    count = len(memory.replay)
    assert memory.compare() > 0.95 * count, "the newest transitions are the ones that are kept"
    assert memory.replay.head > 2 * memory.replay.capacity
    assert count > 0.4 * (memory.replay.capacity - memory.replay.margin) / stack


def test_the_newest_transition_can_be_sampled_at_once_and_the_oldest_is_gone() -> None:
    replay = Replay(50, column(0))
    for step in range(200):
        add(replay, step % 7, step, step + 1)
    observations = [row[0] for row in all_transitions(replay)]
    assert observations == list(range(200 - len(replay), 200))
    assert len(replay) >= 50 - replay.margin - 1


def test_uniform_sampling_is_uniform() -> None:
    replay = Replay(64, column(0))
    for step in range(100):
        add(replay, 0, 0.0, step + 1)
    np.random.seed(0)
    drawn = np.concatenate([replay.sample(256, 0.9)["obs"].numpy().reshape(-1).copy() for _ in range(400)])
    values, counts = np.unique(drawn, return_counts=True)
    assert len(values) == len(replay)
    expected = len(drawn) / len(replay)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < len(replay) + 4 * np.sqrt(2 * len(replay))


def test_a_factor_raises_priorities_whatever_the_exponent() -> None:
    replay = Replay(64, column(0), prioritized=True)
    for step in range(3):
        add(replay, step, 0.0, step + 1)
    replay.set_priorities(np.arange(3), np.array([5.0, 0.0, 2.0]), 0.0, np.array([1.0, 4.0, 1.0]))
    assert replay.priorities is not None
    np.testing.assert_allclose(replay.priorities.get(np.arange(3)), [1, 4, 1])


def test_priorities_decide_how_often_and_weights_correct_it() -> None:
    replay = Replay(64, column(0), prioritized=True)
    for step in range(4):
        add(replay, step, 0.0, step + 1)
    first = replay.sample_by_priority(4, 0.9, 0.4)
    assert sorted(first["action"].tolist()) == [0, 1, 2, 3], "new ones all have the largest priority"
    assert first["weight"].tolist() == [1.0] * 4
    replay.set_priorities(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]), 1.0)
    np.random.seed(0)
    counts, weights = np.zeros(4), np.zeros(4)
    for _ in range(500):
        batch = replay.sample_by_priority(20, 0.9, 0.5)
        np.add.at(counts, batch["action"].numpy(), 1)
        weights[batch["action"].numpy()] = batch["weight"].numpy()
    np.testing.assert_allclose(counts / counts.sum(), [0.1, 0.2, 0.3, 0.4], atol=0.01)
    # (N P)^-½ by hand: P = 0.1 … 0.4, N = 4, divided by the largest.
    expected = (4 * np.array([0.1, 0.2, 0.3, 0.4])) ** -0.5
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
    add(replay, 4, 0.0, 5)
    assert replay.priorities is not None
    assert replay.priorities.get(np.array([4]))[0] == pytest.approx(4.0, abs=1e-4), (
        "a new one has the largest"
    )


def test_priorities_of_what_is_overwritten_are_gone() -> None:
    replay = Replay(40, column(0), prioritized=True)
    for step in range(500):
        add(replay, 0, 0.0, step + 1)
        batch = replay.sample_by_priority(8, 0.9, 0.4)
        assert (batch["obs"] > step - 40).all()
        replay.set_priorities(batch["index"], np.random.random(8) * 5, 0.6)
    assert replay.priorities is not None
    leaves = replay.priorities.get(np.arange(40))
    assert (leaves > 0).sum() == len(replay)


def test_new_leaves_get_the_largest_priority_of_the_present() -> None:
    """1 in an empty tree; then 5; when that falls to 2, the largest is 3, as max_i pᵢ of the paper says."""
    tree = SumTree(6)
    tree.put_largest(np.array([0]))
    tree.put(np.array([1, 2]), np.array([5.0, 3.0]))
    tree.put_largest(np.array([3]))
    tree.put(np.array([1, 3]), np.array([2.0, 0.0]))
    tree.put_largest(np.array([4]))
    np.testing.assert_array_equal(tree.get(np.arange(6)), [1, 2, 3, 0, 3, 0])


def test_a_sum_tree_is_a_function_of_its_leaves() -> None:
    chance = np.random.default_rng(0)
    tree = SumTree(37)
    for _ in range(200):
        places = chance.integers(0, 37, 5)
        tree.put(places, chance.random(5) * 10.0 ** chance.integers(-6, 6))
    again = SumTree(37)
    again.load(np.arange(37), tree.get(np.arange(37)))
    np.testing.assert_array_equal(tree.nodes, again.nodes)
    np.testing.assert_array_equal(tree.maxima, again.maxima)
    assert tree.largest == tree.get(np.arange(37)).max()
    places, probability = tree.draw(np.full(1000, np.nextafter(1.0, 0.0)))
    assert (probability > 0).all() and (places < 37).all()


def test_frames_that_do_not_slide_are_refused() -> None:
    obs = np.zeros((1, 4, 2, 2), np.uint8)
    replay = Replay(200, obs, stack=4)
    with pytest.raises(RunError, match="does not shift"):
        replay.add(np.array([0]), np.array([0.0]), np.array([False]), np.array([False]), obs + 3, obs + 3)


def test_a_ring_too_small_for_its_lanes_is_refused() -> None:
    """(1 step + 1 frame) · 8 lanes · 2 slots = 32 may be gone, and a ring has four times that."""
    with pytest.raises(ConfigError, match="buffer_size of at least 128, not 127"):
        Replay(127, np.zeros((8, 1), np.float32))
    Replay(128, np.zeros((8, 1), np.float32))


def test_a_million_atari_frames_fit_in_seven_and_a_half_gigabytes() -> None:
    obs = np.zeros((8, 4, 84, 84), np.uint8)
    replay = Replay(1_000_000, obs, stack=4, prioritized=True)
    replay.add(np.zeros(8, np.int64), np.zeros(8), np.zeros(8, bool), np.zeros(8, bool), obs, obs)
    assert replay.priorities is not None
    assert replay.nbytes + replay.priorities.nodes.nbytes < 7.5e9


def test_dict_observations_and_wide_floats() -> None:
    def obs(number: float) -> dict[str, np.ndarray]:
        return {"a": np.full((2, 3), float(number)), "b": np.full((2,), int(number))}

    replay = Replay(100, obs(0))
    for step in range(3):
        replay.add(
            np.full((2, 1), 0.5),
            np.ones(2),
            np.zeros(2, bool),
            np.zeros(2, bool),
            obs(step + 1),
            obs(step + 1),
        )
    batch = replay._gather(np.arange(6), 0.9)
    assert batch["obs"]["a"].dtype.is_floating_point and batch["obs"]["a"].element_size() == 4
    assert batch["next_obs"]["b"].tolist() == [1, 1, 2, 2, 3, 3]


def batches(replay: Replay) -> list[bytes]:
    np.random.seed(5)
    drawn = []
    for _ in range(3):
        if replay.priorities is None:
            batch = replay.sample(32, 0.9)
        else:
            batch = replay.sample_by_priority(32, 0.9, 0.5)
            replay.set_priorities(batch["index"], np.random.random(32), 0.6)
        drawn += [
            batch[name].numpy().tobytes() for name in ("obs", "action", "reward", "discount", "next_obs")
        ]
    return drawn


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("stored", [False, True], ids=["in the state", "in segments"])
@pytest.mark.parametrize(("lanes", "n_step", "stack"), SHAPES)
def test_a_replay_comes_back_exactly(
    lanes: int, n_step: int, stack: int, stored: bool, prioritized: bool, tmp_path: Path
) -> None:
    """Saved now and then, over more than one turn of the ring: what the loaded one draws is what this one draws."""
    memory = Memory(lanes, 700, n_step, stack, seed=lanes, prioritized=prioritized)
    replay, store = memory.replay, SegmentStore(tmp_path)
    if stored:
        replay.store = store
    for step in range(900 // lanes):
        memory.step()
        if step % (250 // lanes) == 5:
            state = replay.state_dict()
            other = Memory(lanes, 700, n_step, stack, seed=99, prioritized=prioritized).replay
            if stored:
                other.store = SegmentStore(tmp_path)
                other.store.entries = dict(store.entries)
            other.load_state_dict(state)
            assert (other.first, other.last, other.head) == (replay.first, replay.last, replay.head)
            assert batches(other) == batches(replay)
            memory.replay = replay = other  # and go on with the loaded one
            store = other.store or store
    memory.compare()
    if stored:
        assert len(store.entries) > 10


@pytest.mark.parametrize("pictures", [False, True], ids=["vectors", "prioritised pictures"])
def test_a_segment_is_written_once_and_a_checkpoint_writes_only_what_is_new(
    pictures: bool, tmp_path: Path
) -> None:
    """What a save adds to the disk, the state itself included, is under 5 % of the buffer; so with priorities, which
    every save holds anew, where rows are pictures."""
    if pictures:
        obs, capacity = np.zeros((1, 4, 84, 84), np.uint8), 4000
        replay = Replay(capacity, obs, stack=4, prioritized=True)
    else:
        obs, capacity = np.zeros((1, 32), np.float32), 100_000
        replay = Replay(capacity, obs)
    store = replay.store = SegmentStore(tmp_path)

    def steps(count: int) -> None:
        for _ in range(count):
            replay.add(
                np.zeros((1, 4), np.float32), np.ones(1), np.zeros(1, bool), np.zeros(1, bool), obs, obs
            )

    steps(capacity * 11 // 10)
    replay.state_dict()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    steps(capacity // 100)
    state = replay.state_dict()
    in_state = sum(array.nbytes for array in state["slots"].values())
    if pictures:
        leaves = state["priorities"]["leaves"].nbytes
        assert leaves == 4 * len(replay) and leaves < 0.001 * replay.nbytes
        in_state += leaves
    new = [path for path in tmp_path.iterdir() if path.name not in before]
    on_disk = in_state + sum(path.stat().st_size for path in new)
    assert all((tmp_path / name).stat().st_mtime_ns == then for name, then in before.items())
    assert 0 < on_disk < 0.05 * replay.nbytes
    assert sum(entry["bytes"] for entry in store.entries.values()) < 1.05 * replay.nbytes


def test_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    store.write("replay-000000000000.safetensors", {"a": np.arange(5)})
    np.testing.assert_array_equal(store.read("replay-000000000000.safetensors")["a"], np.arange(5))
    path = tmp_path / "replay-000000000000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum"):
        store.read(path.name)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.read(path.name)
    with pytest.raises(CheckpointError, match="does not list"):
        store.read("replay-000000000001.safetensors")


def two_lanes(steps: int) -> Replay:
    """In a ring of 100, without an end: step t fills the slots 2t + 2 and 2t + 3."""
    obs = np.zeros((2, 1), np.float32)
    replay = Replay(100, obs)
    for _ in range(steps):
        replay.add(np.zeros(2, np.int64), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), obs, obs)
    return replay


# Of two lanes in a ring of 100 that has turned: slots 60 … 159, of which 158 and 159 are open.
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "a head that is a bool": (dict(head=True), "a counter that is none"),
    "segments below 0": (dict(segments=-1), "a counter that is none"),
    "a first below 0": (dict(first=-1), "a counter that is none"),
    "a last of floats": (dict(last=150.0), "a counter that is none"),
    "the end before the start": (dict(first=101, last=100), "no transitions in order"),
    "an end after the head": (dict(last=161), "no transitions in order"),
    "more than the ring holds": (dict(first=9, last=110), "no transitions in order"),
    "more segments than slots": (dict(segments=161), "more segments than slots"),
    "open slots of one lane": (dict(open=np.array([159])), "Replay.open: an array of"),
    "an open slot of the future": (dict(open=np.array([159, 160])), "slots that are not there"),
    "an open slot that is gone": (dict(open=np.array([59, 159])), "slots that are not there"),
    "one open slot for two": (dict(open=np.array([159, 159])), "slots that are not there"),
}


@pytest.mark.parametrize(("changes", "message"), FORGED.values(), ids=FORGED)
def test_counters_that_lead_out_of_the_ring_are_refused(changes: dict[str, Any], message: str) -> None:
    state = two_lanes(79).state_dict()
    assert (state["head"], state["first"], state["open"].tolist()) == (160, 68, [158, 159])
    two_lanes(0).load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        two_lanes(0).load_state_dict(state | changes)


SLOTS: dict[str, tuple[Any, str]] = {
    "a column less": (lambda slots: slots.pop("reward"), "saved with"),
    "a slot less": (
        lambda slots: slots.update({name: rows[1:] for name, rows in slots.items()}),
        "slots, but",
    ),
    "more than the ring holds": (
        lambda slots: slots.update({name: np.concatenate([rows] * 6) for name, rows in slots.items()}),
        "slots, but",
    ),
    "rewards of another type": (
        lambda slots: slots.update(reward=slots["reward"].astype(np.float64)),
        "Replay.reward",
    ),
    "a link back from nowhere": (lambda slots: slots["behind"].fill(-1), "outside the ring"),
    "a link longer than the ring": (lambda slots: slots["behind"].fill(101), "outside the ring"),
    "what cannot happen": (lambda slots: slots["happened"].fill(8), "what cannot happen"),
}


@pytest.mark.parametrize(("edit", "message"), SLOTS.values(), ids=SLOTS)
def test_slots_that_do_not_fit_the_ring_are_refused(edit: Any, message: str) -> None:
    state = two_lanes(9).state_dict()
    edit(state["slots"])
    with pytest.raises(ValueError, match=message):
        two_lanes(0).load_state_dict(state)


def test_segments_that_are_lost_or_of_another_size_are_listed_no_more(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    names = [f"replay-{number:012d}.safetensors" for number in range(3)]
    for name in names:
        store.write(name, {"a": np.arange(5)})
    assert store.forget_missing() == 0 and list(store.entries) == names
    (tmp_path / names[0]).unlink()
    (tmp_path / names[2]).write_bytes(b"less")
    assert store.forget_missing() == 2 and list(store.entries) == names[1:2]


def test_segments_are_read_from_the_store_that_wrote_them_and_from_nowhere_else(tmp_path: Path) -> None:
    replay = two_lanes(79)
    replay.store = SegmentStore(tmp_path)
    state = replay.state_dict()
    assert state["segments"] == 158 and len(state["slots"]["reward"]) == 2
    with pytest.raises(ValueError, match="no folder to read them from"):
        two_lanes(0).load_state_dict(state)
    other = two_lanes(0)
    other.store = replay.store
    other.load_state_dict(state)
    assert (other.first, other.last) == (replay.first, replay.last)


@pytest.mark.parametrize("stack", [2, 3])
def test_a_few_frames_are_a_stack_too(stack: int) -> None:
    def frames(newest: int) -> np.ndarray:
        return np.arange(newest - stack + 1, newest + 1, dtype=np.float32).reshape(1, stack, 1)

    replay = Replay(100, frames(10), stack=stack)
    for newest in (11, 12):
        flag = np.zeros(1, bool)
        replay.add(np.array([newest]), np.ones(1), flag, flag, frames(newest), frames(newest))
    batch = replay._gather(np.arange(2), 0.9)
    np.testing.assert_array_equal(batch["obs"], np.concatenate([frames(10), frames(11)]))
    np.testing.assert_array_equal(batch["next_obs"], np.concatenate([frames(11), frames(12)]))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("n_step", "steps"), [(1, 7), (3, 7), (2, 40)])
def test_steps_that_come_together_are_stored_as_they_are_one_by_one(
    prioritized: bool, n_step: int, steps: int
) -> None:
    """Also where the ring turns, and where there are too many of them to be stored at once."""
    chance, obs = np.random.default_rng(n_step), np.zeros((3, 2), np.float32)
    one, other = (Replay(200, obs, n_step=n_step, prioritized=prioritized) for _ in range(2))
    for number in range(12):
        reward, ends = chance.random((steps, 3)), chance.random((2, steps, 3)) < 0.15
        seen = chance.random((2, steps, 3, 2)).astype(np.float32)
        columns = [chance.integers(0, 4, (steps, 3)), reward, *ends, seen[0], seen[1]]
        one.extend(*columns)
        for t in range(steps):
            other.add(*(each[t] for each in columns))
        if prioritized:
            for replay in (one, other):
                replay.set_priorities(np.arange(5), np.full(5, 1.0 + number), 0.5)
        states = [replay.state_dict() for replay in (one, other)]
        assert states[0].keys() == states[1].keys()
        for name, slots in states[0].pop("slots").items():
            assert slots.tobytes() == states[1]["slots"][name].tobytes(), name
        for name in ("head", "first", "last"):
            assert states[0][name] == states[1][name]
        assert np.array_equal(one.open, other.open)
        drawn = np.arange(one.first, one.last) % one.capacity
        assert np.array_equal(one.ready[drawn], other.ready[drawn])
        if one.priorities is not None and other.priorities is not None:
            assert np.array_equal(one.priorities.nodes, other.priorities.nodes)
    assert one.head > one.capacity


@pytest.mark.parametrize("halves", ["obs", "action"])
def test_halves_are_stored_though_numba_knows_none(halves):
    """One by one and many at once, with an episode's end among them."""
    obs = np.arange(30).reshape(5, 2, 3).astype(np.float16 if halves == "obs" else np.float32)
    action = np.arange(8).reshape(4, 2, 1).astype(np.float16 if halves == "action" else np.float32)
    reward = np.arange(8, dtype=np.float32).reshape(4, 2)
    truncated = np.zeros((4, 2), np.bool_)
    truncated[1, 0] = True
    columns = (action, reward, np.zeros_like(truncated), truncated, obs[1:], obs[1:])
    one, many = (Replay(64, obs[0]) for _ in range(2))
    for step in zip(*columns, strict=True):
        one.add(*step)
    many.extend(*columns)
    assert len(one) == len(many) == 8
    for replay in (one, many):
        drawn = replay._gather(np.arange(8), 0.9)
        kept = sorted(
            zip(drawn["reward"].tolist(), drawn["obs"].tolist(), drawn["action"].tolist(), strict=True)
        )
        assert kept == [
            (float(n), obs[n // 2, n % 2].tolist(), action[n // 2, n % 2].tolist()) for n in range(8)
        ]
        assert str(drawn[halves].dtype) == "torch.float16"
