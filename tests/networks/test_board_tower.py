"""Networks of planners for board games: the state keeps the shape of the board, and moves have planes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.masking import MASK
from rl_training.dynamics.registry import KNOWN
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.muzero import (
    BoardHeads,
    BoardMoves,
    FrameDynamics,
    MuZeroNetwork,
    VectorDynamics,
    by_the_batch,
    named_squares,
)

BOARD = spaces.Dict({MASK: spaces.MultiBinary(7), "observation": spaces.Box(0, 1, (2, 6, 7))})
SIZES: dict[str, Any] = dict(
    latent_size=8,
    hidden_sizes=[16],
    activation="relu",
    image_encoder="nature",
    support_size=1,
    residual_blocks=1,
)
PREFIX: dict[str, Any] = dict(
    value_prefix=True, prefix_size=4, prefix_horizon=3, consistency=True, projection_size=4
)


def seen(count: int) -> dict[str, torch.Tensor]:
    return {MASK: torch.ones(count, 7), "observation": torch.rand(count, 2, 6, 7)}


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("kind", [MuZeroNetwork, EfficientZeroNetwork])
def test_states_keep_the_shape_of_the_board(kind: type[MuZeroNetwork], batch_norm: bool) -> None:
    more = PREFIX if kind is EfficientZeroNetwork else {}
    network = kind(BOARD, 7, **SIZES, **more, board_tower=True, batch_norm=batch_norm)
    latent = network.represent(seen(3))
    assert latent.shape == (3, 8, 6, 7)
    assert network.transition(latent, torch.tensor([0, 3, 6])).shape == (3, 8, 6, 7)
    policy, value, state = network.initial(seen(3))
    reward, logits, _, _ = network.recurrent(state, torch.tensor([0, 3, 6]))
    assert policy.shape == logits.shape == (3, 7) and value.shape == reward.shape == (3,)


@pytest.mark.parametrize("residual_blocks", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_searches_see_boards_as_learning_does(shared: bool, residual_blocks: int) -> None:
    sizes = SIZES | {"residual_blocks": residual_blocks}
    network = MuZeroNetwork(BOARD, 7, **sizes, board_tower=True, shared_tower=shared)
    obs = seen(3)
    learned = network.represent(obs)
    with torch.no_grad():
        assert torch.equal(network.represent(obs), learned)


def test_the_mask_is_not_seen() -> None:
    network = MuZeroNetwork(BOARD, 7, **SIZES, board_tower=True)
    obs = seen(2)
    assert torch.equal(network.represent(obs), network.represent(obs | {MASK: torch.zeros(2, 7)}))


def test_a_move_is_marked_where_it_is_made() -> None:
    column = named_squares(7, (6, 7))
    assert column is not None and column[3, 0].tolist() == [[0, 0, 0, 1, 0, 0, 0]] * 6
    square = named_squares(9, (3, 3))
    assert square is not None and square[5, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert named_squares(8, (3, 3)) is None


@pytest.mark.parametrize("actions", [7, 5])
def test_a_move_has_a_plane_of_its_own(actions: int) -> None:
    board = spaces.Dict({MASK: spaces.MultiBinary(actions), "observation": BOARD["observation"]})
    dynamics = MuZeroNetwork(board, actions, **SIZES, board_tower=True).dynamics
    assert isinstance(dynamics, FrameDynamics) and isinstance(dynamics.action, BoardMoves)
    # Without blocks and convolution, what a move changes is its plane: of a column what the filters see around it.
    torch.nn.init.zeros_(dynamics.state.weight)
    dynamics.blocks = torch.nn.Sequential()
    change = dynamics(torch.zeros(2, 8, 6, 7), torch.tensor([4, 1]))
    if actions == 7:
        filters = dynamics.action.convolution.weight[:, 0].sum(
            1
        )  # [8, 3], of whole columns away from the edges
        assert torch.allclose(change[0, :, 2, 3:6], filters.flip(1)) and not change[0, :, :, :3].any()
        assert torch.allclose(change[1, :, :, :3], change[0, :, :, 3:6]), "another column, the same change"
    else:
        assert torch.equal(change, dynamics.action.planes[[4, 1]])


def random_moves(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boards [N, 2, 6, 7] of random games, the column each mover took [N], and whether that won [N]."""
    dynamics, chance = KNOWN["rl_training/ConnectFour-v0"].load(), np.random.default_rng(1)
    unused, state, over = np.zeros(2, np.uint64), np.zeros(43), True
    boards = np.empty((count, 2 * 42 + 7), np.float32)
    moves, wins = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        if over:
            dynamics.reset(state, unused)
        dynamics.observe(state, boards[i])
        moves[i] = chance.choice(np.flatnonzero(boards[i, 84:]))
        wins[i], over = dynamics.step(state, np.array([float(moves[i])]), unused)
    planes = torch.from_numpy(boards[:, :84].reshape(-1, 2, 6, 7))
    return planes, torch.from_numpy(moves), torch.from_numpy(wins)


