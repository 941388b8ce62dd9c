"""Convolutions without padding whose gradients are faster than torch's on one core.

With N pictures of H rows, W columns and C channels, stored in this order, and P filters of K × K at a stride s, the
slopes g [N, H', W', P] of the output give

    ∂/∂w[i, j, c, p] = Σ_{n,y,x} picture[n, s y + i, s x + j, c] · g[n, y, x, p]
    ∂/∂b[p]          = Σ_{n,y,x} g[n, y, x, p]
    ∂/∂picture[n, s y + i, s x + j, c] += Σ_p w[i, j, c, p] · g[n, y, x, p]        for all y, x, i, j

The first is a matrix product for each row i of the filters, because the K · C numbers of a picture's row that a filter
sees lie side by side; the second is one for each i, j, because the filters' places do not overlap there. Nothing is
copied into matrices first, and each picture is done with while it is in the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.networks.compiled import fits
from rl_training.networks.tiles import COLUMNS, add_products, strips

FLOAT = 4  # bytes
TOGETHER = 32  # pictures
DEPTH = 16  # filters in one go: a loop of constant length is unrolled


class Convolution(nn.Conv2d):
    """torch's layer, with these gradients."""

    def forward(self, picture: Tensor) -> Tensor:
        return convolve(self, picture, self.weight)


def convolve(layer: nn.Conv2d, picture: Tensor, weight: Tensor) -> Tensor:
    """What `layer` makes of pictures, bytes or numbers, channels last in memory, if its weights were these."""
    fast = (
        torch.is_grad_enabled()
        and fits(weight)
        and not torch.is_autocast_enabled("cpu")
        and torch.get_num_threads() == 1
        and layer.padding == (0, 0)
        and layer.out_channels % COLUMNS == 0
    )
    if fast:
        return _Convolution.apply(picture, weight, layer.bias, layer.stride)
    return F.conv2d(_numbers(picture), weight, layer.bias, layer.stride, layer.padding)


def _numbers(picture: Tensor) -> Tensor:
    return picture.to(torch.float32, memory_format=torch.channels_last)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, picture: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(picture, weight)
        ctx.stride = stride
        if picture.dtype != torch.uint8:
            return F.conv2d(picture, weight, bias, stride)
        # So few pictures at a time that they stay in the cache from their bytes to their features.
        shape = F.conv2d(picture[:1].float(), weight, bias, stride).shape[1:]
        out = torch.empty((len(picture), *shape), memory_format=torch.channels_last)
        for some, features in zip(picture.split(TOGETHER), out.split(TOGETHER), strict=True):
            features.copy_(F.conv2d(_numbers(some), weight, bias, stride))
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        picture, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # these gradients will be differentiated themselves
            return *_by_torch(slope, picture, weight, ctx.stride, ctx.needs_input_grad[:3]), None
        kernels = _kernels(*picture.shape[1:], *weight.shape[2:], *ctx.stride, len(weight))
        slopes = _rows(slope)
        to_picture, to_weight, to_bias = None, None, None
        if ctx.needs_input_grad[0]:
            if picture.shape[1] % COLUMNS == 0:
                to_picture = torch.empty_like(picture, memory_format=torch.channels_last)
                turned = np.ascontiguousarray(weight.permute(2, 3, 0, 1).numpy())
                kernels[0](slopes, turned, _rows(to_picture))
            else:
                (to_picture, _, _) = _by_torch(slope, picture, weight, ctx.stride, (True, False, False))
        if any(ctx.needs_input_grad[1:3]):
            weights, bias = kernels[1](_rows(picture), slopes)
            to_weight = torch.from_numpy(weights).permute(3, 2, 0, 1)
            to_bias = torch.from_numpy(bias)
        return to_picture, to_weight, to_bias, None


def _rows(picture: Tensor) -> np.ndarray:
    """[N, C, H, W] → [N, H, W, C] in the order of memory."""
    return picture.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


