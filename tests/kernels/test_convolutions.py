"""Convolutions: by hand, against torch's, and where torch's are used."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from rl_training.kernels import convolutions
from rl_training.kernels.convolutions import convolve
from rl_training.kernels.side_by_side import in_shares
from rl_training.kernels.tiles import COLUMNS, ROWS, strips
from rl_training.networks.encoders import NatureCNN

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


def filters(count, channels, kernel):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(count, channels, kernel, kernel, generator=generator) / kernel / channels**0.5
    return weight.requires_grad_(), torch.randn(count, generator=generator).requires_grad_()


def by_torch(picture, weight, bias, stride):
    return F.relu(F.conv2d(picture.float(), weight, bias, stride))


def is_ours(out):
    return out.grad_fn is not None and out.grad_fn.name() == "_ConvolutionBackward"


def assert_close(ours, torchs):
    for mine, theirs in zip(ours, torchs, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(
            mine, theirs, rtol=1e-5, atol=1e-5 * max(theirs.abs().flatten().tolist(), default=0)
        )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_is_torchs(shape):
    count, channels, height, width, number, kernel, stride = shape
    picture, (weight, bias) = pictures(count, channels, height, width), filters(number, channels, kernel)
    out, expected = (f(picture, weight, bias, (stride, stride)) for f in (convolve, by_torch))
    assert is_ours(out)
    assert_close([out], [expected])
    assert 0.2 < (out > 0).float().mean() < 0.8
    slope, everything = torch.randn_like(out), (picture, weight, bias)
    assert_close(
        torch.autograd.grad(out, everything, slope), torch.autograd.grad(expected, everything, slope)
    )


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(
    "name", ["first of Atari", "few channels, more wide than high", "one channel", "one place"]
)
def test_bytes_are_numbers(name, count):
    _, channels, height, width, number, kernel, stride = SHAPES[name]
    generator = torch.Generator().manual_seed(3)
    picture = torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    picture = picture.to(memory_format=torch.channels_last)
    weight, bias = filters(number, channels, kernel)
    settings = (picture, weight / 255, bias, (stride, stride))
    out, expected = convolve(*settings), by_torch(*settings)
    assert is_ours(out) and out.is_contiguous(memory_format=torch.channels_last)
    assert_close([out], [expected])
    with torch.no_grad():
        assert torch.equal(convolve(*settings), out)
    slope, wanted = torch.randn_like(out), (weight, bias)
    ours, torchs = (torch.autograd.grad(y, wanted, slope, retain_graph=True) for y in (out, expected))
    assert_close(ours, torchs)


def test_by_hand():
    """A row of pixels and a filter of one pixel: out = max(0, w x + b), so ∂w = Σ g x, ∂b = Σ g, ∂x = w g above 0."""
    weight = torch.zeros(16, 16, 1, 1)
    weight[2, 5] = 3.0
    picture = torch.zeros(1, 16, 1, 3).to(memory_format=torch.channels_last)
    picture[0, 5, 0] = torch.tensor([10.0, 100.0, -4.0])
    bias = torch.zeros(16)
    bias[2] = 1.0
    everything = [tensor.requires_grad_() for tensor in (picture, weight, bias)]
    out = convolve(*everything, (1, 1))
    assert out[0, 2, 0].tolist() == [31.0, 301.0, 0.0]
    slope = torch.zeros_like(out)
    slope[0, 2, 0] = torch.tensor([1.0, 2.0, 50.0])
    out.backward(slope)
    expected = torch.zeros(16, 16)
    expected[2, 5] = 1 * 10 + 2 * 100
    assert torch.equal(weight.grad.view(16, 16), expected)
    assert bias.grad.tolist() == [3.0 if p == 2 else 0.0 for p in range(16)]
    assert picture.grad[0, 5, 0].tolist() == [3.0, 6.0, 0.0] and picture.grad.sum() == 9.0


def test_a_gradient_can_be_differentiated():
    """As a Hessian times a vector needs it."""
    picture, (weight, bias) = pictures(2, 16, 6, 6), filters(16, 16, 3)

    def curvature(out):
        (first,) = torch.autograd.grad((out**3).sum(), weight, create_graph=True)
        return torch.autograd.grad((first**2).sum(), (weight, picture))

    settings = (picture, weight, bias, (1, 1))
    assert_close(curvature(convolve(*settings)), curvature(by_torch(*settings)))


@pytest.mark.parametrize("why", ["bf16", "filters", "no instruction", "kind", "width"])
def test_torch_does_what_the_kernels_cannot(why, monkeypatch):
    picture = pictures(2, 4, 8, 70 if why == "width" else 8).detach()
    weight, bias = filters(12 if why == "filters" else 16, 4, 3)
    if why == "no instruction":
        monkeypatch.setattr(convolutions, "has_fused_multiplication", lambda: False)
    if why == "kind":
        picture = (10 * picture).to(torch.int32)
    with torch.autocast("cpu", torch.bfloat16, enabled=why == "bf16"):
        out = convolve(picture, weight, bias, (1, 1))
        assert torch.equal(out, F.relu(F.conv2d(picture.float(), weight, bias)))
    assert not is_ours(out)


def test_what_nobody_can_do_torch_says():
    weight, bias = filters(16, 4, 3)
    for wrong in [(2, 5, 8, 8), (2, 4, 2, 8), (2, 4, 8, 2)]:
        with pytest.raises(RuntimeError, match=r"channels|Kernel size"):
            convolve(torch.ones(wrong, dtype=torch.uint8), weight, bias, (1, 1))
    with pytest.raises(RuntimeError, match="bias"):
        convolve(torch.ones(2, 4, 8, 8, dtype=torch.uint8), weight, bias[:3], (1, 1))


def test_sides_slopes_and_layouts_of_every_kind():
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(32, 3, 16, 4, generator=generator).transpose(1, 2).requires_grad_()  # [32, 16, 3, 4]
    bias = torch.randn(32, generator=generator)  # frozen
    picture = torch.randn(3, 16, 12, 11, generator=generator).requires_grad_()  # channels first in memory
    out, expected = convolve(picture, weight, bias, (3, 2)), by_torch(picture, weight, bias, (3, 2))
    assert is_ours(out)
    slopes = [
        torch.ones(()).expand_as(out),
        torch.randn(out.mT.shape, generator=generator).mT,
        torch.where(expected > 0, 1.0, float("inf")),
    ]
    for slope in slopes:
        for wanted in [(picture, weight), (picture,), (weight,)]:
            ours, torchs = (torch.autograd.grad(y, wanted, slope, retain_graph=True) for y in (out, expected))
            assert_close(ours, torchs)


def test_a_default_of_double_precision_changes_nothing():
    picture, (weight, bias) = torch.full((1, 4, 5, 5), 7, dtype=torch.uint8), filters(16, 4, 3)
    expected = convolve(picture, weight, bias, (1, 1))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(convolve(picture, weight, bias, (1, 1)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_not_a_number_stays_none():
    picture, (weight, _) = torch.ones(1, 4, 5, 5, dtype=torch.uint8), filters(16, 4, 3)
    bias = torch.full((16,), 100.0)
    out = convolve(picture, weight, bias, (1, 1))
    slope = torch.zeros_like(out)
    slope[0, 3, 0, 0] = float("nan")
    (gradient,) = torch.autograd.grad(out, weight, slope)
    assert gradient[3].isnan().all() and gradient[:3].eq(0).all()
    with torch.no_grad():
        weight[7] = float("nan")
        out = convolve(picture, weight, bias, (1, 1))
    assert out[0, 7].isnan().all() and out[0, :7].isfinite().all()


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
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())
    with torch.no_grad():
        plain = encoder.dense(encoder.convolutions(frames / 255).permute(0, 2, 3, 1).flatten(1))
        torch.testing.assert_close(encoder(frames), plain)


def everything_with(threads, name, count=19):
    """What a layer gives and all its gradients, with some threads."""
    torch.set_num_threads(threads)
    _, channels, height, width, number, kernel, stride = SHAPES[name]
    picture, (weight, bias) = pictures(count, channels, height, width), filters(number, channels, kernel)
    if name == "first of Atari":
        picture = (60 * picture.detach()).to(torch.uint8)
    if channels % COLUMNS:  # the slopes of such pictures, which no training asks for, are torch's
        picture = picture.detach()
    wanted = [tensor for tensor in (picture, weight, bias) if tensor.requires_grad]
    out = convolve(picture, weight, bias, (stride, stride))
    assert is_ours(out)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    return [out, *torch.autograd.grad(out, wanted, slope)]


@pytest.mark.parametrize("name", SHAPES)
def test_the_number_of_threads_decides_nothing(name):
    expected = everything_with(1, name)
    for threads in (2, 3, 7):
        for mine, one in zip(everything_with(threads, name), expected, strict=True):
            assert torch.equal(mine, one)


def test_threads_share_all_the_work():
    seen, torch_threads = [], torch.get_num_threads()
    for count, fewest, threads in [(19, 4, 3), (3, 4, 2), (0, 4, 2), (8, 4, 9), (5, 1, 1)]:
        torch.set_num_threads(threads)
        done = np.zeros(count)

        def share(first, last, scale, done=done):
            done[first:last] += scale
            seen.append(threading.get_ident())

        seen.clear()
        in_shares(count, fewest, share, 2.0)
        assert (done == 2).all()
        assert len(seen) == max(1, min(threads, count // fewest)) and threading.get_ident() in seen
    torch.set_num_threads(torch_threads)
    assert len(set(seen)) == 1


def test_an_error_of_a_thread_is_raised():
    torch.set_num_threads(2)

    def fail(first, last):
        if first:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_shares(8, 1, fail)


def test_no_thread_runs_on_after_an_error():
    torch.set_num_threads(2)
    failed, finished = threading.Event(), []

    def fail_first(first, last):
        if first == 0:
            failed.set()
            raise ZeroDivisionError
        failed.wait()
        time.sleep(0.2)
        finished.append(first)

    with pytest.raises(ZeroDivisionError):
        in_shares(8, 1, fail_first)
    assert finished == [4]


def test_a_fork_of_a_process_with_threads_has_its_own():
    """Of all that is here only these threads outlive a fork: torch's own, with which nothing is done in it, do not."""
    torch.set_num_threads(2)
    frames = torch.randint(0, 256, (16, 4, 84, 84), dtype=torch.uint8).to(memory_format=torch.channels_last)
    weight, bias = filters(32, 4, 8)
    with torch.no_grad():
        expected = convolve(frames, weight, bias, (4, 4)).numpy()
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)  # a thread that the fork lacks would be waited for without end
                same = np.array_equal(convolve(frames, weight, bias, (4, 4)).numpy(), expected)
                os.write(theirs, b"same" if same else b"other")
            finally:
                os._exit(0)
    os.close(theirs)
    assert os.read(ours, 5) == b"same"
    os.close(ours)
    assert os.waitpid(child, 0)[1] == 0


def test_strips_cover_all_rows():
    for rows in range(1, 200):
        count, higher, height = strips(rows)
        assert higher * (height + 1) + (count - higher) * height == rows
        assert height + (higher > 0) <= ROWS and 0 <= higher < count
