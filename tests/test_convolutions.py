"""Convolutions: gradients by hand, against torch's, and where torch's are used."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from rl_training.networks import convolutions
from rl_training.networks.convolutions import Convolution
from rl_training.networks.encoders import NatureCNN
from rl_training.networks.tiles import ROWS, strips

SHAPES = {  # pictures, channels, height, width, filters, kernel, stride
    "first of Atari": (3, 4, 84, 84, 32, 8, 4),
    "second of Atari": (3, 32, 20, 20, 64, 4, 2),
    "third of Atari": (3, 64, 9, 9, 64, 3, 1),
    "few channels, more wide than high": (2, 3, 17, 23, 16, 3, 2),
    "one channel": (2, 1, 9, 9, 16, 3, 1),
    "one row": (2, 16, 2, 40, 32, 2, 1),
    "one place": (4, 16, 3, 3, 16, 3, 1),
    "a rim that no filter sees": (2, 16, 10, 12, 16, 3, 4),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pictures(*shape):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(*shape, generator=generator).to(memory_format=torch.channels_last)
    return drawn.requires_grad_()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_torchs(shape):
    count, channels, height, width, filters, kernel, stride = shape
    torch.manual_seed(0)
    layer = Convolution(channels, filters, kernel, stride)
    picture = pictures(count, channels, height, width)
    out, expected = layer(picture), F.conv2d(picture, layer.weight, layer.bias, stride)
    assert out.grad_fn.name() == "_ConvolutionBackward"
    assert torch.equal(out, expected)
    slope = torch.randn_like(out)
    everything = (picture, layer.weight, layer.bias)
    ours, torchs = (
        torch.autograd.grad(out, everything, slope),
        torch.autograd.grad(expected, everything, slope),
    )
    for mine, theirs in zip(ours, torchs, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("count", [1, 32, 70])
def test_bytes_are_numbers(count):
    torch.manual_seed(0)
    layer = Convolution(4, 16, 3, 2)
    picture = torch.randint(0, 256, (count, 4, 9, 12), dtype=torch.uint8).to(
        memory_format=torch.channels_last
    )
    out, expected = layer(picture), F.conv2d(picture.float(), layer.weight, layer.bias, 2)
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected)
    slope = torch.randn_like(out)
    wanted = (layer.weight, layer.bias)
    for mine, theirs in zip(
        torch.autograd.grad(out, wanted, slope), torch.autograd.grad(expected, wanted, slope), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_gradients_by_hand():
    """Two pixels in a row and a filter of one pixel: y = w x + b, so ∂w = Σ g x, ∂b = Σ g, ∂x = w g."""
    layer = Convolution(16, 16, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[2, 5] = 3.0
    picture = torch.zeros(1, 16, 1, 2).to(memory_format=torch.channels_last)
    picture[0, 5, 0] = torch.tensor([10.0, 100.0])
    picture.requires_grad_()
    out = layer(picture)
    slope = torch.zeros_like(out)
    slope[0, 2, 0] = torch.tensor([1.0, 2.0])
    out.backward(slope)
    expected = torch.zeros(16, 16)
    expected[2, 5] = 1 * 10 + 2 * 100
    assert torch.equal(layer.weight.grad.view(16, 16), expected)
    assert layer.bias.grad.tolist() == [3.0 if p == 2 else 0.0 for p in range(16)]
    assert picture.grad[0, 5, 0].tolist() == [3.0, 6.0] and picture.grad.sum() == 9.0


def test_a_gradient_can_be_differentiated():
    """As a Hessian times a vector needs it."""
    layer, picture = Convolution(16, 16, 3), pictures(2, 16, 6, 6)

    def curvature(out):
        (first,) = torch.autograd.grad((out**3).sum(), layer.weight, create_graph=True)
        return torch.autograd.grad((first**2).sum(), (layer.weight, picture))

    ours, torchs = curvature(layer(picture)), curvature(F.conv2d(picture, layer.weight, layer.bias))
    for mine, theirs in zip(ours, torchs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("why", ["threads", "bf16", "padding", "filters", "no gradient"])
def test_torch_does_what_the_kernels_cannot(why):
    filters, padding = 12 if why == "filters" else 16, 1 if why == "padding" else 0
    layer, picture = Convolution(4, filters, 3, padding=padding), pictures(2, 4, 8, 8)
    if why == "threads":
        torch.set_num_threads(2)
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=why == "bf16"),
        torch.set_grad_enabled(why != "no gradient"),
    ):
        out = layer(picture)
        expected = F.conv2d(picture, layer.weight, layer.bias, padding=padding)
    assert torch.equal(out, expected)
    assert out.grad_fn is None or out.grad_fn.name() != "_ConvolutionBackward"


def test_what_is_not_a_number_stays_none():
    layer, picture = Convolution(16, 16, 3), pictures(1, 16, 4, 4)
    out = layer(picture)
    slope = torch.zeros_like(out)
    slope[0, 3, 0, 0] = float("nan")
    out.backward(slope)
    assert layer.weight.grad[3].isnan().all() and layer.weight.grad[:3].eq(0).all()
    assert picture.grad[0, :, :3, :3].isnan().all()


def test_the_encoder_of_atari_has_these_gradients(monkeypatch):
    torch.manual_seed(0)
    encoder = NatureCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    frames = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)

    def gradients():
        encoder.zero_grad()
        encoder(frames).square().sum().backward()
        return [parameter.grad.clone() for parameter in encoder.parameters()]

    ours = gradients()
    monkeypatch.setattr(convolutions, "fits", lambda x: False)
    for mine, theirs in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_strips_cover_all_rows():
    for rows in range(1, 200):
        count, higher, height = strips(rows)
        assert higher * (height + 1) + (count - higher) * height == rows
        assert height + (higher > 0) <= ROWS and 0 <= higher < count
