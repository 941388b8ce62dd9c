"""Frames represented by the statistics of their batch without gradients: compiled, beside torch."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from rl_training.kernels.batch_norm import normalise
from rl_training.networks import muzero
from rl_training.networks.muzero import FrameNorm, FrameRepresentation, by_the_batch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def norm_of(channels: int) -> FrameNorm:
    torch.manual_seed(5)
    norm = FrameNorm(channels)
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.uniform_(norm.bias, -1.0, 1.0)
    norm.mean.uniform_(-1.0, 1.0)
    norm.variance.uniform_(0.5, 2.0)
    return norm


@torch.no_grad()
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shape", [(7, 16, 9, 6), (2, 5, 1, 1), (1, 3, 20, 4)])
def test_normalisation_is_torchs(shape: tuple[int, ...], adds: bool, last: bool) -> None:
    """In double precision, with a mean of several standard deviations; both running statistics move."""
    norm = norm_of(shape[1])
    frames, added = torch.randn(shape) * 3 + 10, torch.randn(shape)
    parts = [part.double() for part in (norm.weight, norm.bias, norm.mean, norm.variance)]
    expected = F.batch_norm(frames.double(), parts[2], parts[3], parts[0], parts[1], True, 0.1, 1e-5)
    expected = F.relu(expected + added.double() if adds else expected)
    if last:
        frames = frames.contiguous(memory_format=torch.channels_last)
    found = normalise(frames, norm, added if adds else None)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.mean, parts[2].float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.variance, parts[3].float(), rtol=1e-4, atol=1e-5)
    assert (expected > 0).any() and (expected == 0).any()


@torch.no_grad()
def test_a_mean_of_a_thousand_standard_deviations_leaves_the_variance() -> None:
    frames = torch.randn(8, 16, 9, 9) + 1000
    norm = norm_of(16)
    expected = F.batch_norm(
        frames.double(), None, None, norm.weight.double(), norm.bias.double(), True, 0.1, 1e-5
    )
    found = normalise(frames.contiguous(memory_format=torch.channels_last), norm)
    torch.testing.assert_close(found, F.relu(expected).float(), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_what_is_no_number_stays_none() -> None:
    frames = torch.randn(2, 3, 4, 4)
    frames[0, 1, 2, 2] = float("nan")
    assert normalise(frames, norm_of(3)).isnan().flatten(2).any(2).any(0).tolist() == [False, True, False]


@pytest.mark.parametrize(("side", "channels", "blocks"), [(84, 32, 1), (40, 32, 2), (24, 64, 0), (32, 8, 1)])
def test_a_representation_by_the_batch_is_torchs(side: int, channels: int, blocks: int) -> None:
    """Its states and all running statistics; also where torch's convolutions are used, of few channels."""
    torch.manual_seed(2)
    ours = FrameRepresentation(spaces.Box(0, 255, (4, side, side), np.uint8), channels, blocks, FrameNorm)
    torchs = copy.deepcopy(ours)
    frames = torch.randint(0, 256, (6, 4, side, side)).float()
    with by_the_batch(ours), by_the_batch(torchs):
        with torch.no_grad():
            found = ours(frames)
        expected = torchs(frames)
    assert expected.requires_grad and not found.requires_grad
    torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-3)
    for one, other in zip(ours.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_graph_of_frames_before_can_still_be_followed() -> None:
    """Learning represents some frames with gradients, then others without, and then goes back."""
    torch.manual_seed(2)
    network = FrameRepresentation(spaces.Box(0, 255, (4, 24, 24), np.uint8), 32, 1, FrameNorm)
    frames = torch.randint(0, 256, (4, 4, 24, 24)).float()
    with by_the_batch(network):
        loss = network(frames).sum()
        with torch.no_grad():
            network(frames / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(part.grad is not None for part in network.parameters())


@torch.no_grad()
def test_layers_that_are_not_exactly_ours_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    real = muzero.normalise
    monkeypatch.setattr(muzero, "normalise", lambda *given: compiled.append(1) or real(*given))
    network = FrameRepresentation(spaces.Box(0, 255, (4, 24, 24), np.uint8), 32, 1, FrameNorm)
    frames = torch.randint(0, 256, (4, 4, 24, 24)).float()
    with by_the_batch(network):
        network(frames)
        assert len(compiled) == 3 + 3 * 2
        for layer in (network.layers[1], network.layers[3], network.layers[3].layers[4]):  # type: ignore[union-attr,index]
            called: list[int] = []
            handle = layer.register_forward_hook(lambda *_: called.append(1))  # noqa: B023
            compiled.clear()
            network(frames)
            assert called and not compiled
            handle.remove()
