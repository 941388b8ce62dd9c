"""Batch normalisation of frames in searches: part of the convolution before it, with the same result."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.muzero import (
    FrameDynamics,
    FrameLayers,
    FrameNorm,
    MuZeroNetwork,
    NormalisedBlock,
    by_the_batch,
)

SIZES = dict(latent_size=8, hidden_sizes=[8], support_size=3, residual_blocks=1, projection_size=8)


@pytest.fixture
def network() -> EfficientZeroNetwork:
    """One whose statistics and weights of normalisation are not those it begins with."""
    torch.manual_seed(0)
    made = EfficientZeroNetwork(
        spaces.Box(0, 255, (2, 32, 32), np.uint8),
        3,
        value_prefix=True,
        consistency=True,
        prefix_size=8,
        prefix_horizon=5,
        activation="relu",
        image_encoder="nature",
        batch_norm=True,
        **SIZES,
    )
    for part in made.modules():
        if isinstance(part, FrameNorm):
            nn.init.uniform_(part.weight, 0.5, 2.0)
            nn.init.uniform_(part.bias, -1.0, 1.0)
            part.mean.uniform_(-1.0, 1.0)
            part.variance.uniform_(0.5, 2.0)
    return made


def normalised(norm: FrameNorm, x: torch.Tensor) -> torch.Tensor:
    """The formula, in double precision, for each channel."""
    w, b, mean, variance = (
        part.double().view(-1, 1, 1) for part in (norm.weight, norm.bias, norm.mean, norm.variance)
    )
    return (x - mean) / (variance + 1e-5).sqrt() * w + b


def by_hand(layers: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for layer in layers.children():
        if isinstance(layer, FrameNorm):
            x = normalised(layer, x)
        elif isinstance(layer, nn.Conv2d):
            bias = None if layer.bias is None else layer.bias.double()
            x = F.conv2d(x, layer.weight.double(), bias, layer.stride, layer.padding)
        elif isinstance(block := getattr(layer, "layers", None), FrameLayers):
            x = (x + by_hand(block, x)).relu()
        else:
            x = layer.double()(x)
            layer.float()
    return x


@torch.no_grad()
def test_the_representation_of_frames_is_normalised_layer_by_layer(network: EfficientZeroNetwork) -> None:
    frames = torch.randint(0, 256, (5, 2, 32, 32), dtype=torch.uint8)
    expected = by_hand(network.representation.layers, frames.double() / 255)
    torch.testing.assert_close(network.representation(frames), expected.float(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_transition_and_what_heads_and_memory_read_are_normalised(network: EfficientZeroNetwork) -> None:
    dynamics = network.dynamics
    assert isinstance(dynamics, FrameDynamics) and dynamics.norm is not None
    nn.init.uniform_(dynamics.action.weight, -2.0, 2.0)
    state, action = torch.rand(4, 8, 2, 2), torch.tensor([0, 1, 2, 1])
    moved = dynamics.action(action).double()[..., None, None]
    weights = (dynamics.state.weight.double(), dynamics.state.bias.double())
    change = normalised(dynamics.norm, F.conv2d(state.double(), *weights, padding=1) + moved)
    expected = by_hand(dynamics.blocks, (state + change).relu())
    torch.testing.assert_close(dynamics(state, action), expected.float(), rtol=1e-4, atol=1e-4)
    assert network.prefix is not None
    for layers in (*network.prediction.heads, network.prefix.reduce):
        expected = by_hand(layers, state.double()).float()
        torch.testing.assert_close(layers(state), expected, rtol=1e-4, atol=1e-4)


def test_what_is_learned_is_normalised_by_the_batch_and_has_gradients(network: EfficientZeroNetwork) -> None:
    frames = torch.randint(0, 256, (5, 2, 32, 32), dtype=torch.uint8)
    with by_the_batch(network):
        said = network.unroll(frames, torch.zeros(2, 5, dtype=torch.int64))
    sum(part.square().mean() for part in said).backward()
    norms = [part for part in network.modules() if isinstance(part, FrameNorm)]
    assert all(norm.weight.grad is not None and norm.bias.grad is not None for norm in norms)
    first = network.representation.layers[1]
    with torch.no_grad(), by_the_batch(network):
        out = FrameLayers(*network.representation.layers[:2])(frames.float() / 255)
    torch.testing.assert_close(out.mean((0, 2, 3)), first.bias.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_only_states_that_are_normalised_keep_their_channels_last(batch_norm: bool) -> None:
    """The layout decides how convolutions round, and runs without normalisation are older than this one."""
    sizes = dict(latent_size=8, hidden_sizes=[8], support_size=3, residual_blocks=1, activation="relu")
    frames = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    network = MuZeroNetwork(frames, 3, **sizes, image_encoder="nature", batch_norm=batch_norm)
    state = network.represent(torch.randint(0, 256, (2, 84, 84, 3), dtype=torch.uint8))
    for latent in (state, network.transition(state, torch.tensor([0, 2]))):
        assert latent.is_contiguous() is not batch_norm


class Own(NormalisedBlock):
    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return 2 * frames


@torch.no_grad()
@pytest.mark.parametrize("part", [Own(16), nn.Identity(), nn.Tanh()])
@pytest.mark.parametrize(
    "place",
    [
        *("representation.layers.3", "representation.layers.3.layers.0"),
        *("dynamics.state", "dynamics.norm", "dynamics.blocks.0"),
    ],
)
def test_searches_call_layers_that_are_not_ours(place: str, part: nn.Module) -> None:
    """In channels that compiled functions take."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = SIZES | dict(latent_size=32 if "layers" in place else 16)
    sizes |= dict(activation="relu", image_encoder="nature", batch_norm=True)
    sizes.pop("projection_size")
    network = MuZeroNetwork(spaces.Box(0, 255, (4, 32, 32), np.uint8), 3, **sizes)
    called: list[int] = []
    network.set_submodule(place, part)
    handle = part.register_forward_hook(lambda *_: called.append(1))
    obs = torch.randint(0, 256, (2, 4, 32, 32), dtype=torch.uint8)
    network.searching()(network.represent(obs), torch.tensor([0, 1]))
    assert called == [1]
    handle.remove()


