"""EfficientZero's parts: numbers made by hand, identities, and its model inside a search."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms import shifts as torchs
from rl_training.algorithms.efficientzero import (
    CONTINUOUS,
    DISCRETE,
    augment,
    consistency_loss,
    has_searched_value,
    td_horizons,
    value_prefixes,
)
from rl_training.algorithms.muzero import decode
from rl_training.algorithms.value_transform import compress
from rl_training.data.episodes import EpisodeReplay
from rl_training.kernels import shifts
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.runtime.optim import Adam
from rl_training.search import Root, muzero_search

HORIZON = 3


def make_network(kind: type[EfficientZeroNetwork] = EfficientZeroNetwork, **changes: Any) -> Any:
    settings: dict[str, Any] = dict(latent_size=6, hidden_sizes=(8,), support_size=7, residual_blocks=1)
    settings |= dict(activation="relu", image_encoder="nature", value_prefix=True, prefix_size=5)
    settings |= dict(prefix_horizon=HORIZON, consistency=True, projection_size=4)
    space = changes.pop("space", spaces.Box(-1, 1, (3,), np.float32))
    return kind(space, 2, **settings | changes)


def test_prefixes_by_hand() -> None:
    """After three steps the sum begins anew."""
    reward = torch.tensor([[1.0, 0.0], [2.0, -1.0], [4.0, 0.0], [8.0, 5.0], [16.0, 0.0]])
    expected = [[1.0, 0.0], [3.0, -1.0], [7.0, -1.0], [8.0, 5.0], [24.0, 5.0]]
    torch.testing.assert_close(value_prefixes(reward, 3), torch.tensor(expected))
    torch.testing.assert_close(value_prefixes(reward, 1), reward)
    torch.testing.assert_close(value_prefixes(reward, 9), reward.cumsum(0))


def test_consistency_by_hand() -> None:
    """-1 for the same direction, 0 at a right angle, 1 for the opposite; only the prediction is moved."""
    prediction = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 2.0]], requires_grad=True)
    target = torch.tensor([[3.0, 0.0], [0.0, 5.0], [-1.0, -1.0]], requires_grad=True)
    loss = consistency_loss(prediction, target)
    torch.testing.assert_close(loss, torch.tensor([-1.0, 0.0, 1.0]))
    loss.sum().backward()
    assert target.grad is None and prediction.grad is not None and prediction.grad.any()


def test_horizons_shrink_with_age() -> None:
    ages = np.array([0, 29, 30, 60, 119, 120, 1000])
    assert td_horizons(ages, 5, 30.0).tolist() == [5, 5, 4, 3, 2, 1, 1]
    assert td_horizons(ages, 5, np.inf).tolist() == [5] * 7


def test_when_and_for_what_searched_values_are_learned() -> None:
    """As EfficientZero V2 has it for runs of 100 000 steps: otherwise for Atari than for control."""
    ages, run = torch.tensor([5_000, 5_001, 20_000, 20_001]), 100_000
    assert has_searched_value(ages, 30_000, run, DISCRETE).tolist() == [False, True, True, True]
    assert has_searched_value(ages, 40_000, run, CONTINUOUS).tolist() == [False, False, False, True]
    assert not has_searched_value(ages, 29_999, run, DISCRETE).any()
    assert not has_searched_value(ages, 39_999, run, CONTINUOUS).any()


def test_old_positions_of_a_replay_bootstrap_sooner() -> None:
    """Rewards 1, 2, 4, … of one lane: the same position is summed over n = 3 rewards, then 2, then 1."""
    column = np.zeros((1, 1), np.float32)
    replay = EpisodeReplay(200, column, num_actions=1, unroll_steps=1, td_steps=3, steps_per_cut=6)
    found = []
    for step in range(20):
        going = np.array([False])
        replay.add(
            np.array([0]),
            np.array([2.0**step]),
            going,
            going,
            column + step + 1,
            column + step + 1,
            policy=np.ones((1, 1), np.float32),
        )
        if len(replay):
            batch = replay._gather(np.array([0]), 0.5)
            row = (batch["returns"][:, 0].tolist(), batch["discount"][0, 0].item())
            row += (replay.seen_at(batch["bootstrap"][:, 0]).flatten().tolist(),)
            if row not in found:
                found.append(row)
    # Σ (1/2)ⁱ 2ⁱ is the number of rewards from position 0, and twice that from position 1.
    assert found == [
        ([3.0, 6.0], 0.125, [3.0, 4.0]),
        ([2.0, 4.0], 0.25, [2.0, 3.0]),
        ([1.0, 2.0], 0.5, [1.0, 2.0]),
    ]


def test_shifts_by_hand() -> None:
    """One down and one to the left; what comes in repeats the edge. All channels move together."""
    frame = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.uint8)
    frames = torch.stack([torch.stack([frame, frame + 10])] * 2)
    moved = torchs.shift_frames(frames, torch.tensor([1, 0]), torch.tensor([-1, 0]))
    expected = torch.tensor([[2, 3, 3], [2, 3, 3], [5, 6, 6]], dtype=torch.uint8)
    assert torch.equal(moved[0], torch.stack([expected, expected + 10]))
    assert torch.equal(moved[1], frames[1])


def test_augmented_frames_are_all_different_and_stay_near() -> None:
    torch.manual_seed(0)
    frames = torch.full((200, 4, 12, 10), 100, dtype=torch.uint8)
    frames[:, :, 6, 5] = 250
    found = augment(frames)
    assert found.shape == frames.shape and found.is_floating_point()
    background = found[:, 0, 0, 0]
    assert 89.9 <= background.min() < 95 and 105 < background.max() <= 110.1
    assert len(background.unique()) > 100
    places = {divmod(place, 10) for place in found[:, 0].flatten(1).argmax(1).tolist()}
    assert {down for down, _ in places} == set(range(2, 11))
    assert {right for _, right in places} == set(range(1, 10))


def test_the_brightness_by_hand(monkeypatch) -> None:
    """1 + 0.05 z, with z cut to [-2, 2]."""
    monkeypatch.setattr(torch, "randn", lambda *shape: torch.tensor([-3.0, -1.0, 0.5, 7.0]).view(shape))
    found = augment(torch.full((4, 1, 2, 2), 200, dtype=torch.uint8))
    torch.testing.assert_close(found[:, 0, 0, 0], torch.tensor([180.0, 190.0, 205.0, 220.0]))


@pytest.mark.parametrize("shape", [(5, 4, 12, 9), (3, 1, 3, 20), (1, 3, 1, 1)])
def test_compiled_augmentation_is_torchs(shape: tuple[int, ...]) -> None:
    """The same bits, whether the channels are last in memory or not."""
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    for given in (frames, frames.to(memory_format=torch.channels_last), frames.float()):
        found = []
        for by in (torchs.brightened, shifts.brightened):
            torch.manual_seed(4)
            found.append(augment(given, by))
        assert torch.equal(*found) and found[0].dtype == found[1].dtype == torch.float32
    assert found[0].std() > 1 or shape[0] == 1


class PerfectPrefix(nn.Module):
    """Says exactly what was earned since the reset, which the test's own model wrote into the state."""

    cell = nn.LSTM(1, 2)

    def step(self, state: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = compress(state[:, 2]) + 7
        two_hot = (1 - (torch.arange(15.0) - y.unsqueeze(-1)).abs()).clamp(min=1e-30)
        return two_hot.log(), hidden + 1, cell + 1


class CountedWorld(EfficientZeroNetwork):
    """Rewards of step t and action a are known; a state is (t, the last reward, what was earned since the reset)."""

    def represent(self, obs: Any) -> Tensor:
        return torch.zeros(len(obs), 6)

    def transition(self, latent: Tensor, action: Tensor) -> Tensor:
        following = torch.zeros_like(latent)
        step = latent[:, 0]
        following[:, 0] = step + 1
        following[:, 1] = torch.sin(3 * step) + action * 2 - 0.5
        began = step % HORIZON == 0
        following[:, 2] = following[:, 1] + torch.where(began, 0.0, latent[:, 2])
        return following


@torch.no_grad()
def test_rewards_in_the_tree_are_the_true_ones_also_across_resets() -> None:
    network = make_network(CountedWorld)
    network.prefix, network.small = PerfectPrefix(), None
    root = Root(*network.initial(torch.zeros(4, 3)))
    depth, resets = 0.0, 0

    def recurrent(latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        nonlocal depth, resets
        reward, logits, value, following = network.recurrent(latent, action)
        torch.testing.assert_close(reward, following["latent"][:, 1], rtol=1e-3, atol=1e-3)
        over = following["latent"][:, 0] % HORIZON == 0
        kept = torch.where(over, 0.0, following["latent"][:, 2])
        torch.testing.assert_close(following["prefix"], kept, rtol=1e-3, atol=1e-3)
        # The memory was added to once a step, and emptied with the prefix.
        torch.testing.assert_close(following["hidden"][:, 0], following["latent"][:, 0] % HORIZON)
        torch.testing.assert_close(following["cell"], following["hidden"])
        depth, resets = max(depth, float(following["latent"][:, 0].max())), resets + int(over.sum())
        return reward, torch.full_like(reward, 0.99), logits, value, following

    muzero_search(root, recurrent, num_simulations=80)
    assert depth > 2 * HORIZON and resets > 10


@torch.no_grad()
@pytest.mark.parametrize("frames", [False, True])
def test_the_prefixes_of_a_search_are_those_that_are_learned(frames: bool) -> None:
    """Step by step through `recurrent`, and all at once through `prefixes`, over two resets."""
    space = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    network = make_network(**(dict(space=space) if frames else {}))
    for layer in (network.prediction[-1], network.prefix.head):
        nn.init.normal_(layer.weight)
    obs = torch.randint(0, 255, (4, 4, 36, 36), dtype=torch.uint8) if frames else torch.randn(4, 3)
    *_, latent = network.initial(obs)
    actions = torch.randint(2, (7, 4))
    states, rewards, values = [latent["latent"]], [], []
    for action in actions:
        reward, _, value, latent = network.recurrent(latent, action)
        states.append(network.transition(states[-1], action))
        rewards.append(reward)
        values.append(value)
    torch.testing.assert_close(latent["latent"], states[-1])
    found = network.predict(torch.cat(states[1:]))
    torch.testing.assert_close(torch.cat(values), decode(found.value, network.atoms), rtol=1e-3, atol=1e-3)
    logits = network.prefixes(found.reward.view(7, 4, -1), torch.stack(states[1:]))
    expected = value_prefixes(torch.stack(rewards), HORIZON)
    torch.testing.assert_close(decode(logits, network.atoms), expected, rtol=1e-3, atol=1e-3)
    assert latent["steps"].tolist() == [1] * 4, "seven steps are one after the second reset"


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 8, 37])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_planning_without_torch_is_planning_with_torch(activation: str, count: int) -> None:
    """Over a reset, also for a copy of the network, and after an optimizer has moved the parameters."""
    network = make_network(activation=activation, hidden_sizes=(8, 7))
    for layer in (network.prediction[-1], network.prefix.head):
        nn.init.normal_(layer.weight)
    assert (network.small is not None) == (activation != "elu")
    for model in (network, copy.deepcopy(network)):
        Adam([model]).parameters.mul_(1.1)
        *_, fast = model.initial(torch.randn(count, 3))
        slow, small = fast, model.small
        for _ in range(HORIZON + 2):
            action = torch.randint(2, (count,))
            model.small = small
            *said, fast = model.recurrent(fast, action)
            model.small = None
            *expected, slow = model.recurrent(slow, action)
            assert fast.keys() == slow.keys()
            for one, other in zip((*said, *fast.values()), (*expected, *slow.values()), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_the_memory_matters() -> None:
    """The same state and action after another past give another prefix, until the memory is emptied."""
    network = make_network()
    nn.init.normal_(network.prefix.head.weight)
    *_, latent = network.initial(torch.randn(1, 3))
    other = latent | {"hidden": torch.ones(1, 5), "cell": torch.ones(1, 5)}
    action = torch.tensor([1])
    rewards = []
    for _ in range(HORIZON + 1):
        *one, latent = network.recurrent(latent, action)
        *two, other = network.recurrent(other, action)
        rewards.append((one[0].item(), two[0].item()))
    assert all(one != two for one, two in rewards[:HORIZON])
    assert rewards[HORIZON][0] == rewards[HORIZON][1]


@torch.no_grad()
def test_from_zeros_nothing_is_worth_anything() -> None:
    network = make_network()
    policy, value, latent = network.initial(torch.randn(5, 3))
    reward, logits, after, _ = network.recurrent(latent, torch.tensor([0, 1, 0, 1, 0]))
    for part in (policy, value, reward, logits, after):
        assert part.abs().max() < 1e-5
