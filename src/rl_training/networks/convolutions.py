"""A convolution without padding and its ReLU, faster than torch's on one core.

With N pictures of H rows, W columns and C channels, stored in this order, and P filters w of K × K at a stride s:

    out[n, y, x, p] = max(0, b[p] + Σ_{i,j,c} picture[n, s y + i, s x + j, c] · w[i, j, c, p])

With g [N, H', W', P], the slopes of `out` where it is above 0, and 0 elsewhere:

    ∂/∂w[i, j, c, p] = Σ_{n,y,x} picture[n, s y + i, s x + j, c] · g[n, y, x, p]
    ∂/∂b[p]          = Σ_{n,y,x} g[n, y, x, p]
    ∂/∂picture[n, s y + i, s x + j, c] += Σ_p w[i, j, c, p] · g[n, y, x, p]        for all y, x, i, j

Each is a row of matrix products: the K · C numbers of a picture's row that a filter sees lie side by side, and for one
i, j the places that the filters see do not overlap. Nothing is copied into matrices first, and each picture is done
with while it is in the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.networks.compiled import fits
from rl_training.networks.tiles import COLUMNS, add_products, strips

FLOAT, WORD = 4, 8  # bytes
LONGEST = 64  # numbers in one go of what a filter sees

Stride = tuple[int, int]


def convolve(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    """Pictures [N, C, H, W] of bytes or numbers, channels last in memory → [N, P, H', W'], the same."""
    fast = (
        fits(weight)
        and not torch.is_autocast_enabled("cpu")
        and torch.get_num_threads() == 1
        and len(weight) % COLUMNS == 0
    )
    if fast and torch.is_grad_enabled():
        return _Convolution.apply(picture, weight, bias, stride)
    return (_forward if fast else _by_torch)(picture, weight, bias, stride)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
        out = _forward(picture, weight, bias, stride)
        ctx.save_for_backward(picture, weight, out)
        ctx.stride = stride
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        picture, weight, out = ctx.saved_tensors
        channels = picture.shape[1]
        to_picture = ctx.needs_input_grad[0]
        # The slopes that torch finds can be differentiated themselves.
        if torch.is_grad_enabled() or (to_picture and channels % COLUMNS):
            return *_back_by_torch(slope * (out > 0), picture, weight, ctx.stride, ctx.needs_input_grad), None
        backward = _compiled(*picture.shape[1:], *weight.shape[2:], *ctx.stride, len(weight))[1]
        slopes = (
            torch.empty_like(picture, memory_format=torch.channels_last) if to_picture else slope.new_empty(0)
        )
        turned = weight.permute(2, 3, 0, 1).contiguous()
        weights, biases = backward(
            _rows(picture), _rows(out), _rows(slope), turned.numpy(), _rows(slopes) if to_picture else None
        )
        return (
            slopes if to_picture else None,
            torch.from_numpy(weights).permute(3, 2, 0, 1),
            torch.from_numpy(biases),
            None,
        )


def _forward(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    if picture.dtype != torch.uint8:
        return _by_torch(picture, weight, bias, stride)
    filters, (tall, wide) = len(weight), weight.shape[2:]
    forward = _compiled(*picture.shape[1:], tall, wide, *stride, filters)[0]
    # As the tiles read them: 16 filters side by side.
    packed = (
        weight.detach()
        .permute(2, 3, 1, 0)
        .reshape(-1, filters // COLUMNS, COLUMNS)
        .transpose(0, 1)
        .contiguous()
    )
    height, width = picture.shape[2:]
    rows, columns = (height - tall) // stride[0] + 1, (width - wide) // stride[1] + 1
    out = torch.empty(len(picture), filters, rows, columns, memory_format=torch.channels_last)
    forward(_rows(picture), packed.numpy(), bias.detach().numpy(), _rows(out))
    return out


def _by_torch(picture: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Tensor:
    return F.conv2d(_numbers(picture), weight, bias, stride).relu_()


def _back_by_torch(
    slope: Tensor, picture: Tensor, weight: Tensor, stride: Stride, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    options = ([len(weight)], stride, (0, 0), (1, 1), False, (0, 0), 1)  # no padding, no dilation, one group
    return torch.ops.aten.convolution_backward(slope, _numbers(picture), weight, *options, wanted[:3])


def _numbers(picture: Tensor) -> Tensor:
    return picture.to(torch.float32, memory_format=torch.channels_last)


def _rows(picture: Tensor) -> np.ndarray:
    """[N, C, H, W] → [N, H, W, C] in the order of memory."""
    return picture.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


@numba.njit(cache=True, nogil=True)
def _address(picture, numbers):  # type: ignore[no-untyped-def]
    """Of a picture, or of its bytes as numbers."""
    if picture.itemsize == FLOAT:
        return np.intp(picture.ctypes.data)
    plain = picture.reshape(-1)
    for q in range(len(numbers)):
        numbers[q] = plain[q]
    return np.intp(numbers.ctypes.data)


@functools.cache
def _compiled(
    channels: int, height: int, width: int, tall: int, wide: int, down: int, across: int, filters: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward for these sizes, which the compiler must know."""
    rows, columns = (height - tall) // down + 1, (width - wide) // across + 1
    places = rows * columns
    # Strides in bytes: to the next row and column of a picture, and as far as a filter is moved there; to the next
    # place of `out`, and that of a tile.
    line, pixel = FLOAT * width * channels, FLOAT * channels
    fall, step = down * line, across * pixel
    point, narrow = FLOAT * filters, FLOAT * COLUMNS
    # What a filter sees of a picture's row; if that is short, one tile can take all rows of the filter.
    run = wide * channels
    length = max(size for size in range(1, min(run, LONGEST) + 1) if run % size == 0)
    turns, repeats, shift = (1, tall, line) if run == length else (tall, run // length, FLOAT * length)
    parts, higher, part = strips(places)
    pieces, longer, piece = strips(run)
    taller, longest = part + 1, piece + 1
    # Offsets of what the filter sees at each place, of the places themselves, of the numbers of a run and its weights.
    y, x = np.divmod(np.arange(places), columns)
    tables = (fall * y + step * x, point * np.arange(places), FLOAT * np.arange(run), point * np.arange(run))

    @numba.njit(cache=True, nogil=True)
    def forward(tables, pictures, weights, bias, out):  # type: ignore[no-untyped-def]
        """Pictures [N, H, W, C] and weights [P / 16, K K C, 16] → out [N, H', W', P]."""
        seen, given = np.intp(tables[0].ctypes.data), np.intp(tables[1].ctypes.data)
        numbers = np.empty(height * width * channels, np.float32)
        for n in range(len(pictures)):
            start = _address(pictures[n], numbers)
            features = out[n].reshape(places, filters)
            for q in range(places):
                for p in range(filters):
                    features[q, p] = bias[p]
            for p in range(0, filters, COLUMNS):
                for i in range(turns):
                    factor = np.intp(weights.ctypes.data) + FLOAT * (p * tall + i * COLUMNS) * run
                    right = (factor, narrow, narrow * length)
                    place, first = np.intp(features.ctypes.data) + FLOAT * p, 0
                    for k in range(parts):
                        to = (place, given + WORD * first)
                        left = (start + i * line, seen + WORD * first, FLOAT, shift)
                        if k < higher:
                            add_products(taller, length, repeats, to, left, right)
                            first += taller
                        else:
                            add_products(part, length, repeats, to, left, right)
                            first += part
            for q in range(places):
                for p in range(filters):
                    # Not max(): what is no number stays none.
                    features[q, p] = 0 if features[q, p] < 0 else features[q, p]

    @numba.njit(cache=True, nogil=True)
    def backward(tables, pictures, out, slopes, weights, to_pictures):  # type: ignore[no-untyped-def]
        """Pictures, out, slopes [N, H', W', P] and weights [K, K, P, C] → slopes of weights [K, K, C, P] and bias."""
        seen, given = np.intp(tables[0].ctypes.data), np.intp(tables[1].ctypes.data)
        numbered, weighed = np.intp(tables[2].ctypes.data), np.intp(tables[3].ctypes.data)
        to_weights = np.zeros((tall, wide, channels, filters), np.float32)
        to_bias = np.zeros(filters, np.float32)
        numbers = np.empty(height * width * channels, np.float32)
        inner = np.empty((places, filters), np.float32)
        source = np.intp(inner.ctypes.data)
        for n in range(len(pictures)):
            start = _address(pictures[n], numbers)
            features, outer = out[n].reshape(places, filters), slopes[n].reshape(places, filters)
            for q in range(places):
                for p in range(filters):
                    inner[q, p] = 0 if features[q, p] <= 0 else outer[q, p]
                    to_bias[p] += inner[q, p]
            for p in range(0, filters, COLUMNS):
                right = (source + FLOAT * p, point, columns * point)
                for i in range(tall):
                    place, first = np.intp(to_weights[i].ctypes.data) + FLOAT * p, 0
                    for k in range(pieces):
                        to = (place, weighed + WORD * first)
                        left = (start + i * line, numbered + WORD * first, step, fall)
                        if k < longer:
                            add_products(longest, columns, rows, to, left, right)
                            first += longest
                        else:
                            add_products(piece, columns, rows, to, left, right)
                            first += piece
            if to_pictures is not None:
                to_pictures[n] = 0
                base = np.intp(to_pictures[n].ctypes.data)
                for i in range(tall):
                    for j in range(wide):
                        for c in range(0, channels, COLUMNS):
                            right = (np.intp(weights[i, j].ctypes.data) + FLOAT * c, pixel, pixel * COLUMNS)
                            place, first = base + i * line + j * pixel + FLOAT * c, 0
                            for k in range(parts):
                                to = (place, seen + WORD * first)
                                left = (source, given + WORD * first, FLOAT, narrow)
                                if k < higher:
                                    add_products(taller, COLUMNS, filters // COLUMNS, to, left, right)
                                    first += taller
                                else:
                                    add_products(part, COLUMNS, filters // COLUMNS, to, left, right)
                                    first += part
        return to_weights, to_bias

    # The caller's own: a compiled function frees an array of its own once only the address is used.
    return functools.partial(forward, tables), functools.partial(backward, tables)