def planner() -> EfficientZeroNetwork:
    """In channels that compiled functions take."""
    sizes: dict[str, Any] = SIZES | dict(
        latent_size=32, activation="relu", image_encoder="nature", batch_norm=True
    )
    sizes |= dict(value_prefix=True, prefix_size=8, prefix_horizon=2, consistency=False)
    return EfficientZeroNetwork(spaces.Box(0, 255, (4, 32, 32), np.uint8), 3, **sizes)


PARTS = [
    *(f"representation.layers{part}" for part in ("", ".0", ".1", ".2", ".3.layers", ".3.layers.0", ".12")),
    *(f"dynamics.{part}" for part in ("state", "norm", "blocks", "blocks.0", "blocks.0.layers.3")),
    *("prediction.heads.1.0", "prediction.heads.2.1", "prefix.reduce.0", "prefix.reduce.1"),
]


@pytest.mark.parametrize("place", PARTS)
def test_hooks_are_called_in_searches_and_in_learning(place: str) -> None:
    """A convolution and the normalisation behind it are one step only while both are exactly torch's and ours."""
    torch.manual_seed(1)
    network, called = planner(), []
    obs, action = torch.randint(0, 256, (2, 4, 32, 32), dtype=torch.uint8), torch.tensor([0, 1])
    network.get_submodule(place).register_forward_hook(lambda *_: called.append(place))
    with torch.inference_mode():
        network.searching()(network.initial(obs)[2], action)
    assert called
    called.clear()
    with by_the_batch(network):
        network.unroll(obs, action[None])
    assert called
    if place.startswith("representation"):
        called.clear()
        with by_the_batch(network), torch.no_grad():
            network.represent(obs)
        assert called == [place]


@torch.no_grad()
@pytest.mark.parametrize("change", [dict(padding=2, dilation=2), dict(padding=1, padding_mode="circular")])
@pytest.mark.parametrize("place", ["representation.layers.3.layers.0", "dynamics.state"])
def test_convolutions_of_another_kind_are_torchs(place: str, change: dict[str, Any]) -> None:
    """A hook leaves all to torch; without it the numbers are the same."""
    torch.manual_seed(1)
    network = planner()
    channels = network.get_submodule(place).out_channels
    network.set_submodule(place, nn.Conv2d(channels, channels, 3, **change))
    found = []
    for hooked in (False, True):
        if hooked:
            network.get_submodule(place).register_forward_hook(lambda *_: None)
        latent = network.initial(torch.full((2, 4, 32, 32), 77, dtype=torch.uint8))[2]
        found.append(network.searching()(latent, torch.tensor([0, 1]))[3]["latent"].clone())
    torch.testing.assert_close(*found)


@torch.no_grad()
def test_a_block_with_another_normalisation_is_called_as_it_is() -> None:
    block = NormalisedBlock(16)
    block.layers[1] = nn.GroupNorm(2, 16)
    frames = torch.randn(2, 16, 6, 6)
    layers = list(block.layers)
    inside = layers[2](layers[1](layers[0](frames)))
    expected = F.relu(frames + layers[4](layers[3](inside)))
    torch.testing.assert_close(block(frames), expected)
