"""Convolutions by Winograd's products: the identity by hand, beside torch's, and where torch's are used."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rl_training.kernels import winograd
from rl_training.kernels.tiles import COLUMNS
from rl_training.kernels.winograd import (
    BEFORE,
    INPUT,
    NOTHING,
    TO_FILTER,
    TO_SEEN,
    TO_TILE,
    convolve,
    convolve_in_a_row,
)

SHAPES = {  # frames, channels, height, width
    "states of Atari": (50, 32, 6, 6),
    "after the first stride": (2, 16, 42, 42),
    "after the last stride": (7, 32, 11, 11),
    "one place": (3, 16, 1, 1),
    "tiles that end beyond the frame": (5, 48, 7, 10),
    "one row": (2, 16, 1, 20),
}
ROUNDING = 2e-5  # of the standard deviation, for results of some hundred products


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def compiled(monkeypatch):
    """How many calls went to the compiled function."""
    calls, real = [], winograd._share
    monkeypatch.setattr(winograd, "_share", lambda *given: calls.append(given) or real(*given))
    return calls


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frames_of(*shape):
    return drawn(*shape).to(memory_format=torch.channels_last)


def layer(outputs, inputs, seed, rows=None):
    weight = drawn(outputs, inputs, 3, 3, seed=seed) / (3 * inputs**0.5)
    return weight, drawn(*([outputs] if rows is None else [rows, outputs]), seed=seed + 100)


def by_torch(frames, layers, added, entry=None, rectified=True):
    """In double precision."""
    frames = frames.double()
    if entry is not None:
        frames = F.relu(F.conv2d(frames, *(part.double() for part in entry), stride=2, padding=1))
    before = frames
    for (weight, bias), more in zip(layers, added, strict=True):
        out = F.conv2d(frames, weight.double(), padding=1) + bias.double().view(-1, len(weight), 1, 1)
        out = out + {NOTHING: 0.0, INPUT: frames, BEFORE: before}[more]
        before, frames = frames, F.relu(out) if rectified else out
    return frames


def assert_close(ours, expected):
    assert ours.dtype == torch.float32 and ours.shape == expected.shape
    assert (ours - expected).abs().max() < ROUNDING * max(1.0, expected.std(correction=0).item())


def test_its_matrices_are_the_identity_of_a_filter_of_three_numbers():
    """Σᵢ wᵢ d[x + i] for x = 0, 1, 2, exactly: Aᵀ [(G w) ⊙ (Bᵀ d)], w and d one-hot in every way."""
    exact = np.vectorize(lambda number: Fraction(number).limit_denominator(6))
    tile, to_filter, seen = (exact(np.array(matrix)) for matrix in (TO_TILE, TO_FILTER, TO_SEEN))
    for i in range(3):
        for j in range(5):
            made = tile @ (to_filter[:, i] * seen[:, j])
            assert made.tolist() == [int(x + i == j) for x in range(3)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_convolution_is_torchs(shape, compiled):
    frames, (weight, bias) = frames_of(*shape), layer(shape[1], shape[1], 2)
    expected = by_torch(frames, [(weight, bias)], [NOTHING], rectified=False)
    assert_close(convolve(frames, weight, bias), expected)
    assert len(compiled) == 1 and (expected < 0).any()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_layers_in_a_row_are_torchs(shape, compiled):
    """A transition: an action moves each frame's biases, and blocks add what they began with."""
    count, channels = shape[:2]
    layers = [layer(channels, channels, seed) for seed in (4, 5, 6, 7)]
    layers.insert(0, layer(channels, channels, 3, rows=count))
    added = (INPUT, NOTHING, BEFORE, NOTHING, BEFORE)
    frames = frames_of(*shape).relu()
    expected = by_torch(frames, layers, added)
    assert_close(convolve_in_a_row(frames, layers, added), expected)
    assert len(compiled) == 1
    assert 0.1 < (expected > 0).double().mean() < 0.95


@pytest.mark.parametrize(("height", "width"), [(84, 84), (21, 21), (9, 14), (1, 1)])
@pytest.mark.parametrize(
    ("inputs", "kind"), [(4, torch.uint8), (12, torch.uint8), (16, torch.float32), (32, torch.float32)]
)
def test_an_entry_is_torchs_convolution_with_a_stride(height, width, inputs, kind, compiled):
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (3, inputs, height, width), generator=generator, dtype=torch.uint8)
    weight, bias = layer(32, inputs, 4)
    entry, block = (weight / 255, bias), [layer(32, 32, 5), layer(32, 32, 6)]
    for layers, added in (([], ()), (block, (NOTHING, BEFORE))):
        expected = by_torch(frames, layers, added, entry)
        assert_close(convolve_in_a_row(frames.to(kind), layers, added, entry), expected)
    assert len(compiled) == 2 and (expected > 0).any()


def test_a_frame_is_the_same_in_every_batch_and_with_any_number_of_threads():
    frames, layers = frames_of(45, 32, 11, 11), [layer(32, 32, 2), layer(32, 32, 3)]
    whole = convolve_in_a_row(frames, layers, (NOTHING, BEFORE))
    for part in (slice(0, 1), slice(3, 10), slice(44, 45)):
        alone = convolve_in_a_row(frames[part], layers, (NOTHING, BEFORE))
        assert torch.equal(alone, whole[part])
    torch.set_num_threads(3)
    assert torch.equal(convolve_in_a_row(frames, layers, (NOTHING, BEFORE)), whole)


def test_what_is_no_number_stays_none():
    frames = torch.zeros(2, 16, 6, 6)
    frames[0, 3, 2, 2] = float("nan")
    out = convolve_in_a_row(frames, [layer(16, 16, 2)], (NOTHING,))
    assert out[0].isnan().any() and not out[1].isnan().any()


def test_torch_does_what_the_compiled_function_cannot(compiled):
    frames, (weight, bias) = frames_of(2, 16, 6, 6), layer(16, 16, 2)
    assert convolve(frames, weight.requires_grad_(), bias).requires_grad
    plain = weight.detach()
    for odd, filters in ((frames.double(), layer(16, 16, 2)), (frames_of(2, 8, 6, 6), layer(8, 8, 2))):
        filters = [part.to(odd.dtype) for part in filters]
        torch.testing.assert_close(convolve(odd, *filters), F.conv2d(odd, *filters, padding=1))
    more = layer(COLUMNS, 8, 2)
    torch.testing.assert_close(
        convolve(frames[:, :8], *more), F.conv2d(frames[:, :8], *more, padding=1), rtol=0, atol=0
    )
    assert convolve(frames[:0], plain, bias).shape == (0, 16, 6, 6)
    few = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)  # three channels
    entry, block = layer(16, 3, 2), [layer(16, 16, 3), layer(16, 16, 4)]
    assert_close(
        convolve_in_a_row(few, block, (NOTHING, BEFORE), entry),
        by_torch(few, block, (NOTHING, BEFORE), entry),
    )
    assert not compiled
    convolve(frames, plain, bias)
    assert len(compiled) == 1
