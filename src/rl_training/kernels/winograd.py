"""Convolutions of 3 × 3 with a padding of 1 and no stride, by Winograd's products: 25 in the place of 81.

A. Lavin and S. Gray 2016, "Fast algorithms for convolutional neural networks". For a tile of 3 × 3 numbers of the
result, d are the 5 × 5 numbers that its filters see and w the filter:

    tile = Aᵀ [Σ_c (G w_c Gᵀ) ⊙ (Bᵀ d_c B)] A

with the matrices of Toom and Cook for the points 0, 1, -1, 2 and ∞ below. The sums over the channels c are 25 matrix
products, of many tiles at once. In single precision the result differs from a sum of all products by some 5e-7 of its
standard deviation, where another order of that sum makes 1e-7.

Frames go through all layers one after the other, each in the cache. No number of a frame depends on the others, so it
is the same in every batch and for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor
from torch.nn import functional as F

from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.side_by_side import in_shares
from rl_training.kernels.tiles import (
    COLUMNS,
    INDEX,
    LANES,
    NUMBER_BYTES,
    ROWS,
    VECTOR,
    WIDE_ROWS,
    add_products,
    has_fused_multiplication,
    put_products,
    put_wide_products,
)

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import Context
    from numba.core.typing.templates import Signature

TILE, SEEN = 3, 5
PRODUCTS = SEEN * SEEN
TO_TILE = ((1, 1, 1, 1, 0), (0, 1, -1, 2, 0), (0, 1, 1, 4, 1))  # Aᵀ
HALF, THIRD, SIXTH = 1 / 2, 1 / 3, 1 / 6
TO_FILTER = ((HALF, 0, 0), (-HALF,) * 3, (-SIXTH, SIXTH, -SIXTH), (SIXTH, THIRD, 2 * THIRD), (0, 0, 1))  # G
TO_SEEN = ((2, -1, -2, 1, 0), (0, -2, -1, 1, 0), (0, 2, -3, 1, 0), (0, -1, 0, 1, 0), (0, 2, -1, -2, 1))  # Bᵀ
FILTERS = np.array(TO_FILTER, np.float32)

BYTE = ir.IntType(8)
VECTOR_BYTES, TILE_BYTES = NUMBER_BYTES * LANES, NUMBER_BYTES * COLUMNS
FEW = 4  # channels of an entry's frames are a multiple of it
SHORT = TILE * FEW  # products that are written out there
GROUP = 48  # tiles at once, at most: a multiple of all `ROWS`
BLOCK = 98  # tiles, at most, of frames that go through all layers together: they stay in the second cache
FEWEST = 8  # frames that are worth a thread
NOTHING, INPUT, BEFORE = range(3)  # what is added to a convolution: its own input, or that of the one before

Layer = tuple[Tensor, Tensor]  # a weight [C, C, 3, 3], and a bias [C], or one of each frame [N, C]


def convolve(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Frames [N, C, H, W] by filters [C, C, 3, 3] with a padding of 1, channels last in memory."""
    if _is_for_us(frames, [(weight, bias)]):
        return _through(_rows(frames), None, [(weight, bias)], (NOTHING,), rectified=False)
    return F.conv2d(frames, weight, bias, padding=1)


def convolve_in_a_row(
    frames: Tensor, layers: Sequence[Layer], added: Sequence[int], entry: Layer | None = None
) -> Tensor:
    """Frames [N, C, H, W] through layers that are max(0, conv(x) + bias + what is added), channels last in memory.

    added: of each layer `NOTHING`, its `INPUT`, or the input of the layer `BEFORE` it
    entry: what comes first: a convolution [C, C', 3, 3] with a stride of 2, and its positive part; the frames have C'
           channels, bytes or numbers
    """
    if _is_for_us(frames, layers, entry):
        return _through(_rows(frames), entry, layers, added, rectified=True)
    if entry is not None:
        frames = F.relu(F.conv2d(frames.float(), *entry, stride=2, padding=1))
    before = frames
    for (weight, bias), more in zip(layers, added, strict=True):
        out = F.conv2d(frames, weight, padding=1) + bias.view(-1, bias.shape[-1], 1, 1)
        extra = (0.0, frames, before)[more]
        before, frames = frames, F.relu(out + extra)
    return frames


