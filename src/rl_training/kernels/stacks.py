"""Stacks of dense layers as torch modules: compiled passes over blocks of rows, and gradients for torch's autograd.

Gradients of the inputs go on through autograd. Those of the parameters are written to an optimizer's vector: a sum over
all calls since `begin`, which every backward pass puts in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import njit
from rl_training.kernels.layers import (
    BACK,
    FORTH,
    HEIGHT,
    NOWHERE,
    SLOPES,
    STRIDE,
    TO_TAKE,
    VALUES,
    Layers,
    Network,
    call_backward,
    call_forward,
    call_take,
    room_for,
)

MOST_KEPT = 2**22  # numbers: 16 MB


class Stack(nn.Module):
    """Rows [..., inputs] → [..., outputs] by layers in compiled code; `gradient` is the vector of their gradients.

    Values in between are kept for the backward pass while all blocks of rows fit into the cache; beyond, they are
    computed again, which is cheaper than to fetch them from memory. Blocks lie so close that what one hands on within
    a pass is where another keeps its values: the forward pass begins with the last one, the backward pass with the
    first.
    """

    def __init__(self, layers: Layers, gradient: Tensor) -> None:
        super().__init__()
        self.dense, self.network, self.gradient = layers, tuple(layers.network), gradient.numpy()
        # Without something to differentiate, autograd would not come back where inputs have no gradient.
        self.anchor = torch.zeros((), requires_grad=True)
        self.blind = layers.table.copy()  # as one whose inputs have no gradients
        self.blind[-1, SLOPES] = NOWHERE
        self.free: list[np.ndarray] = []  # memory of backward passes that are done

    def begin(self) -> None:
        """Read the parameters as they are now; gradients begin anew."""
        self.dense.pack()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.dense.inputs)
        if torch.is_grad_enabled():
            out = _Stacked.apply(rows, self.anchor, self)
        else:
            out = self.rows_forward(rows, self.memory(1))
        return out.view(*x.shape[:-1], self.dense.outputs)

    def memory(self, count: int) -> np.ndarray:
        """Room for the values of this many rows, or of one block."""
        one, blocks = len(self.dense.memory), -(-count // HEIGHT)
        size = self.dense.handed + blocks * (one - self.dense.handed)
        if blocks == 1 or size > MOST_KEPT:
            return self.dense.memory
        for i, each in enumerate(self.free):
            if len(each) == size:
                return self.free.pop(i)
        return room_for(size)

    def rows_forward(self, rows: Tensor, memory: np.ndarray) -> Tensor:
        out = np.empty((len(rows), self.dense.outputs), np.float32)
        inputs = rows.detach().contiguous().numpy()
        _forward(self.network, memory, len(self.dense.memory) - self.dense.handed, inputs, out)
        return torch.from_numpy(out)


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, anchor: Tensor, stack: Stack) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.stack, ctx.memory = stack, stack.memory(len(rows))
        return stack.rows_forward(rows, ctx.memory)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None]:
        (rows,), stack, memory, ctx.memory = ctx.saved_tensors, ctx.stack, ctx.memory, None
        inputs, kept = rows.detach().contiguous().numpy(), len(stack.dense.memory) - stack.dense.handed
        if memory is None:  # of a graph that is gone through once more
            memory = stack.memory(len(rows))
            stack.rows_forward(rows, memory)
        passes = stack.dense.passes and ctx.needs_input_grad[0]
        to_rows = np.empty(inputs.shape if passes else (0, inputs.shape[1]), np.float32)
        table = stack.dense.table if passes else stack.blind
        _backward(stack.network, table, memory, kept, inputs, slope.contiguous().numpy(), to_rows)
        stack.dense.unpack(stack.gradient)
        if memory is not stack.dense.memory:
            stack.free.append(memory)
        return torch.from_numpy(to_rows) if passes else None, None, None


@njit(nogil=True)
def _block(network, memory, kept, first):  # type: ignore[no-untyped-def]
    """The memory of the block of rows that begins there."""
    at = first // HEIGHT * kept if len(memory) > len(network.memory) else 0
    return memory[at : at + len(network.memory)]


@njit(nogil=True, error_model="numpy")
def _forward(network, memory, kept, inputs, outputs):  # type: ignore[no-untyped-def]
    net, order = Network(*network), np.arange(len(inputs))
    for first in range((len(inputs) - 1) // HEIGHT * HEIGHT, -1, -HEIGHT):
        rows, out = order[first : first + HEIGHT], outputs[first : first + HEIGHT]
        block = _block(net, memory, kept, first)
        call_forward(net.where[FORTH], (net.table, net.packed, block, inputs, rows, out))


@njit(nogil=True, error_model="numpy")
def _backward(network, table, memory, kept, inputs, slopes, to_inputs):  # type: ignore[no-untyped-def]
    """Add up gradients, block by block."""
    net, order = Network(*network), np.arange(len(inputs))
    at, stride, width = table[-1, SLOPES], table[-1, STRIDE], inputs.shape[1]
    for first in range(0, len(inputs), HEIGHT):
        rows, slope = order[first : first + HEIGHT], slopes[first : first + HEIGHT]
        block = _block(net, memory, kept, first)
        if len(memory) == len(net.memory):  # other rows have been here since
            out = net.outputs[: len(rows)]
            call_forward(net.where[FORTH], (net.table, net.packed, block, inputs, rows, out))
        else:
            place = (table[-1, VALUES], stride, width)
            call_take(table[-1, TO_TAKE], (block, *place, inputs, rows))
        call_backward(net.where[BACK], (table, net.packed, block, slope, net.gradient, True, False))
        for r in range(len(rows) if len(to_inputs) else 0):
            for j in range(width):
                to_inputs[first + r, j] = block[at + r * stride + j]
