"""Networks of planners for board games: the state keeps the shape of the board, and moves have planes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.masking import MASK
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.muzero import FrameDynamics, MuZeroNetwork, VectorDynamics

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


def test_the_mask_is_not_seen() -> None:
    network = MuZeroNetwork(BOARD, 7, **SIZES, board_tower=True)
    obs = seen(2)
    assert torch.equal(network.represent(obs), network.represent(obs | {MASK: torch.zeros(2, 7)}))


def test_a_move_is_a_plane_of_its_own() -> None:
    dynamics = MuZeroNetwork(BOARD, 7, **SIZES, board_tower=True).dynamics
    assert isinstance(dynamics, FrameDynamics) and dynamics.action.weight.shape == (7, 8 * 6 * 7)
    # By hand: without blocks and convolution, what a move changes is its plane.
    torch.nn.init.zeros_(dynamics.state.weight)
    dynamics.blocks = torch.nn.Sequential()
    change = dynamics(torch.zeros(2, 8, 6, 7), torch.tensor([4, 1]))
    assert torch.equal(change, dynamics.action.weight[[4, 1]].view(2, 8, 6, 7))


def test_grids_without_a_mask_and_what_is_no_grid_have_none() -> None:
    frames = MuZeroNetwork(BOARD["observation"], 7, **SIZES, board_tower=True).dynamics
    assert isinstance(frames, FrameDynamics) and frames.action.weight.shape == (7, 8)
    vector = spaces.Dict({MASK: spaces.MultiBinary(7), "observation": spaces.Box(0, 1, (18,))})
    more = spaces.Dict({**BOARD.spaces, "clock": spaces.Box(0, 1, (1,))})
    for space in (vector, more):
        assert isinstance(MuZeroNetwork(space, 7, **SIZES, board_tower=True).dynamics, VectorDynamics)
    assert isinstance(MuZeroNetwork(BOARD, 7, **SIZES, board_tower=False).dynamics, VectorDynamics)