@pytest.mark.parametrize("shared", [False, True])
def test_a_tower_soon_learns_which_moves_win(shared: bool) -> None:
    """Of random games, within 300 updates: a deeper representation and unmarked moves know little by then.

    The shared tower, which is not normalised, needs wins more often, as `reward_priority` draws them.
    """
    boards, moves, wins = random_moves(12_000)
    torch.manual_seed(1)
    kind = {"shared_tower": True} if shared else {"batch_norm": True}
    network = MuZeroNetwork(BOARD, 7, **SIZES | {"latent_size": 16}, board_tower=True, **kind)
    optimizer, losses = torch.optim.Adam(network.parameters(), 3e-3), []
    chances = torch.ones(len(boards))
    if shared:
        chances[wins > 0] = (wins == 0).sum() / (wins > 0).sum()  # half of a batch
    for _ in range(300):
        rows = chances.multinomial(64, replacement=True)
        obs = {MASK: torch.ones(64, 7), "observation": boards[rows]}
        with by_the_batch(network):
            said = network.unroll(obs, moves[rows][None]).reward[64:]
            loss = torch.nn.functional.cross_entropy(said, 1 + wins[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    share = (chances * wins).sum() / chances.sum()
    ignorance = -(share * share.log() + (1 - share) * (1 - share).log())
    assert np.mean(losses[-100:]) < 0.75 * ignorance


@pytest.mark.parametrize("kind", [MuZeroNetwork, EfficientZeroNetwork])
def test_representation_and_dynamics_end_in_one_tower(kind: type[MuZeroNetwork]) -> None:
    more = PREFIX if kind is EfficientZeroNetwork else {}
    network = kind(BOARD, 7, **SIZES, **more, board_tower=True, shared_tower=True)
    obs, move = seen(3), torch.tensor([0, 3, 6])
    before = network.represent(obs)
    after = network.transition(before, move)
    assert before.shape == after.shape == (3, 8, 6, 7)
    torch.testing.assert_close(before.square().mean((1, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    with torch.no_grad():
        for part in network.tower.parameters():
            part.add_(0.1)
    assert not torch.allclose(network.represent(obs), before, atol=1e-3)
    assert not torch.allclose(network.transition(before, move), after, atol=1e-3)
    policy, value, state = network.initial(obs)
    reward, logits, _, _ = network.recurrent(state, move)
    assert policy.shape == logits.shape == (3, 7) and value.shape == reward.shape == (3,)


def heads_of_a_board(actions: int) -> BoardHeads:
    torch.manual_seed(1)
    heads = BoardHeads(4, (6, 7), [16], "relu", (actions, 3, 3))
    for weight in heads.parameters():  # the last layers begin at zero
        torch.nn.init.normal_(weight, std=0.5)
    return heads


def test_heads_of_boards_know_no_square_by_its_place() -> None:
    heads, states = heads_of_a_board(7), torch.zeros(2, 4, 6, 7)
    line = torch.rand(4, 2, 2)
    states[0, :, 2:4, 2:4], states[1, :, 2:4, 3:5] = line, line
    policy, rest = heads(states).split([7, 6], 1)
    assert torch.allclose(rest[0], rest[1], atol=1e-6) and rest[0].abs().max() > 0
    assert torch.allclose(policy[1, 1:], policy[0, :-1], atol=1e-6), "a column on, as the line is"
    assert policy[0].std() > 0
    heads(states)[:, 7:].sum().backward()
    assert all(weight.grad is not None for weight in heads.lines.parameters())


def test_moves_without_squares_have_a_pooled_policy() -> None:
    said = heads_of_a_board(5)(torch.rand(3, 4, 6, 7))
    assert said.shape == (3, 5 + 6) and said[:, :5].std() > 0


@pytest.mark.parametrize("kind", [MuZeroNetwork, EfficientZeroNetwork])
def test_outcomes_are_learned_as_they_are_where_the_config_says_so(kind: type[MuZeroNetwork]) -> None:
    more = PREFIX if kind is EfficientZeroNetwork else {}
    network = kind(BOARD, 7, **SIZES, **more, board_tower=True, value_transform=False)
    certain = torch.tensor([[100.0, 0, 0], [0, 100, 0], [0, 0, 100]])
    assert network.decode(certain).tolist() == [-1, 0, 1]
    with torch.no_grad():
        network.prediction[-1].bias[7:10] = certain[2]  # of the value
    assert network.initial(seen(2))[1].tolist() == [1, 1]
    vector = spaces.Box(0, 1, (18,))
    assert kind(vector, 7, **SIZES, **more, value_transform=False).small is None, "compiled decoding has h"
    assert kind(vector, 7, **SIZES, **more).small is not None


def test_grids_without_a_mask_and_what_is_no_grid_have_none() -> None:
    frames = MuZeroNetwork(BOARD["observation"], 7, **SIZES, board_tower=True).dynamics
    assert isinstance(frames, FrameDynamics) and frames.action.weight.shape == (7, 8)
    vector = spaces.Dict({MASK: spaces.MultiBinary(7), "observation": spaces.Box(0, 1, (18,))})
    more = spaces.Dict({**BOARD.spaces, "clock": spaces.Box(0, 1, (1,))})
    for space in (vector, more):
        assert isinstance(MuZeroNetwork(space, 7, **SIZES, board_tower=True).dynamics, VectorDynamics)
    assert isinstance(MuZeroNetwork(BOARD, 7, **SIZES, board_tower=False).dynamics, VectorDynamics)