def enter(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Frames [N, C', H, W] by filters [C, C', 3, 3] with a padding of 1 and a stride of 2, channels last in memory."""
    if _is_for_us(frames, [], (weight, bias)):
        return _through(_rows(frames), (weight, bias), [], (), rectified=False)
    return F.conv2d(frames.float(), weight, bias, stride=2, padding=1)


def _through(
    frames: np.ndarray, entry: Layer | None, layers: Sequence[Layer], added: Sequence[int], rectified: bool
) -> Tensor:
    """Frames [N, H, W, C] in the order of memory → [N, C, H, W]."""
    row = InARow(layers, added, entry, rectified)
    out = torch.empty(row.shape_of(frames), memory_format=torch.channels_last)
    row.run(frames, _rows(out))
    return out


class InARow:
    """Layers in a row, as `convolve_in_a_row` has them, whose filters are factors: for several calls."""

    def __init__(
        self,
        layers: Sequence[Layer],
        added: Sequence[int],
        entry: Layer | None = None,
        rectified: bool = True,
    ) -> None:
        self.first = np.empty((0, 0, 0, 0), np.float32), np.empty(0, np.float32)
        if entry is not None:
            self.first = _filters(entry[0]), entry[1].detach().numpy()
        channels = len(layers[0][0]) if layers else 0
        self.factors = np.empty((len(layers), PRODUCTS, channels, channels), np.float32)
        for (weight, _), factors in zip(layers, self.factors, strict=True):
            _put_factors(_filters(weight), factors)
        self.biases = [bias.detach().numpy() for _, bias in layers]
        self.added, self.rectified = np.array(added, np.int64), rectified

    def shape_of(self, frames: np.ndarray) -> tuple[int, int, int, int]:
        """[N, C, H, W] of what it makes of frames [N, H, W, C]."""
        count, height, width, channels = frames.shape
        if self.first[0].size:
            height, width, channels = -(-height // 2), -(-width // 2), self.first[0].shape[3]
        return count, channels, height, width

    def run(self, frames: np.ndarray, out: np.ndarray, moved: np.ndarray | None = None) -> None:
        """Frames [N, H, W, C] in the order of memory → out; `moved` are other biases of the first layer."""
        biases = np.empty((len(self.biases), len(frames), out.shape[3]), np.float32)
        for to, bias in zip(biases, self.biases, strict=True):
            to[...] = bias
        if moved is not None:
            biases[0] = moved
        arrays = (frames, *self.first, self.factors, biases, self.added, out)
        in_shares(len(frames), FEWEST, _share, arrays, self.rectified)


def _filters(weight: Tensor) -> np.ndarray:
    """[P, C, 3, 3] → [3, 3, C, P]."""
    return weight.detach().permute(2, 3, 1, 0).contiguous().numpy()


def _share(first: int, last: int, arrays: tuple[np.ndarray, ...], rectified: bool) -> None:
    """Compute a share of the frames, in arrays of its own."""
    seen, out = arrays[0], arrays[-1]
    (tall, broad, inputs), (height, width, channels) = seen.shape[1:], out.shape[1:]
    down, across = -(-height // TILE), -(-width // TILE)
    block = min(last - first, max(1, BLOCK // (down * across)))
    padded = np.empty((3, block, TILE * down + 2, TILE * across + 2, channels), np.float32)
    enters = arrays[1].size > 0
    entered = np.empty((1, tall + 2, broad + 2, inputs) if enters else (1, 0, 0, 0), np.float32)
    # Where each place of a frame is, and the corner of what the entry sees of it; the last ones are one place.
    places = np.minimum(np.arange(-(-height * width // ROWS) * ROWS), height * width - 1)
    y, x = np.divmod(places, width)
    tables = (
        NUMBER_BYTES * channels * np.arange(ROWS),
        (y + 1) * padded.strides[2] + (x + 1) * padded.strides[3],
        2 * y * entered.strides[1] + 2 * x * entered.strides[2],
    )
    # The caller's: a compiled function may free an array of its own of which it only uses the address from then on.
    rooms = (
        # Frames of whole tiles, with a rim of zeros: those of a layer, its result, and those of the layer before.
        padded,
        entered,
        # Not multiples of a page: places that are pages apart would share one line of the first cache.
        np.empty((2, PRODUCTS, GROUP * channels + COLUMNS), np.float32),
        np.full(LANES, 0.0 if rectified else -np.inf, np.float32),
    )
    _convolve(first, last, arrays, rooms, tables)


def _is_for_us(frames: Tensor, layers: Sequence[Layer], entry: Layer | None = None) -> bool:
    """Whether the compiled function can do it; what nobody can do is left to torch, which says so."""
    parts = [part for layer in ([] if entry is None else [entry], layers) for pair in layer for part in pair]
    learns = torch.is_grad_enabled() and any(part.requires_grad for part in (frames, *parts))
    if learns or not all(fits(part) for part in parts) or not has_fused_multiplication():
        return False
    if torch.is_autocast_enabled("cpu") or frames.ndim != 4 or frames.numel() == 0:
        return False
    count, channels = frames.shape[:2]
    if entry is None:
        known = fits(frames)
    else:
        known = frames.dtype in (torch.uint8, torch.float32) and channels % FEW == 0
        known = known and entry[0].shape[1:] == (channels, 3, 3)
        channels = len(entry[0])
    whole = known and all(weight.shape == (channels, channels, 3, 3) for weight, _ in layers)
    whole = whole and all(bias.shape in ((channels,), (count, channels)) for _, bias in layers)
    return whole and channels % COLUMNS == 0


def _rows(frames: Tensor) -> np.ndarray:
    """[N, C, H, W] → [N, H, W, C] in the order of memory, numbers."""
    if frames.dtype == torch.uint8:
        planes = frames.numpy()
        count, channels, height, width = planes.shape
        rows = np.empty((count, height, width, channels), np.float32)
        _to_numbers(planes, rows)
        return rows
    return frames.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


def _combined(build: ir.IRBuilder, factors: Sequence[float], vectors: Sequence[ir.Value]) -> ir.Value:
    """Σ of factors times vectors, as few instructions as that takes."""
    fma = cgutils.get_or_insert_function(
        build.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )
    terms = [(factor, vector) for factor, vector in zip(factors, vectors, strict=True) if factor]
    terms.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    (factor, total), *others = terms
    assert factor == 1, "every row of the matrices has a 1, or none is needed"
    for factor, vector in others:
        if factor == 1:
            total = build.fadd(total, vector)
        elif factor == -1:
            total = build.fsub(total, vector)
        else:
            total = build.call(fma, [_in_all(factor), vector, total])
    return total


def _in_all(number: float) -> ir.Constant:
    return ir.Constant(VECTOR, [float(number)] * LANES)


def _at(build: ir.IRBuilder, address: ir.Value, stride: ir.Value, steps: int) -> ir.Value:
    return build.add(address, build.mul(stride, INDEX(steps)))


def _vector(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return build.load(build.inttoptr(address, VECTOR.as_pointer()), align=NUMBER_BYTES)


def _put(build: ir.IRBuilder, vector: ir.Value, address: ir.Value) -> None:
    build.store(vector, build.inttoptr(address, VECTOR.as_pointer()), align=NUMBER_BYTES)


@intrinsic
def put_seen(typing: Context, places: types.UniTuple) -> Any:
    """Bᵀ d B of a vector of channels: from 5 lines and pixels of a frame into 25 places."""

    def generate(
        context: BaseContext, build: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
    ) -> ir.Value:
        start, line, pixel, to, stride = cgutils.unpack_tuple(build, values[0])
        lines = [_at(build, start, line, i) for i in range(SEEN)]
        columns = [[_vector(build, _at(build, each, pixel, j)) for each in lines] for j in range(SEEN)]
        for i, factors in enumerate(TO_SEEN):
            row = [_combined(build, factors, column) for column in columns]
            for j, others in enumerate(TO_SEEN):
                _put(build, _combined(build, others, row), _at(build, to, stride, SEEN * i + j))
        return context.get_dummy_value()

    return types.void(types.UniTuple(types.intp, 5)), generate


@intrinsic(prefer_literal=True)
def put_tile(typing: Context, adds: types.IntegerLiteral, places: types.UniTuple) -> Any:
    """max(least, Aᵀ m A + bias) of a vector of channels, from 25 places into 3 × 3 pixels; `adds` another frame."""

    def generate(
        context: BaseContext, build: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
    ) -> ir.Value:
        start, stride, bias, extra, to, line, pixel, least = cgutils.unpack_tuple(build, values[1])
        products = [_vector(build, _at(build, start, stride, q)) for q in range(PRODUCTS)]
        columns = [products[j::SEEN] for j in range(SEEN)]
        constant, low = _vector(build, bias), _vector(build, least)
        for i, factors in enumerate(TO_TILE):
            row = [_combined(build, factors, column) for column in columns]
            for j, others in enumerate(TO_TILE):
                offset = build.add(build.mul(line, INDEX(i)), build.mul(pixel, INDEX(j)))
                number = build.fadd(_combined(build, others, row), constant)
                if adds.literal_value:
                    number = build.fadd(number, _vector(build, build.add(extra, offset)))
                # Not max(): what is no number stays none.
                below = build.fcmp_ordered("<", number, low)
                _put(build, build.select(below, low, number), build.add(to, offset))
        return context.get_dummy_value()

    return types.void(adds, types.UniTuple(types.intp, 8)), generate


_put_seen: Any = put_seen
_put_tile: Any = put_tile


@njit(nogil=True)
def _put_factors(weight, factors):  # type: ignore[no-untyped-def]
    """Filters [3, 3, C, C] → G w Gᵀ of each, [25, C, C]."""
    channels = weight.shape[2]
    for a in range(SEEN):
        for b in range(SEEN):
            factors[SEEN * a + b] = 0
            for i in range(TILE):
                for j in range(TILE):
                    factor = FILTERS[a, i] * FILTERS[b, j]
                    if factor != 0:
                        for c in range(channels):
                            for p in range(channels):
                                factors[SEEN * a + b, c, p] += factor * weight[i, j, c, p]


@intrinsic
def _put_bytes(typing: Context, to: types.Integer, start: types.Integer, count: types.Integer) -> Any:
    """Bytes from one address to another."""

    def generate(
        context: BaseContext, build: ir.IRBuilder, signature: Signature, values: Sequence[ir.Value]
    ) -> ir.Value:
        places = (build.inttoptr(value, BYTE.as_pointer()) for value in values[:2])
        cgutils.raw_memcpy(build, *places, values[2], 1)  # type: ignore[call-arg]  # numba has another stub
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


put_bytes: Any = _put_bytes


@njit(nogil=True)
def _clear(numbers):  # type: ignore[no-untyped-def]
    for x in range(numbers.shape[0]):
        for c in range(numbers.shape[1]):
            numbers[x, c] = 0


@njit(nogil=True)
def _clear_rims(padded, height, width):  # type: ignore[no-untyped-def]
    """Zeros around the places of frames of H × W."""
    for n in range(padded.shape[0]):
        for y in range(padded.shape[1]):
            if 0 < y <= height:
                _clear(padded[n, y, :1])
                _clear(padded[n, y, width + 1 :])
            else:
                _clear(padded[n, y])


@njit(nogil=True)
def _copy(frames, to):  # type: ignore[no-untyped-def]
    """Frames [n, H, W, C] into as many of the same shape; the pixels of a line lie side by side in both."""
    line = frames.shape[2] * frames.shape[3] * NUMBER_BYTES
    start, start_to = _start(frames), _start(to)
    for n in range(frames.shape[0]):
        for y in range(frames.shape[1]):
            place, place_to = (
                n * frames.strides[0] + y * frames.strides[1],
                n * to.strides[0] + y * to.strides[1],
            )
            put_bytes(start_to + place_to, start + place, line)


@njit(nogil=True)
def _to_numbers(planes, rows):  # type: ignore[no-untyped-def]
    """Bytes [N, C, H, W] → [N, H, W, C]."""
    count, channels, height, width = planes.shape
    for n in range(count):
        for y in range(height):
            for c in range(0, channels, FEW):
                first, second = planes[n, c, y], planes[n, c + 1, y]
                third, fourth = planes[n, c + 2, y], planes[n, c + 3, y]
                for x in range(width):  # four at once, of which the compiler makes vectors
                    rows[n, y, x, c] = first[x]
                    rows[n, y, x, c + 1] = second[x]
                    rows[n, y, x, c + 2] = third[x]
                    rows[n, y, x, c + 3] = fourth[x]


@njit(nogil=True)
def _start(array):  # type: ignore[no-untyped-def]
    return np.intp(array.ctypes.data)


@njit(nogil=True)
def _enter(frames, filters, bias, entered, out, tables, low):  # type: ignore[no-untyped-def]
    """Frames [n, H, W, C'] by filters [3, 3, C', C] with a stride of 2 → the middle of padded frames, at least low."""
    _, places, corners = tables
    inputs, channels = filters.shape[2:]
    line, point, run = entered.strides[1], NUMBER_BYTES * channels, TILE * inputs
    for n in range(len(frames)):
        _copy(frames[n : n + 1], entered[:, 1:-1, 1:-1])
        for q in range(0, len(places), ROWS):
            for p in range(0, point, TILE_BYTES):
                to = (_start(out[n]) + p, _start(places[q:]))
                corner = _start(corners[q:])
                if run == SHORT:
                    left = (_start(entered), corner, NUMBER_BYTES, line)
                    put_products(ROWS, SHORT, TILE, to, left, (_start(filters) + p, point, SHORT * point))
                    continue
                for i in range(TILE):  # a row of what the filters see lies side by side
                    left = (_start(entered) + i * line, corner, NUMBER_BYTES, NUMBER_BYTES * SHORT)
                    right = (_start(filters[i]) + p, point, SHORT * point)
                    if i == 0:
                        put_products(ROWS, SHORT, run // SHORT, to, left, right)
                    else:
                        add_products(ROWS, SHORT, run // SHORT, to, left, right)
        for y in range((frames.shape[1] + 1) // 2):
            for x in range((frames.shape[2] + 1) // 2):
                for c in range(channels):
                    number = out[n, y + 1, x + 1, c] + bias[c]
                    out[n, y + 1, x + 1, c] = low if number < low else number  # what is no number stays none


@njit(nogil=True)
def _convolve_block(factors, biases, padded, more, adds, out, rooms, table):  # type: ignore[no-untyped-def]
    """Padded frames of whole tiles, as many as there are biases [n, C] → the same, but for the rims."""
    _, _, (seen, made), least = rooms
    frame, line, pixel, _ = padded.strides
    step, channels = seen.strides[0], padded.shape[3]
    across, tiles = (out.shape[2] - 2) // TILE, (out.shape[1] - 2) * (out.shape[2] - 2) // TILE**2
    wide, total = pixel % (2 * TILE_BYTES) == 0, len(biases) * tiles
    groups = -(-total // GROUP)
    size = -(-total // groups)
    from_frames, from_factors, from_biases = _start(padded), _start(factors), _start(biases)
    from_seen, from_made, from_more, to_out = _start(seen), _start(made), _start(more), _start(out)
    from_least, offsets = _start(least), _start(table)
    for begin in range(0, total, size):
        some = min(size, total - begin)
        for t in range(some):
            n, q = divmod(begin + t, tiles)
            y, x = divmod(q, across)
            corner, place = from_frames + n * frame + TILE * (y * line + x * pixel), from_seen + t * pixel
            for c in range(0, pixel, VECTOR_BYTES):
                _put_seen((corner + c, line, pixel, place + c, step))
        for k in range(PRODUCTS):
            factor, turns = from_factors + k * channels * pixel, channels // COLUMNS
            for t in range(0, some, WIDE_ROWS) if wide else range(0):
                place = k * step + t * pixel
                left = (from_seen + place, offsets, NUMBER_BYTES, TILE_BYTES)
                for p in range(0, pixel, 2 * TILE_BYTES):
                    right = (factor + p, pixel, COLUMNS * pixel)
                    put_wide_products(
                        WIDE_ROWS, COLUMNS, turns, (from_made + place + p, offsets), left, right
                    )
            for t in range(0) if wide else range(0, some, ROWS):
                place = k * step + t * pixel
                left = (from_seen + place, offsets, NUMBER_BYTES, TILE_BYTES)
                for p in range(0, pixel, TILE_BYTES):
                    right = (factor + p, pixel, COLUMNS * pixel)
                    put_products(ROWS, COLUMNS, turns, (from_made + place + p, offsets), left, right)
        for t in range(some):
            n, q = divmod(begin + t, tiles)
            y, x = divmod(q, across)
            corner = n * frame + (TILE * y + 1) * line + (TILE * x + 1) * pixel
            for p in range(0, pixel, VECTOR_BYTES):
                place, bias, to = from_made + t * pixel + p, from_biases + n * pixel + p, corner + p
                places = (place, step, bias, from_more + to, to_out + to, line, pixel, from_least)
                if adds:
                    _put_tile(1, places)
                else:
                    _put_tile(0, places)


@njit(nogil=True)
def _convolve(first, last, arrays, rooms, tables):  # type: ignore[no-untyped-def]
    """Frames [N, H, W, C'] from the first to before the last → out [N, H', W', C].

    Through an entry, if it has filters [3, 3, C', C] and a bias [C], and L layers with factors [L, 25, C, C] and biases
    [L, N, C]; `added` [L] says what is added to each.
    """
    frames, entry, entry_bias, factors, biases, added, out = arrays
    padded, entered = rooms[:2]
    _, height, width, _ = out.shape
    block = padded.shape[1]
    _clear_rims(entered, frames.shape[1], frames.shape[2])
    whole = (padded.shape[2] - 2, padded.shape[3] - 2) == (height, width)
    for start in range(first, last, block):
        places = slice(start, min(start + block, last))
        now, after, before = 0, 1, 2
        if len(entry) > 0:
            _enter(frames[places], entry, entry_bias, entered, padded[now], tables, rooms[3][0])
        else:
            _copy(frames[places], padded[now, :, 1 : height + 1, 1 : width + 1])
        for layer in range(len(factors)):
            if (layer < 3 and start == first) or not whole:
                _clear_rims(padded[now], height, width)
            more = padded[now if added[layer] == INPUT else before]
            adds = added[layer] != NOTHING
            given = biases[layer, places]
            _convolve_block(factors[layer], given, padded[now], more, adds, padded[after], rooms, tables[0])
            now, after, before = after, before, now
        _copy(padded[now, : places.stop - start, 1 : height + 1, 1 : width + 1], out[places])
