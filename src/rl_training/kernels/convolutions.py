"""A convolution without padding and its ReLU, faster than torch's, with the same bytes for any number of threads.

With N pictures of H rows, W columns and C channels, stored in this order, and P filters w of K × K at a stride s:

    out[n, y, x, p] = max(0, b[p] + Σ_{i,j,c} picture[n, s y + i, s x + j, c] · w[i, j, c, p])

With g [N, H', W', P], the slopes of `out` where it is above 0, and 0 elsewhere:

    ∂/∂w[i, j, c, p] = Σ_{n,y,x} picture[n, s y + i, s x + j, c] · g[n, y, x, p]
    ∂/∂b[p]          = Σ_{n,y,x} g[n, y, x, p]
    ∂/∂picture[n, s y + i, s x + j, c] += Σ_p w[i, j, c, p] · g[n, y, x, p]        for all y, x, i, j

Each is a row of matrix products: the K · C numbers of a picture's row that a filter sees lie side by side, and for one
i, j the places that the filters see do not overlap. Nothing is copied into matrices first, and each picture is done
with while it is in the cache.

Threads share `out` and ∂/∂picture by pictures, and ∂/∂w by filters and i: each of its numbers is summed by one thread,
over all pictures in their order. So the number of threads, torch's own, decides nothing but the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.side_by_side import in_shares
from rl_training.kernels.tiles import COLUMNS, NUMBER_BYTES, add_products, has_fused_multiplication

LONGEST = 64  # products that are written out one after the other
FEWEST = 4  # pictures that are worth a thread

Stride = tuple[int, int]


def convolve(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    """Pictures [N, C, H, W] of bytes or numbers, channels last in memory → [N, P, H', W'], the same."""
    if not _is_for_us(picture, weight, bias, stride):
        return _by_torch(picture, weight, bias, stride)
    if torch.is_grad_enabled():
        return _Convolution.apply(picture, weight, bias, stride)
    return _forward(picture, weight, bias, stride)


def _is_for_us(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> bool:
    """Whether the compiled functions can do it; what nobody can do is left to torch, which says so."""
    able = fits(weight) and has_fused_multiplication()
    able = able and not torch.is_autocast_enabled("cpu") and picture.dtype in (torch.uint8, torch.float32)
    if not able or picture.ndim != 4 or picture.shape[1] != weight.shape[1] or len(bias) != len(weight):
        return False
    rows, columns = _size(picture, weight, stride)
    return rows > 0 and 0 < columns <= LONGEST and len(weight) % COLUMNS == 0


def _size(picture: Tensor, weight: Tensor, stride: Stride) -> tuple[int, int]:
    (height, width), (tall, wide) = picture.shape[2:], weight.shape[2:]
    return (height - tall) // stride[0] + 1, (width - wide) // stride[1] + 1


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
        return _forward(picture, weight, bias, stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Stride], output: Tensor) -> None:
        picture, weight, _, ctx.stride = inputs
        ctx.save_for_backward(picture, weight, output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        picture, weight, out = ctx.saved_tensors
        to_picture, to_weight, to_bias, _ = wanted = ctx.needs_input_grad
        alone = to_picture and not (to_weight or to_bias)
        # The slopes that torch finds can be differentiated themselves.
        if torch.is_grad_enabled() or alone or (to_picture and picture.shape[1] % COLUMNS):
            return *_back_by_torch(slope, picture, weight, out, ctx.stride, wanted[:3]), None
        kernels = _compiled(*picture.shape[1:], *weight.shape[2:], *ctx.stride, len(weight))
        above, tall = (_rows(out), _rows(slope)), weight.shape[2]
        slopes = torch.empty_like(picture, memory_format=torch.channels_last) if to_picture else None
        if slopes is not None:
            turned = weight.permute(2, 3, 0, 1).contiguous().numpy()
            in_shares(len(picture), FEWEST, kernels.to_pictures, *above, turned, _rows(slopes))
        weights = np.zeros((tall, weight.shape[3], weight.shape[1], len(weight)), np.float32)
        biases = np.zeros(len(weight), np.float32)
        rows = len(weight) // COLUMNS * tall
        alone = rows if len(picture) < 2 * FEWEST else 1
        in_shares(rows, alone, kernels.to_weights, _rows(picture), *above, weights, biases)
        return slopes, torch.from_numpy(weights).permute(3, 2, 0, 1), torch.from_numpy(biases), None


def _forward(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    # If nothing must be made of bytes torch is as fast, and no sum of its own is shared by threads either.
    if picture.dtype != torch.uint8:
        return _by_torch(picture, weight, bias, stride)
    filters = len(weight)
    forward = _compiled(*picture.shape[1:], *weight.shape[2:], *stride, filters).forward
    # As the tiles read them: 16 filters side by side.
    groups = weight.detach().permute(2, 3, 1, 0).reshape(-1, filters // COLUMNS, COLUMNS)
    packed = groups.transpose(0, 1).contiguous().numpy()
    shape = (len(picture), filters, *_size(picture, weight, stride))
    out = torch.empty(shape, dtype=torch.float32, memory_format=torch.channels_last)
    biases = bias.detach().contiguous().numpy()
    in_shares(len(picture), FEWEST, forward, _rows(picture), packed, biases, _rows(out))
    return out


def _by_torch(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    return F.conv2d(_numbers(picture), weight, bias, stride).relu_()


def _back_by_torch(
    slope: Tensor, picture: Tensor, weight: Tensor, out: Tensor, stride: Stride, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    inner = torch.ops.aten.threshold_backward(slope, out, 0)
    options = ([len(weight)], stride, (0, 0), (1, 1), False, (0, 0), 1)  # no padding, no dilation, one group
    return torch.ops.aten.convolution_backward(inner, _numbers(picture), weight, *options, wanted)


def _numbers(picture: Tensor) -> Tensor:
    return picture.to(torch.float32, memory_format=torch.channels_last)


def _rows(picture: Tensor) -> np.ndarray:
    """[N, C, H, W] → [N, H, W, C] in the order of memory."""
    return picture.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


@njit(nogil=True)
def _address(picture, numbers):  # type: ignore[no-untyped-def]
    """Of a picture, or of its bytes as numbers."""
    if picture.itemsize == NUMBER_BYTES:
        return np.intp(picture.ctypes.data)
    plain = picture.reshape(-1)
    for q in range(len(numbers)):
        numbers[q] = plain[q]
    return np.intp(numbers.ctypes.data)


class Kernels(NamedTuple):
    """Each does a share of the work, from the first to before the last picture, or row of filters."""

    forward: Callable[..., Any]
    to_weights: Callable[..., Any]
    to_pictures: Callable[..., Any]


@functools.cache
def _compiled(
    channels: int, height: int, width: int, tall: int, wide: int, down: int, across: int, filters: int
) -> Kernels:
    """The functions for these sizes, which the compiler must know."""
    rows, columns = (height - tall) // down + 1, (width - wide) // across + 1
    places = rows * columns
    # Strides in bytes: to the next row and column of a picture, and as far as a filter is moved there; to the next
    # place of `out`, and that of a tile.
    line, pixel = NUMBER_BYTES * width * channels, NUMBER_BYTES * channels
    fall, step = down * line, across * pixel
    point, narrow = NUMBER_BYTES * filters, NUMBER_BYTES * COLUMNS
    # What a filter sees of a picture's row; if that is short, all rows of the filter are taken at once.
    run = wide * channels
    depth = max(size for size in range(1, min(run, LONGEST) + 1) if run % size == 0)
    turns, repeats, shift = (1, tall, line) if run == depth else (tall, run // depth, NUMBER_BYTES * depth)
    # Offsets of what the filter sees at each place, of the places themselves, of the numbers of a run and its weights.
    y, x = np.divmod(np.arange(places), columns)
    tables = (
        fall * y + step * x,
        point * np.arange(places),
        NUMBER_BYTES * np.arange(run),
        point * np.arange(run),
    )

    def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        # numba's files bear this name. Each size has its own, lest processes that compile at once mix them up.
        function.__qualname__ = (
            f"{function.__name__}_{channels}_{height}_{width}_{tall}_{wide}_{down}_{across}_{filters}"
        )
        # The tables must be the caller's: a compiled function may free an array of its own of which it only uses the
        # address from then on.
        return functools.partial(njit(nogil=True)(function), tables)

    @kernel
    def forward(tables, first, last, pictures, weights, bias, out):  # type: ignore[no-untyped-def]
        """Pictures [N, H, W, C] and weights [P / 16, K K C, 16] → out [N, H', W', P]."""
        seen, given = np.intp(tables[0].ctypes.data), np.intp(tables[1].ctypes.data)
        numbers = np.empty(height * width * channels, np.float32)
        for n in range(first, last):
            start = _address(pictures[n], numbers)
            features = out[n].reshape(places, filters)
            for q in range(places):
                for p in range(filters):
                    features[q, p] = bias[p]
            for p in range(0, filters, COLUMNS):
                place = np.intp(features.ctypes.data) + NUMBER_BYTES * p
                for i in range(turns):
                    factor = np.intp(weights.ctypes.data) + NUMBER_BYTES * (p * tall + i * COLUMNS) * run
                    left = (start + i * line, seen, NUMBER_BYTES, shift)
                    right = (factor, narrow, narrow * depth)
                    add_products(places, depth, repeats, (place, given), left, right)
            for q in range(places):
                for p in range(filters):
                    # Not max(): what is no number stays none.
                    features[q, p] = 0 if features[q, p] < 0 else features[q, p]

    @kernel
    def to_weights(tables, first, last, pictures, out, slopes, to_weights, to_bias):  # type: ignore[no-untyped-def]
        """Pictures, out, slopes [N, H', W', P] → slopes of weights [K, K, C, P] and bias, which are added to.

        The rows i of the first 16 filters come first, then those of the next 16, and so on.
        """
        numbered, weighed = np.intp(tables[2].ctypes.data), np.intp(tables[3].ctypes.data)
        # Both are read again for each picture, which keeps them alive while their addresses are used.
        numbers = np.empty(height * width * channels, np.float32)
        inner = np.empty((places, COLUMNS), np.float32)
        right = (np.intp(inner.ctypes.data), narrow, columns * narrow)
        for n in range(len(pictures)):
            start = _address(pictures[n], numbers)
            features, outer = out[n].reshape(places, filters), slopes[n].reshape(places, filters)
            for group in range(first // tall, (last + tall - 1) // tall):
                p = group * COLUMNS
                for q in range(places):
                    for c in range(COLUMNS):
                        inner[q, c] = 0 if features[q, p + c] <= 0 else outer[q, p + c]
                if first <= group * tall:
                    for q in range(places):
                        for c in range(COLUMNS):
                            to_bias[p + c] += inner[q, c]
                for i in range(max(0, first - group * tall), min(tall, last - group * tall)):
                    place = np.intp(to_weights[i].ctypes.data) + NUMBER_BYTES * p
                    left = (start + i * line, numbered, step, fall)
                    add_products(run, columns, rows, (place, weighed), left, right)

    @kernel
    def to_pictures(tables, first, last, out, slopes, weights, to_pictures):  # type: ignore[no-untyped-def]
        """Out and slopes [N, H', W', P] and weights [K, K, P, C] → slopes of pictures [N, H, W, C]."""
        seen, given = np.intp(tables[0].ctypes.data), np.intp(tables[1].ctypes.data)
        inner = np.empty((places, filters), np.float32)
        left = (np.intp(inner.ctypes.data), given, NUMBER_BYTES, narrow)
        for n in range(first, last):
            features, outer = out[n].reshape(places, filters), slopes[n].reshape(places, filters)
            for q in range(places):
                for p in range(filters):
                    inner[q, p] = 0 if features[q, p] <= 0 else outer[q, p]
            to_pictures[n] = 0
            corner = np.intp(to_pictures[n].ctypes.data)
            for i in range(tall):
                for j in range(wide):
                    for c in range(0, channels, COLUMNS):
                        place = corner + i * line + j * pixel + NUMBER_BYTES * c
                        factor = np.intp(weights[i, j].ctypes.data) + NUMBER_BYTES * c
                        right = (factor, pixel, pixel * COLUMNS)
                        add_products(places, COLUMNS, filters // COLUMNS, (place, seen), left, right)

    return Kernels(forward, to_weights, to_pictures)
