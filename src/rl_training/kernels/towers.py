"""Dense layers over a world model's states as parts of programs: forward, and backward by hand.

A state is h [D] and z, one-hot choices of which only the places of the ones are given: `picks`. So the share of z in a
first layer is a sum of a few rows of its weights, and the slopes of those weights are added up in the same few rows.
Between layers stand RMSNorm and SiLU. Sizes but those of outputs are multiples of 16. Slopes of weights go to where the
parameters have them, added to what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rl_training.compiling import njit
from rl_training.kernels.functions import FAST
from rl_training.kernels.fused import norm_backward, norm_forward
from rl_training.kernels.products import PANEL
from rl_training.kernels.programs import SIZES, Program, line, outer, pick, sum_rows
from rl_training.kernels.recurrence import Panels, room


class States(NamedTuple):
    """What towers see: views [T, N, ...] or [N, ...]."""

    deter: np.ndarray  # or other numbers, filled up to whole panels
    picks: np.ndarray = np.zeros((1, 0), np.float32)  # [S]: places in z


class Parameters(NamedTuple):
    """A dense layer, with RMSNorm and SiLU behind it where it has a scale."""

    weight: Tensor
    bias: Tensor
    scale: Tensor | None
    slopes: tuple[np.ndarray, ...]  # of those; none of a layer that does not learn

    @classmethod
    def of(cls, module: Any) -> Parameters:
        """Those of a `Dense` or a plain layer."""
        linear, scale = getattr(module, "linear", module), getattr(module, "scale", None)
        parts = [linear.weight, linear.bias] + ([] if scale is None else [scale])
        # A frozen layer has gradients, too, and may learn again.
        slopes = () if linear.weight.grad is None else tuple(part.grad.numpy() for part in parts)
        return cls(linear.weight, linear.bias, scale, slopes)


class Kept(NamedTuple):
    """What a way there leaves for the way back: of every hidden layer, and the outputs, filled up to whole panels."""

    plain: list[np.ndarray]  # before RMSNorm
    inverse: list[np.ndarray]
    hidden: list[np.ndarray]  # behind it; the same memory in all steps, for it costs less to compute it anew
    out: np.ndarray

    def at(self, step: int) -> Kept:
        """That of one step."""
        plain, inverse = ([part[step] for part in parts] for parts in (self.plain, self.inverse))
        return Kept(plain, inverse, self.hidden, self.out[step])


class _Layer:
    """A dense layer: weights as panels for both ways, and where their slopes are added up."""

    def __init__(self, panels: Panels, of: Parameters, width: int) -> None:
        """width: of the inputs that are given as numbers; what follows is one-hot."""
        weight = of.weight
        self.outputs, self.width = len(weight), width
        self.weight, self.bias = panels.matrix(weight[:, :width].t()), panels.vector(of.bias)
        self.table = panels.plain(weight[:, width:].t())
        self.scale = None if of.scale is None else of.scale.detach().numpy()
        self.sums: list[tuple[np.ndarray, np.ndarray]] = []  # to be added to slopes, which are views
        if of.slopes:
            self.back = panels.matrix(weight)
            self.to_weight, self.to_bias = of.slopes[0][:, :width], of.slopes[1]
            self.to_scale = of.slopes[-1]
            self.to_table = room(*self.table.shape)
            if self.table.size:
                self.sums.append((of.slopes[0][:, width:], self.to_table.T))
            if width % PANEL or self.to_weight.strides[1] > self.to_weight.itemsize:
                apart = room(self.outputs, whole(width))
                self.sums.append((self.to_weight, apart[:, :width]))
                self.to_weight = apart


class Tower:
    """Hidden layers and an output layer over the states [..., F], over h alone or over other numbers."""

    def __init__(self, panels: Panels, parts: Sequence[Parameters], width: int, floor: float = 0.0) -> None:
        """width: of the inputs that are given as numbers; floor: with which outputs are filled up to whole panels."""
        widths = [width, *(len(part.weight) for part in parts[:-1])]
        self.layers = [_Layer(panels, part, width) for part, width in zip(parts, widths, strict=True)]
        self.outputs = self.layers[-1].outputs
        self.layers[-1].bias[self.outputs :] = floor

    def room(self, *lead: int) -> Kept:
        hidden = self.layers[:-1]
        plain, after = (
            [room(*shape, whole(layer.outputs)) for layer in hidden] for shape in (lead, lead[-1:])
        )
        return Kept(plain, [room(*lead, 1) for _ in hidden], after, room(*lead, whole(self.outputs)))

    def forward(self, program: Program, states: States, kept: Kept) -> None:
        x = states.deter
        for i, layer in enumerate(self.layers):
            y = kept.out if layer is self.layers[-1] else kept.plain[i]
            begin = layer.bias
            if layer.table.size:
                arrays = (y, begin, layer.table, states.picks)
                program.add(pick, *arrays, sizes=(layer.outputs, states.picks.shape[-1]))
                begin = y
            program.multiply(y, begin, x, layer.weight)
            if layer.scale is not None:
                x = kept.hidden[i]
                program.add(norm_forward, y, layer.scale, x, kept.inverse[i], sizes=(layer.outputs,))

    def backward(
        self, program: Program, states: States, kept: Kept, slopes: np.ndarray, to_states: np.ndarray | None
    ) -> None:
        """Add up the slopes of weights from those of the outputs; those of states [..., F] are added to `to_states`."""
        count = slopes.shape[-2]
        for i, layer in reversed(list(enumerate(self.layers))):
            x, to_plain = states.deter, slopes
            if i:
                below, x = self.layers[i - 1], kept.hidden[i - 1]
                assert below.scale is not None
                to_hidden, to_plain = (room(count, whole(below.outputs)) for _ in range(2))
                program.multiply(to_hidden, nothing(below.outputs), slopes, layer.back)
                arrays = (kept.plain[i - 1], below.scale, kept.inverse[i - 1], to_hidden, to_plain)
                program.add(norm_backward, *arrays, below.to_scale, x, sizes=(below.outputs,))
            elif to_states is not None:
                program.multiply(to_states, to_states, slopes, layer.back)
            outer(program, layer.to_weight, slopes, x)
            program.add(sum_rows, layer.to_bias, slopes, sizes=(layer.outputs,))
            if layer.table.size:
                sizes = (layer.outputs, states.picks.shape[-1])
                program.add(scatter, layer.to_table, slopes, states.picks, sizes=sizes)
            slopes = to_plain

    def hand_over(self) -> None:
        """Add what was summed up elsewhere to the slopes of the parameters; these sums begin anew."""
        for slopes, sums in (pair for layer in self.layers for pair in layer.sums):
            slopes += sums
            sums[...] = 0


def whole(width: int) -> int:
    """Rounded up to whole panels."""
    return -(-width // PANEL) * PANEL


def nothing(width: int) -> np.ndarray:
    return np.zeros(whole(width), np.float32)


@njit(borrows=True, nogil=True, fastmath=FAST)
def scatter(op, step, rows):  # type: ignore[no-untyped-def]
    """Add each row of b to the rows of a table that its picks name."""
    width, count = op[SIZES], op[SIZES + 1]
    for i in range(rows):
        source, picks = line(op, 1, step, i, width), line(op, 2, step, i, count)
        for s in range(count):
            to = line(op, 0, 0, np.int64(picks[s]), width)
            for j in range(width):
                to[j] += source[j]
