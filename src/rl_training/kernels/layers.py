"""Dense networks as data: a table of layers, one flat vector of parameters, and compiled passes over blocks of rows.

A row of the table is a dense layer h = f(x Wᵀ + b), or with layer normalisation h = f(γ n + β) where n is x Wᵀ + b,
shifted and scaled to mean 0 and variance 1 in every row; without β it is RMSNorm, scaled to a mean square of 1.
It says where x comes from: the observation or another layer, so that two heads on one trunk are a table too. Sizes are
data: one compiled function serves all networks and batches.
A block of rows is as high as its activations stay in the processor's cache; larger batches are several blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numba import types
from torch import Tensor, nn

from rl_training.compiling import address, call_at, njit
from rl_training.kernels.derivatives import down_elu, down_kept, down_plain, down_relu, down_tanh
from rl_training.kernels.functions import FAST, RMS_EPSILON, tanh
from rl_training.kernels.products import LANES, PANEL, PRODUCT, call_product, product, turn
from rl_training.kernels.records import read_as

HEIGHT = 128  # rows of a block
COLUMNS = 22
(
    INPUTS, OUTPUTS, SOURCE, ACTIVATION, WEIGHT, BIAS, TRANSPOSED,  # the layer; places in the vector of parameters
    FORWARD, BACKWARD, START, GRADIENT,  # places in the packed weights: for both passes, biases, and slopes
    VALUES, SLOPES, KEPT, STRIDE, COLUMN,  # places in memory, numbers from row to row, and the first output column
    BEGINS,  # whether the backward pass comes to its source with this layer first
    SCALE, SHIFT, NORMED,  # γ and β in the vector of parameters, and n in memory; behind n the deviations, inverted
    NORMALIZE, DIFFERENTIATE,  # addresses of what normalises in both passes: most networks need not compile it
) = range(COLUMNS)  # fmt: skip
# Of the last row: addresses of functions.
TO_PRODUCT, TO_ACTIVATE, TO_DIFFERENTIATE, TO_TAKE, TO_COPY = FORWARD, BACKWARD, GRADIENT, KEPT, NORMED
OBSERVATION = -1  # as a source
NOWHERE = -1  # as a place
NONE, TANH, RELU, ELU, SILU, GELU = range(6)
ACTIVATIONS = {nn.Tanh: TANH, nn.ReLU: RELU, nn.ELU: ELU, nn.SiLU: SILU, nn.GELU: GELU}
NORM_EPSILON = 1e-5  # of LayerNorm, as torch has it by default
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
# Steps of a product as numbers and not as literals: for each set of literals numba would compile another product.
STAY, NEXT, NEXT_PANEL = np.int64(0), np.int64(1), np.int64(PANEL)

# Larger kernels call these passes by their addresses: linked into each of them, they would be compiled for each again.
TABLE, NUMBERS, ROWS, INDICES = (
    types.int64[:, ::1],
    types.float32[::1],
    types.float32[:, ::1],
    types.int64[::1],
)
PACK = types.void(TABLE, NUMBERS, NUMBERS, types.boolean)
UNPACK = types.void(TABLE, NUMBERS, NUMBERS)
PASS = types.void(TABLE, NUMBERS, NUMBERS, ROWS, INDICES, ROWS)
RETURN = types.void(TABLE, NUMBERS, NUMBERS, ROWS, NUMBERS, types.boolean, types.boolean)
NORM = types.void(INDICES, NUMBERS, NUMBERS, types.int64)
NORM_SLOPES = types.void(INDICES, NUMBERS, NUMBERS, types.int64, NUMBERS, types.boolean)
call_pack, call_unpack, call_forward, call_backward = map(call_at, (PACK, UNPACK, PASS, RETURN))
call_norm, call_norm_slopes = call_at(NORM), call_at(NORM_SLOPES)
ACTIVATED = types.void(INDICES, NUMBERS, types.int64)
DIFFERENTIATED = types.void(INDICES, NUMBERS, types.int64, NUMBERS, types.boolean)
call_activate, call_differentiate = call_at(ACTIVATED), call_at(DIFFERENTIATED)
TAKEN = types.void(NUMBERS, *[types.int64] * 3, ROWS, INDICES)
COPIED = types.void(NUMBERS, *[types.int64] * 4, ROWS, types.boolean)
call_take, call_copy = call_at(TAKEN), call_at(COPIED)
PACKING, FORTH, BACK, UNPACKING = range(4)  # places in a network's addresses


class Layer(NamedTuple):
    """A dense layer as torch has it: W [outputs, inputs], b [outputs]; without W its output is b in every row."""

    weight: Tensor | None
    bias: Tensor | None
    source: int  # the number of another layer, or OBSERVATION
    activation: int
    column: int  # where its outputs begin in a row of the network's outputs; NOWHERE for hidden layers
    transposed: bool = False  # whether W is stored as [inputs, outputs]
    scale: Tensor | None = None  # γ and β [outputs] of layer normalisation, γ alone of RMSNorm, or neither
    shift: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        if self.weight is None:
            assert self.bias is not None
            return self.bias.numel(), 0
        first, last = self.weight.shape
        return (last, first) if self.transposed else (first, last)


class Network(NamedTuple):
    """A network of dense layers, as larger kernels read it."""

    where: np.ndarray  # addresses of the passes over it
    table: np.ndarray
    parameters: np.ndarray
    packed: np.ndarray
    memory: np.ndarray
    gradient: np.ndarray
    outputs: np.ndarray  # [HEIGHT, outputs], and slopes in them
    slopes: np.ndarray


NETWORK = types.NamedTuple((INDICES, TABLE, *[NUMBERS] * 4, ROWS, ROWS), Network)
network_at = read_as(NETWORK)


class Layers:
    """A network of dense layers over a vector of parameters, of which their weights are views.

    Of several vectors it has a copy, one behind the other, as they were when it was last packed: enough for forward
    passes. With `passes`, slopes go on to its inputs.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        inputs: int,
        parameters: Tensor | Sequence[Tensor],
        passes: bool = False,
    ) -> None:
        vectors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self.inputs, self.passes, self.vectors = inputs, passes, [each.detach().numpy() for each in vectors]
        self.parameters = self.vectors[0] if len(vectors) == 1 else np.concatenate(self.vectors)
        self.outputs = max(layer.column + layer.shape[0] for layer in layers if layer.column != NOWHERE)
        self.table = np.full((len(layers) + 1, COLUMNS), NOWHERE, np.int64)
        self._lay_out(layers, vectors)
        self.output, self.slopes = (np.zeros((HEIGHT, self.outputs), np.float32) for _ in range(2))

    def _lay_out(self, layers: Sequence[Layer], parameters: Sequence[Tensor]) -> None:
        table, packed, memory = self.table, 0, 0

        def room(numbers: int) -> int:
            """The place of so many for each row."""
            nonlocal memory
            memory += HEIGHT * numbers
            return memory - HEIGHT * numbers

        # Before `handed` lies what is of use within a pass only; behind it, what the forward pass keeps for the other.
        strides = [stride_of(layer.shape[0]) for layer in layers]
        slopes = [room(stride) for stride in strides]
        values = [NOWHERE if is_kept(layers, i) else room(stride) for i, stride in enumerate(strides)]
        observed = room(stride_of(self.inputs))
        passed = room(stride_of(self.inputs)) if self.passes else NOWHERE
        self.handed = memory
        for i, layer in enumerate(layers):
            (outputs, inputs), stride = layer.shape, stride_of(layer.shape[0])
            rows, width = (inputs, outputs) if layer.transposed else (outputs, inputs)
            sizes = (
                panels(outputs) * inputs,
                panels(inputs) * outputs,
                panels(outputs) * (1 if layer.scale is None else 3),  # b, and γ and β behind it
                rows * panels(width),
            )
            places = np.cumsum([packed, *sizes])
            kept, normed = layer.activation in (SILU, GELU), layer.scale is not None
            table[i] = (
                inputs, outputs, layer.source, layer.activation,
                _place(layer.weight, parameters), _place(layer.bias, parameters), layer.transposed,
                *places[:4], room(stride) if values[i] == NOWHERE else values[i], slopes[i],
                room(stride) if kept else NOWHERE, stride, layer.column, begins(layers, i),
                _place(layer.scale, parameters), _place(layer.shift, parameters),
                room(stride + 1) if normed else NOWHERE, *(norm_addresses(layer) if normed else (NOWHERE, NOWHERE)),
            )  # fmt: skip
            packed = int(places[4])
        # The observation is the last row: what SOURCE = -1 names. It also says where the functions of all layers lie.
        for column, function, signature in (
            (TO_PRODUCT, product, PRODUCT),
            (TO_ACTIVATE, _activate, ACTIVATED),
            (TO_DIFFERENTIATE, _differentiate, DIFFERENTIATED),
            (TO_TAKE, _take, TAKEN),
            (TO_COPY, _copy, COPIED),
        ):
            table[-1, column] = address(function, signature)
        stride = stride_of(self.inputs)
        zeros = max(panels(width) for layer in layers for width in layer.shape)
        table[-1, [OUTPUTS, VALUES, SLOPES, STRIDE, START]] = self.inputs, observed, passed, stride, packed
        self.memory = room_for(memory)
        if self.passes:
            slope = self.memory[passed : passed + HEIGHT * stride]
            self.to_inputs = slope.reshape(HEIGHT, stride)[:, : self.inputs]
        self.packed, self.gradient = (room_for(packed + PANEL + zeros) for _ in range(2))

    @cached_property
    def addresses(self) -> np.ndarray:
        """Where the passes over a network lie: `pack`, `forward`, `backward` and `unpack`."""
        passes = ((pack, PACK), (forward, PASS), (backward, RETURN), (unpack, UNPACK))
        return np.array([address(function, signature) for function, signature in passes])

    @cached_property
    def network(self) -> Network:
        """Itself, as larger kernels read it."""
        places = (self.table, self.parameters, self.packed, self.memory, self.gradient)
        return Network(self.addresses, *places, self.output, self.slopes)

    def pack_forward(self) -> None:
        """Read the parameters as they are now, for forward passes alone."""
        self._gather()
        pack_at(self.addresses[PACKING], self.table, self.parameters, self.packed, False)

    def pack(self, learns: bool = True) -> None:
        """Read the parameters as they are now; what was added up of gradients begins anew if the network learns."""
        self._gather()
        pack_at(self.addresses[PACKING], self.table, self.parameters, self.packed, True)
        if learns:
            self.gradient[:] = 0

    def _gather(self) -> None:
        if len(self.vectors) > 1:
            np.concatenate(self.vectors, out=self.parameters)

    def forward(self, inputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The outputs [n, outputs] for some rows of inputs [N, inputs], at most HEIGHT; valid until the next call."""
        out = self.output[: len(rows)]
        forward_at(self.addresses[FORTH], self.table, self.packed, self.memory, inputs, rows, out)
        return out

    def backward(self, slopes: np.ndarray, learns: bool = True) -> None:
        """Add up the gradients of a loss with these slopes [n, outputs] in what `forward` put out last.

        Where the network does not learn, slopes are passed on to `to_inputs` [n, inputs] alone.
        """
        where = self.addresses[BACK]
        backward_at(where, self.table, self.packed, self.memory, slopes, self.gradient, learns)

    def unpack(self, gradient: np.ndarray) -> None:
        """Write what was added up to where a vector of gradients has it."""
        unpack_at(self.addresses[UNPACKING], self.table, self.gradient, gradient)


def norm_addresses(layer: Layer) -> tuple[int, int]:
    """Where the layer's normalisation lies, and its slopes."""
    if layer.shift is None:
        return address(_normalize_rms, NORM), address(_differentiate_rms, NORM_SLOPES)
    return address(_normalize, NORM), address(_differentiate_norm, NORM_SLOPES)


def is_kept(layers: Sequence[Layer], i: int) -> bool:
    """Whether the way back needs a layer's outputs: for its own slopes, or as what another layer was given."""
    plain = layers[i].activation == NONE and layers[i].scale is None
    return not plain or any(layer.source == i for layer in layers)


def begins(layers: Sequence[Layer], i: int) -> bool:
    """Whether no layer after this one and no output adds to the slopes of its source."""
    source, later = layers[i].source, layers[i + 1 :]
    if source != OBSERVATION and layers[source].column != NOWHERE:
        return False
    return not any(layer.source == source and layer.weight is not None for layer in later)


def room_for(count: int) -> np.ndarray:
    """Zeros [count] that begin with a cache line, so that a vector of a whole line is never parted between two."""
    room = np.zeros(count + PANEL, np.float32)
    first = -room.ctypes.data // room.itemsize % PANEL
    return room[first : first + count]


def stride_of(width: int) -> int:
    """Numbers from row to row: an odd number of cache lines, so that a column is not all in the same few of them."""
    return PANEL * (-(-width // PANEL) | 1)


def panels(width: int) -> int:
    """A width, rounded up to whole panels."""
    return -(-width // PANEL) * PANEL


def _place(part: Tensor | None, vectors: Sequence[Tensor]) -> int:
    """Where a parameter begins in the vectors, one behind the other, of one of which it is a view."""
    if part is None:
        return NOWHERE
    first = 0
    for vector in vectors:
        place = (part.data_ptr() - vector.data_ptr()) // part.element_size()
        if 0 <= place <= vector.numel() - part.numel():
            assert torch.equal(vector[place : place + part.numel()], part.detach().reshape(-1))
            return first + place
        first += vector.numel()
    raise AssertionError("a parameter of another vector")


@njit(nogil=True, inline="always")
def begin(network):  # type: ignore[no-untyped-def]
    """`Layers.pack`, called in compiled code; `take_back` begins its sums anew itself."""
    call_pack(network.where[PACKING], (network.table, network.parameters, network.packed, True))


@njit(nogil=True, inline="always")
def read(network):  # type: ignore[no-untyped-def]
    """`Layers.pack_forward`, called in compiled code."""
    call_pack(network.where[PACKING], (network.table, network.parameters, network.packed, False))


@njit(nogil=True, inline="always")
def put_out(network, inputs, rows):  # type: ignore[no-untyped-def]
    """`Layers.forward`, called in compiled code."""
    outputs = network.outputs[: len(rows)]
    call_forward(network.where[FORTH], (network.table, network.packed, network.memory, inputs, rows, outputs))
    return outputs


@njit(nogil=True, inline="always")
def take_back(network, slopes, anew):  # type: ignore[no-untyped-def]
    """`Layers.backward` of a network that learns, called in compiled code; for the first of several blocks `anew`."""
    places = (network.table, network.packed, network.memory, slopes, network.gradient, True, anew)
    call_backward(network.where[BACK], places)


@njit(nogil=True, inline="always")
def hand_over(network, gradient):  # type: ignore[no-untyped-def]
    """`Layers.unpack`, called in compiled code."""
    call_unpack(network.where[UNPACKING], (network.table, network.gradient, gradient))


# The passes as Python calls them: compiled for Python too, each would take several times as long as these.
@njit(calls=True, borrows=True, nogil=True)
def pack_at(where, table, parameters, packed, learns):  # type: ignore[no-untyped-def]
    call_pack(where, (table, parameters, packed, learns))


@njit(calls=True, borrows=True, nogil=True)
def unpack_at(where, table, packed, gradient):  # type: ignore[no-untyped-def]
    call_unpack(where, (table, packed, gradient))


@njit(calls=True, borrows=True, nogil=True)
def forward_at(where, table, packed, memory, inputs, rows, outputs):  # type: ignore[no-untyped-def]
    call_forward(where, (table, packed, memory, inputs, rows, outputs))


@njit(calls=True, borrows=True, nogil=True)
def backward_at(where, table, packed, memory, slopes, gradient, learns):  # type: ignore[no-untyped-def]
    call_backward(where, (table, packed, memory, slopes, gradient, learns, False))


@njit(borrows=True, nogil=True)
def pack(table, parameters, packed, learns):  # type: ignore[no-untyped-def]
    """Biases, and weights in panels, as `product` reads them: W transposed for the forward pass.

    For a network that `learns`, W for the backward one too.
    """
    for i in range(len(table) - 1):
        inputs, outputs = table[i, INPUTS], table[i, OUTPUTS]
        start = packed[table[i, START] :]
        for j in range(outputs):
            start[j] = parameters[table[i, BIAS] + j] if table[i, BIAS] >= 0 else ZERO
        if table[i, NORMED] >= 0:
            whole = (outputs + PANEL - 1) // PANEL * PANEL
            for j in range(outputs):
                start[whole + j] = parameters[table[i, SCALE] + j]
                start[2 * whole + j] = parameters[table[i, SHIFT] + j] if table[i, SHIFT] >= 0 else ZERO
        if inputs > 0:
            weight = parameters[table[i, WEIGHT] : table[i, WEIGHT] + outputs * inputs]
            if table[i, TRANSPOSED]:
                _pack_rows(weight, outputs, inputs, packed[table[i, FORWARD] :])
            else:
                _pack_transposed(weight, inputs, outputs, packed[table[i, FORWARD] :])
            if learns and table[i, TRANSPOSED]:
                _pack_transposed(weight, outputs, inputs, packed[table[i, BACKWARD] :])
            elif learns:
                _pack_rows(weight, inputs, outputs, packed[table[i, BACKWARD] :])


@njit(borrows=True, nogil=True)
def _pack_transposed(weight, inputs, outputs, to):  # type: ignore[no-untyped-def]
    """to[p, k, c] = W[16 p + c, k]."""
    for first in range(0, outputs, PANEL):
        panel, width = to[first * inputs :], PANEL if outputs - first > PANEL else outputs - first
        source = weight[first * inputs :]
        turned = inputs // LANES * LANES if width == PANEL else 0
        for k in range(0, turned, LANES):
            turn(panel, source, (k * PANEL, k, inputs))  # type: ignore[call-arg]  # numba gives the first
            turn(panel, source, (k * PANEL + LANES, LANES * inputs + k, inputs))
        for k in range(turned, inputs):
            for c in range(width):
                panel[k * PANEL + c] = source[c * inputs + k]


@njit(borrows=True, nogil=True)
def _pack_rows(weight, inputs, outputs, to):  # type: ignore[no-untyped-def]
    """to[p, j, c] = W[j, 16 p + c]."""
    for first in range(0, inputs, PANEL):
        panel, width = to[first * outputs :], PANEL if inputs - first > PANEL else inputs - first
        for j in range(outputs):
            line, source = panel[j * PANEL : j * PANEL + width], weight[j * inputs + first :]
            for c in range(width):
                line[c] = source[c]


@njit(borrows=True, nogil=True)
def unpack(table, packed, gradient):  # type: ignore[no-untyped-def]
    """The slopes of all parameters, from rows filled up to panels to rows as parameters have them."""
    for i in range(len(table) - 1):
        inputs, outputs = table[i, INPUTS], table[i, OUTPUTS]
        if table[i, BIAS] >= 0:
            to, source = gradient[table[i, BIAS] :], packed[table[i, START] :]
            for j in range(outputs):
                to[j] = source[j]
        if table[i, NORMED] >= 0:
            whole, start = (outputs + PANEL - 1) // PANEL * PANEL, table[i, START]
            for j in range(outputs):
                gradient[table[i, SCALE] + j] = packed[start + whole + j]
                if table[i, SHIFT] >= 0:
                    gradient[table[i, SHIFT] + j] = packed[start + 2 * whole + j]
        rows, width = (inputs, outputs) if table[i, TRANSPOSED] else (outputs, inputs)
        for j in range(rows if inputs > 0 else 0):
            to = gradient[table[i, WEIGHT] + j * width :]
            source = packed[table[i, GRADIENT] + j * ((width + PANEL - 1) // PANEL * PANEL) :]
            for k in range(width):
                to[k] = source[k]


@njit(calls=True, borrows=True, nogil=True)
def forward(table, packed, memory, inputs, rows, outputs):  # type: ignore[no-untyped-def]
    """All layers for the rows of `inputs` [N, inputs] that `rows` [n] names → outputs [n, outputs]."""
    count = len(rows)
    place = (table[-1, VALUES], table[-1, STRIDE], table[-1, OUTPUTS])
    call_take(table[-1, TO_TAKE], (memory, *place, inputs, rows))
    for i in range(len(table) - 1):
        layer, source = table[i], table[table[i, SOURCE]]
        to, begin = (memory, layer[VALUES], layer[STRIDE]), (packed, layer[START], STAY)
        first = (memory, source[VALUES], source[STRIDE], NEXT)
        second = (packed, layer[FORWARD], NEXT_PANEL, layer[INPUTS] * NEXT_PANEL)
        call_product(table[-1, TO_PRODUCT], (count, layer[OUTPUTS], layer[INPUTS], to, begin, first, second))
        if layer[NORMED] >= 0:
            call_norm(layer[NORMALIZE], (layer, packed[layer[START] :], memory, count))
        call_activate(table[-1, TO_ACTIVATE], (layer, memory, count))
        if layer[COLUMN] >= 0:
            columns = (layer[VALUES], layer[STRIDE], layer[COLUMN], layer[OUTPUTS])
            call_copy(table[-1, TO_COPY], (memory, *columns, outputs, True))


@njit(calls=True, borrows=True, nogil=True)
def backward(table, packed, memory, slopes, gradient, learns, anew):  # type: ignore[no-untyped-def]
    """Add ∂W = gᵀ x and ∂b = Σ g to a packed gradient, with g ← (g W) ∘ f' from layer to layer.

    `slopes` [n, outputs] are those of a loss in what `forward` has just put out. With `anew` the gradient is written
    over: to fill it with zeros and read them again would be another way through as much memory as the weights take.
    """
    count, zeros = len(slopes), table[-1, START]
    for i in range(len(table) - 1):
        layer = table[i]
        if layer[COLUMN] >= 0:
            place = (layer[SLOPES], layer[STRIDE], layer[COLUMN], layer[OUTPUTS])
            call_copy(table[-1, TO_COPY], (memory, *place, slopes, False))
    for i in range(len(table) - 2, -1, -1):
        layer, source = table[i], table[table[i, SOURCE]]
        normed = layer[NORMED] >= 0
        given_bias, alone = gradient[layer[START] :], learns and not normed
        if learns and anew:
            _clear(layer, given_bias)
        call_differentiate(table[-1, TO_DIFFERENTIATE], (layer, memory, count, given_bias, alone))
        if normed:
            start, bias = packed[layer[START] :], gradient[layer[START] :]
            call_norm_slopes(layer[DIFFERENTIATE], (layer, start, memory, count, bias, learns))
        if learns:
            given, taken = (layer[SLOPES], layer[STRIDE]), (source[VALUES], source[STRIDE])
            rows, columns = layer[OUTPUTS], layer[INPUTS]
            if layer[TRANSPOSED]:
                given, taken, rows, columns = taken, given, columns, rows
            width = (columns + PANEL - 1) // PANEL * PANEL
            to = (gradient, layer[GRADIENT], width)
            begin = (packed, zeros, STAY) if anew else to
            first, second = (memory, given[0], NEXT, given[1]), (memory, taken[0], taken[1], NEXT_PANEL)
            call_product(table[-1, TO_PRODUCT], (rows, columns, count, to, begin, first, second))
        if source[SLOPES] >= 0:
            so_far = (memory, source[SLOPES], source[STRIDE])
            begin = (packed, zeros, STAY) if layer[BEGINS] else so_far
            first = (memory, layer[SLOPES], layer[STRIDE], NEXT)
            second = (packed, layer[BACKWARD], NEXT_PANEL, layer[OUTPUTS] * NEXT_PANEL)
            sizes = (count, layer[INPUTS], layer[OUTPUTS])
            call_product(table[-1, TO_PRODUCT], (*sizes, so_far, begin, first, second))


@njit(borrows=True, nogil=True)
def _clear(layer, bias):  # type: ignore[no-untyped-def]
    """Zeros for the sums of b, and of γ and β behind it."""
    for j in range((layer[OUTPUTS] + PANEL - 1) // PANEL * PANEL * (3 if layer[NORMED] >= 0 else 1)):
        bias[j] = ZERO


@njit(borrows=True, nogil=True)
def _take(memory, at, stride, width, inputs, rows):  # type: ignore[no-untyped-def]
    """Copy some rows of `inputs` to memory."""
    for i in range(len(rows)):
        line, source = memory[at + i * stride : at + i * stride + width], inputs[rows[i]]
        for j in range(width):
            line[j] = source[j]


@njit(borrows=True, nogil=True)
def _copy(memory, at, stride, column, width, rows, out):  # type: ignore[no-untyped-def]
    """Copy columns of `rows` from memory, or to it."""
    for r in range(len(rows)):
        line = memory[at + r * stride : at + r * stride + width]
        outer = rows[r, column : column + width]
        if out:
            for j in range(width):
                outer[j] = line[j]
        else:
            for j in range(width):
                line[j] = outer[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def _activate(layer, memory, count):  # type: ignore[no-untyped-def]
    """h = f(z) in place; f'(z) is kept where it cannot be told from h."""
    kind, stride, width = layer[ACTIVATION], layer[STRIDE], layer[OUTPUTS]
    if kind == NONE:
        return
    for r in range(count):
        line = memory[layer[VALUES] + r * stride : layer[VALUES] + r * stride + width]
        if kind == TANH:
            for j in range(width):
                line[j] = tanh(line[j])
        elif kind == RELU:
            for j in range(width):
                # Not max(): what is no number stays none.
                line[j] = ZERO if line[j] < ZERO else line[j]
        elif kind == ELU:
            for j in range(width):
                line[j] = np.float32(math.expm1(line[j])) if line[j] < ZERO else line[j]
        else:
            kept = memory[layer[KEPT] + r * stride : layer[KEPT] + r * stride + width]
            for j in range(width):
                z = line[j]
                if kind == SILU:
                    share = HALF + HALF * tanh(HALF * z)
                    density = share * (ONE - share)
                else:
                    share = np.float32(0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))
                    density = np.float32(math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
                line[j], kept[j] = z * share, share + z * density


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def _normalize(layer, start, memory, count):  # type: ignore[no-untyped-def]
    """n = (z - E[z]) / √(Var[z] + ε) over the units of a row, kept with the root, and z ← γ n + β in place."""
    stride, width = layer[STRIDE], layer[OUTPUTS]
    whole = (width + PANEL - 1) // PANEL * PANEL
    scale, shift = start[whole:], start[2 * whole :]
    for r in range(count):
        line = memory[layer[VALUES] + r * stride : layer[VALUES] + r * stride + width]
        normed = memory[layer[NORMED] + r * stride : layer[NORMED] + r * stride + width]
        mean = square = ZERO
        for j in range(width):
            mean += line[j]
        mean /= np.float32(width)
        for j in range(width):
            normed[j] = line[j] - mean
            square += normed[j] * normed[j]
        inverse = ONE / np.sqrt(square / np.float32(width) + np.float32(NORM_EPSILON))
        memory[layer[NORMED] + HEIGHT * stride + r] = inverse
        for j in range(width):
            normed[j] *= inverse
            line[j] = scale[j] * normed[j] + shift[j]


@njit(borrows=True, nogil=True)
def _differentiate(layer, memory, count, bias, learns):  # type: ignore[no-untyped-def]
    """g ← g f'(z) in place, and b ← b + Σ g where the network learns, panel by panel."""
    kind, stride = layer[ACTIVATION], layer[STRIDE]
    for first in range(0, layer[OUTPUTS], PANEL):
        slopes, values = layer[SLOPES] + first, layer[VALUES] + first
        if kind == TANH:
            down_tanh(memory, bias, (slopes, values, first, stride, count, learns))
        elif kind == RELU:
            down_relu(memory, bias, (slopes, values, first, stride, count, learns))
        elif kind == ELU:
            down_elu(memory, bias, (slopes, values, first, stride, count, learns))
        elif kind == NONE:
            down_plain(memory, bias, (slopes, values, first, stride, count, learns))
        else:
            down_kept(memory, bias, (slopes, layer[KEPT] + first, first, stride, count, learns))


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def _differentiate_norm(layer, start, memory, count, bias, learns):  # type: ignore[no-untyped-def]
    """∂γ += Σ g n and ∂β += Σ g; then with u = g γ: g ← (u - E[u] - n E[u n]) / √(Var[z] + ε), and ∂b += Σ g."""
    stride, width = layer[STRIDE], layer[OUTPUTS]
    whole = (width + PANEL - 1) // PANEL * PANEL
    scale, to_scale, to_shift = start[whole:], bias[whole:], bias[2 * whole :]
    for r in range(count):
        slope = memory[layer[SLOPES] + r * stride : layer[SLOPES] + r * stride + width]
        normed = memory[layer[NORMED] + r * stride : layer[NORMED] + r * stride + width]
        for j in range(width if learns else 0):
            to_scale[j] += slope[j] * normed[j]
            to_shift[j] += slope[j]
        mean = along = ZERO
        for j in range(width):
            slope[j] *= scale[j]
            mean += slope[j]
            along += slope[j] * normed[j]
        mean, along = mean / np.float32(width), along / np.float32(width)
        inverse = memory[layer[NORMED] + HEIGHT * stride + r]
        for j in range(width):
            slope[j] = (slope[j] - mean - normed[j] * along) * inverse
        for j in range(width if learns else 0):
            bias[j] += slope[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def _normalize_rms(layer, start, memory, count):  # type: ignore[no-untyped-def]
    """n = z / √(E[z²] + ε) over the units of a row, kept with the root, and z ← γ n in place."""
    stride, width = layer[STRIDE], layer[OUTPUTS]
    scale = start[(width + PANEL - 1) // PANEL * PANEL :]
    for r in range(count):
        line = memory[layer[VALUES] + r * stride : layer[VALUES] + r * stride + width]
        normed = memory[layer[NORMED] + r * stride : layer[NORMED] + r * stride + width]
        square = ZERO
        for j in range(width):
            square += line[j] * line[j]
        inverse = ONE / np.sqrt(square / np.float32(width) + np.float32(RMS_EPSILON))
        memory[layer[NORMED] + HEIGHT * stride + r] = inverse
        for j in range(width):
            normed[j] = line[j] * inverse
            line[j] = scale[j] * normed[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def _differentiate_rms(layer, start, memory, count, bias, learns):  # type: ignore[no-untyped-def]
    """∂γ += Σ g n; then with u = g γ: g ← (u - n E[u n]) / √(E[z²] + ε), and ∂b += Σ g."""
    stride, width = layer[STRIDE], layer[OUTPUTS]
    whole = (width + PANEL - 1) // PANEL * PANEL
    scale, to_scale = start[whole:], bias[whole:]
    for r in range(count):
        slope = memory[layer[SLOPES] + r * stride : layer[SLOPES] + r * stride + width]
        normed = memory[layer[NORMED] + r * stride : layer[NORMED] + r * stride + width]
        for j in range(width if learns else 0):
            to_scale[j] += slope[j] * normed[j]
        along = ZERO
        for j in range(width):
            slope[j] *= scale[j]
            along += slope[j] * normed[j]
        along /= np.float32(width)
        inverse = memory[layer[NORMED] + HEIGHT * stride + r]
        for j in range(width):
            slope[j] = (slope[j] - normed[j] * along) * inverse
        for j in range(width if learns else 0):
            bias[j] += slope[j]