def _by_torch(
    slope: Tensor, picture: Tensor, weight: Tensor, stride: tuple[int, int], wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    options = ([len(weight)], stride, (0, 0), (1, 1), False, (0, 0), 1)  # no padding, no dilation, one group
    return torch.ops.aten.convolution_backward(slope, picture, weight, *options, wanted)


@functools.cache
def _kernels(
    channels: int,
    height: int,
    width: int,
    tall: int,
    wide: int,
    down: int,
    across: int,
    filters: int,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The gradients to the pictures and to the weights for these sizes, which the compiler must know."""
    rows, columns = (height - tall) // down + 1, (width - wide) // across + 1
    run = wide * channels  # what a filter sees of a picture's row
    # Strides in bytes: to the next row and column of pictures and of slopes, and as far as a filter is moved.
    line, pixel, seen, point = (
        FLOAT * width * channels,
        FLOAT * channels,
        FLOAT * columns * filters,
        FLOAT * filters,
    )
    step, fall = across * pixel, down * line
    parts, higher, part = strips(columns)
    pieces, longer, piece = strips(run)
    taller, longest = part + 1, piece + 1

    @numba.njit(cache=True, nogil=True)
    def to_pictures(slopes, weights, out):  # type: ignore[no-untyped-def]
        """Slopes [N, H', W', P] and weights [K, K, P, C] → out [N, H, W, C]."""
        base, at, source = np.intp(out.ctypes.data), np.intp(weights.ctypes.data), np.intp(slopes.ctypes.data)
        for n in range(len(slopes)):
            out[n] = 0
            for i in range(tall):
                for j in range(wide):
                    for c in range(0, channels, COLUMNS):
                        factor = at + (i * wide + j) * filters * pixel + FLOAT * c
                        for y in range(rows):
                            place = base + (n * height + i) * line + y * fall + j * pixel + FLOAT * c
                            given = source + (n * rows + y) * seen
                            for k in range(parts):
                                left = (given, point, FLOAT, FLOAT * DEPTH)
                                right = (factor, pixel, pixel * DEPTH)
                                if k < higher:
                                    add_products(taller, DEPTH, filters // DEPTH, (place, step), left, right)
                                else:
                                    add_products(part, DEPTH, filters // DEPTH, (place, step), left, right)
                                done = taller if k < higher else part
                                place += done * step
                                given += done * point

    @numba.njit(cache=True, nogil=True)
    def to_weights(pictures, slopes):  # type: ignore[no-untyped-def]
        """Pictures [N, H, W, C] and slopes [N, H', W', P] → weights [K, K, C, P] and bias [P]."""
        weights = np.zeros((tall, wide, channels, filters), np.float32)
        bias = np.zeros(filters, np.float32)
        plain, numbers = pictures.reshape(len(pictures), -1), np.empty(height * width * channels, np.float32)
        base, source = np.intp(weights.ctypes.data), np.intp(slopes.ctypes.data)
        for n in range(len(pictures)):
            start = np.intp(pictures.ctypes.data) + n * height * line
            if pictures.itemsize < FLOAT:  # bytes
                for q in range(len(numbers)):
                    numbers[q] = plain[n, q]
                start = np.intp(numbers.ctypes.data)
            for p in range(0, filters, COLUMNS):
                factor = source + n * rows * seen + FLOAT * p
                for i in range(tall):
                    place = base + i * run * point + FLOAT * p
                    given = start + i * line
                    for k in range(pieces):
                        left = (given, FLOAT, step, fall)
                        right = (factor, point, seen)
                        if k < longer:
                            add_products(longest, columns, rows, (place, point), left, right)
                        else:
                            add_products(piece, columns, rows, (place, point), left, right)
                        done = longest if k < longer else piece
                        place += done * point
                        given += done * FLOAT
            for y in range(rows):
                for x in range(columns):
                    for p in range(filters):
                        bias[p] += slopes[n, y, x, p]
        return weights, bias

    return to_pictures, to_weights
