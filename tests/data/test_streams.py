"""The replay of sequences: what is drawn is what happened, in step, and it survives a save."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import TINY_DREAMER

from rl_training.data.streams import StreamReplay, one_hot
from rl_training.errors import ConfigError
from rl_training.runtime.controls import Controls
from rl_training.runtime.dreamer_trainer import DreamerConfig, DreamerTrainer
from rl_training.state.seeding import seed_everything
from rl_training.state.segments import SegmentStore


def row(lanes: int, number: int = 0) -> dict[str, Any]:
    """A row whose parts all say which one it is."""
    where = np.arange(lanes) * 1000.0 + number
    flag = np.zeros(lanes, np.bool_)
    return {
        "obs": {"a": where[:, None].astype(np.float32), "b": where.astype(np.int64)},
        "reward": where.astype(np.float32),
        "first": flag,
        "last": flag,
        "terminal": flag,
        "action": where.astype(np.int64),
        "deter": np.repeat(where[:, None], 3, 1).astype(np.float16),
        "stoch": (np.arange(lanes)[:, None] + number + np.arange(2)).astype(np.uint8) % 4,
    }


def filled(rows: int, capacity: int = 60, refresh: bool = False) -> StreamReplay:
    replay = StreamReplay(capacity, row(2), length=4, num_classes=4, refresh=refresh)
    for number in range(rows):
        replay.add(np.arange(2), row(2, number))
    return replay


@pytest.mark.parametrize("rows", [12, 30, 77])
def test_sequences_are_in_step(rows: int) -> None:
    seed_everything(0)
    replay = filled(rows)
    seen = set()
    for _ in range(40):
        batch = replay.sample(6)
        lane, first = batch["lane"], batch["row"]
        numbers = torch.from_numpy(lane * 1000.0 + first) + torch.arange(5.0)[:, None]
        torch.testing.assert_close(batch["reward"].double(), numbers[1:])
        torch.testing.assert_close(batch["obs"]["a"][..., 0].double(), numbers[1:])
        assert torch.equal(batch["obs"]["b"].double(), numbers[1:])
        assert torch.equal(batch["action"].double(), numbers[:-1]), "the action before each row"
        assert torch.equal(batch["deter"][:, 0], numbers[0].half().float()), "the latent before all"
        classes = (lane[:, None] + first[:, None] + np.arange(2)) % 4
        assert torch.equal(batch["stoch"], one_hot(torch.from_numpy(classes), 4))
        assert (first >= max(rows - 30, 0)).all() and (first + 5 <= rows).all()
        seen |= set(zip(lane.tolist(), first.tolist(), strict=True))
    assert len(seen) == len(replay) == 2 * (min(rows, 30) - 4)


def test_what_is_new_is_drawn_once_and_first() -> None:
    seed_everything(0)
    replay = filled(11)
    batch = replay.sample(3)  # stretches of five rows: two of each lane are complete
    drawn = list(zip(batch["lane"].tolist(), batch["row"].tolist(), strict=True))
    assert drawn == [(0, 0), (1, 0), (0, 5)]
    batch = replay.sample(3)
    assert (batch["lane"][0], batch["row"][0]) == (1, 5)
    assert not replay.fresh
    # A stretch that is overwritten before its turn is left out.
    for number in range(11, 60):
        replay.add(np.arange(2), row(2, number))
    batch = replay.sample(50)
    assert batch["row"].min() >= 30


def test_lanes_of_different_length_are_drawn_evenly() -> None:
    seed_everything(0)
    replay = filled(6)
    replay.fresh.clear()
    for number in range(6, 14):
        replay.add(np.array([1]), {key: _lane(part, 1) for key, part in row(2, number).items()})
    replay.fresh.clear()
    assert len(replay) == 2 + 10
    batch = replay.sample(6000)
    counts = Counter(zip(batch["lane"].tolist(), batch["row"].tolist(), strict=True))
    assert set(counts) == {(0, 0), (0, 1)} | {(1, first) for first in range(10)}
    assert all(400 < count < 600 for count in counts.values())


def _lane(part: Any, lane: int) -> Any:
    return {key: value[[lane]] for key, value in part.items()} if isinstance(part, dict) else part[[lane]]


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("rows", [20, 70])
def test_a_saved_replay_comes_back(rows: int, refresh: bool, tmp_path: Path) -> None:
    replay = filled(rows, refresh=refresh)
    replay.rows = 4
    replay.store = SegmentStore(tmp_path / "replay")
    replay.sample(3)
    replay.state_dict()
    for number in range(rows, rows + 9):
        replay.add(np.arange(2), row(2, number))
    if refresh:
        batch = replay.sample(2)
        shape = (4, 2)
        replay.put_latents(batch["lane"], batch["row"], np.full((*shape, 3), -7.0), np.full((*shape, 2), 3))
    state = replay.state_dict()
    assert list((tmp_path / "replay").iterdir())
    other = StreamReplay(60, row(2), length=4, num_classes=4, refresh=refresh)
    other.rows, other.store = 4, replay.store
    other.load_state_dict(state)
    assert list(other.fresh) == list(replay.fresh)
    for _ in range(30):
        seed_everything(rows)
        one = replay.sample(8)
        seed_everything(rows)
        two = other.sample(8)
        for name in ("reward", "action", "deter", "stoch"):
            assert torch.equal(one[name], two[name])
        assert torch.equal(one["obs"]["a"], two["obs"]["a"])


def test_replaced_latents_are_those_drawn_next() -> None:
    replay = filled(11, refresh=True)
    replay.put_latents(np.array([1]), np.array([3]), np.full((4, 1, 3), 0.5), np.full((4, 1, 2), 2))
    assert replay.columns["deter"][1, 3:8, 0].tolist() == [1003.0, 0.5, 0.5, 0.5, 0.5]
    assert (replay.columns["stoch"][1, 4:8] == 2).all() and (replay.columns["deter"][0, 4:8] != 0.5).all()


def test_too_small_a_replay_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer_size of at least 20, not"):
        StreamReplay(19, row(2), length=4, num_classes=4)
    StreamReplay(20, row(2), length=4, num_classes=4)


# Of two lanes of 12 rows, drawn in stretches of 5: (0, 0), (1, 0), (0, 5) and (1, 5) are not drawn yet.
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "heads of one lane": (dict(heads=np.array([12])), "heads: an array of"),
    "a head below 0": (dict(heads=np.array([12, -1]), cut=np.array([10, -1])), "no counters"),
    "a head of the far future": (dict(heads=np.array([12, 2**62])), "no counters"),
    "a cut below 0": (dict(cut=np.array([10, -1])), "no counters"),
    "a cut of the future": (dict(cut=np.array([10, 13])), "no counters"),
    "more segments than rows": (dict(segments=[0, 13]), "more than there are rows for"),
    "a lane below 0": (dict(fresh=np.array([[-1, 0]])), "stretches that are not there"),
    "a lane too many": (dict(fresh=np.array([[2, 0]])), "stretches that are not there|out of bounds"),
    "a row below 0": (dict(fresh=np.array([[0, -1]])), "stretches that are not there"),
    "a stretch of the future": (dict(fresh=np.array([[0, 8]])), "stretches that are not there"),
    "stretches of three numbers": (dict(fresh=np.zeros((1, 3), np.int64)), "fresh: an array of"),
    "latents of others": (dict(latents={"deter": np.zeros(1)}), "latents of others"),
}


@pytest.mark.parametrize(("changes", "message"), FORGED.values(), ids=FORGED)
def test_counters_that_lead_out_of_the_ring_are_refused(changes: dict[str, Any], message: str) -> None:
    state = filled(12).state_dict()
    with pytest.raises((ValueError, IndexError), match=message):
        filled(0).load_state_dict(state | changes)
    accepted = filled(0)
    accepted.load_state_dict(state | dict(fresh=np.array([[0, 7], [1, 0]])))  # the newest stretch, the oldest
    assert list(accepted.fresh) == [(0, 7), (1, 0)]


def gathered(env_id: str, steps: int, **changes: Any) -> DreamerTrainer:
    settings = dict(num_envs=3, total_timesteps=10**6, buffer_size=3000, learning_starts=10**6)
    config = DreamerConfig(env_id=env_id, **settings | TINY_DREAMER | changes)
    seed_everything(1)
    trainer = DreamerTrainer(config)
    knobs = Controls.of(config)
    for i in range(steps):
        trainer.iterate(knobs.at(3 * i))
    return trainer


def test_an_action_and_what_it_led_to_stand_together() -> None:
    """The environment repeats each action as its next observation, and pays the action plus 10."""
    trainer = gathered("probe/Echo-v0", 60)
    batch = trainer.replay.sample(200)
    first = batch["first"]
    assert first.any() and batch["last"].any() and (batch["obs"][first] == -1).all()
    inside = ~first
    assert torch.equal(batch["obs"][inside][:, 0], batch["action"][inside].float())
    assert torch.equal(batch["reward"][inside], batch["action"][inside].float() + 10)
    assert not batch["reward"][first].any()
    assert torch.equal(batch["last"][:-1], first[1:]), "an episode follows right after another"
    assert torch.equal(batch["last"], batch["terminal"])


def test_a_time_limit_ends_and_does_not_terminate() -> None:
    for env_id, terminal in (("DiscreteEnding", True), ("DiscreteCutOff", False)):
        batch = gathered(f"probe/{env_id}-v0", 40).replay.sample(100)
        assert batch["last"].any() and batch["terminal"].any() == terminal


def test_stored_latents_are_those_that_were_acted_on() -> None:
    """Following a stream from its stored latent, with the weights it was made with, gives the next stored one."""
    trainer = gathered("CartPole-v1", 60)
    network = trainer.agent.network
    for _ in range(5):
        trainer.replay.fresh.clear()
        batch = trainer.draw()
        places = (batch["row"] + 1) % trainer.replay.capacity
        from rl_training.networks.rssm import State

        with torch.no_grad():
            keep = 1 - batch["first"][0].unsqueeze(-1)
            state = State(batch["deter"] * keep, batch["stoch"] * keep)
            deter = network.rssm.remember(state, network.rssm.action_inputs(batch["action"][0] * keep))
        kept = torch.from_numpy(trainer.replay.columns["deter"][batch["lane"], places]).float()
        goes_on = batch["last"][0] == 0
        torch.testing.assert_close(deter[goes_on], kept[goes_on], atol=2e-3, rtol=0)


def test_segments_are_read_from_the_store_that_wrote_them_and_from_nowhere_else(tmp_path: Path) -> None:
    replay = filled(12)
    replay.store = SegmentStore(tmp_path)
    state = replay.state_dict()
    assert state["segments"] == [12, 12] and [len(tail["reward"]) for tail in state["tails"]] == [0, 0]
    with pytest.raises(ValueError, match="no folder to read them from"):
        filled(0).load_state_dict(state)
    other = filled(0)
    other.store = replay.store
    other.load_state_dict(state)
    assert other.columns["reward"].tolist() == replay.columns["reward"].tolist()
