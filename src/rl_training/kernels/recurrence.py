"""A recurrent state-space model (RSSM) over whole sequences, compiled: forward, and backward through time by hand.

`networks.rssm` has the equations. Of its weights these are read as panels, in which `multiply` takes them:

    n₁ = h D + d        n₂ = z S + s        y = SiLU(RMSNorm(n))        x = SiLU(RMSNorm(a + y₁ U₁ + y₂ U₂ + h O))
    h' = GRU(x G, h)        p = SiLU(RMSNorm(o + h' P))        z' ~ softmax(p Q + q)

a is what the action adds and o what the observation adds, for all steps at once and by torch; O and G are in blocks.
Sizes are multiples of 16. Both ways are programs: an operation is a row of a table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.fused import (
    draw_backward,
    draw_forward,
    gate_backward,
    gate_forward,
    norm_backward,
    norm_forward,
    room_to_draw,
)
from rl_training.kernels.layers import HEIGHT, room_for
from rl_training.kernels.products import PANEL
from rl_training.kernels.programs import Program, add, carry


class Panels:
    """Matrices as `multiply` takes them; `read` takes them from the parameters as they are now."""

    def __init__(self) -> None:
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def matrix(self, weight: Tensor) -> np.ndarray:
        """[..., k, n] → [..., n / 16, k, 16], the last panel filled up with zeros."""
        source = weight.detach().numpy()
        *others, depth, width = source.shape
        to, whole = room(*others, -(-width // PANEL), depth, PANEL), width // PANEL
        split = source[..., : whole * PANEL].reshape(*others, depth, whole, PANEL)
        self.pairs.append((to[..., :whole, :, :], split.swapaxes(-3, -2)))
        if width % PANEL:
            self.pairs.append((to[..., -1, :, : width % PANEL], source[..., whole * PANEL :]))
        return to

    def vector(self, bias: Tensor) -> np.ndarray:
        """A bias, filled up as the columns of its matrix are."""
        source = bias.detach().numpy()
        if len(source) % PANEL == 0:
            return source
        to = room(-(-len(source) // PANEL) * PANEL)
        self.pairs.append((to[: len(source)], source))
        return to

    def read(self) -> None:
        for to, source in self.pairs:
            to[...] = source


def room(*shape: int) -> np.ndarray:
    return room_for(int(np.prod(shape))).reshape(shape)


class Weights(NamedTuple):
    """Panels [..., n / 16, k, 16] of matrices [..., k, n]."""

    from_deter: np.ndarray
    from_stoch: np.ndarray
    shared: np.ndarray  # [2, ...]
    own: np.ndarray  # [G, ...]
    gates: np.ndarray  # [G, ...]
    posterior: np.ndarray
    head: np.ndarray


class Vectors(NamedTuple):
    """Biases and scales, where the parameters are."""

    deter_bias: np.ndarray
    deter_scale: np.ndarray
    stoch_bias: np.ndarray
    stoch_scale: np.ndarray
    scale: np.ndarray
    gates_bias: np.ndarray
    posterior_scale: np.ndarray
    head_bias: np.ndarray


class Between(NamedTuple):
    """What a step of the memory leaves for the way back, [T, N, ...]; or [N, ...], where there is none."""

    plain: tuple[np.ndarray, np.ndarray]  # before RMSNorm, from h and from z
    hidden: tuple[np.ndarray, np.ndarray]
    inverse: tuple[np.ndarray, np.ndarray, np.ndarray]  # of the three RMSNorms
    total: np.ndarray  # [D], before RMSNorm
    inputs: np.ndarray  # [D], of the gates
    gates: np.ndarray  # [3 D]


class Recurrence:
    """The compiled passes over the weights of an `RSSM`; gradients go to where its parameters have them."""

    def __init__(self, rssm: Any) -> None:
        self.rssm, self.panels = rssm, Panels()
        size, self.hidden = rssm.deter_size, len(rssm.from_deter.scale)
        matrices = (
            rssm.from_deter.linear.weight.t(),
            rssm.from_stoch.linear.weight.t(),
            rssm.shared[: 2 * self.hidden].unflatten(0, (2, -1)),
            rssm.own.weight,
            rssm.gates.weight,
            rssm.posterior_layer.linear.weight[:, :size].t(),
            rssm.posterior_head.weight.t(),
        )
        self.weights = Weights(*map(self.panels.matrix, matrices))
        self.back = Weights(*(self.panels.matrix(matrix.transpose(-1, -2)) for matrix in matrices))
        vectors = (
            rssm.from_deter.linear.bias,
            rssm.from_deter.scale,
            rssm.from_stoch.linear.bias,
            rssm.from_stoch.scale,
            rssm.scale,
            rssm.gates.bias,
            rssm.posterior_layer.scale,
            rssm.posterior_head.bias,
        )
        self.vectors = Vectors(*(vector.detach().numpy() for vector in vectors))
        self.size, self.stoch, self.blocks = size, rssm.stoch_size, len(rssm.own.weight)
        self.free: list[Sequences] = []  # whose backward passes are done
        self.single: dict[int, Memory] = {}
        self.begin()

    def begin(self) -> None:
        """Read the parameters as they are now."""
        self.panels.read()

    def between(self, *lead: int) -> Between:
        hidden, size = [room(*lead, self.hidden) for _ in range(4)], (*lead, self.size)
        inverse = (room(*lead, 1), room(*lead, 1), room(*lead, 1))
        gates = room(*lead, 3 * self.size)
        return Between(
            (hidden[0], hidden[1]), (hidden[2], hidden[3]), inverse, room(*size), room(*size), gates
        )

    def gate_sizes(self) -> tuple[int, int, int]:
        width = self.size // self.blocks
        return width, self.blocks, 3 * width

    def columns(self, each: int) -> list[tuple[int, slice]]:
        """The columns of each block, of `each` units."""
        return [(block, slice(block * each, (block + 1) * each)) for block in range(self.blocks)]

    def add_memory(
        self,
        program: Program,
        deter: np.ndarray,
        stoch: np.ndarray,
        action: np.ndarray,
        out: np.ndarray,
        of: Between,
    ) -> None:
        """h' = f(h, z, a), each a view of [T, N, ...] or [N, ...]."""
        w, v, width = self.weights, self.vectors, self.size // self.blocks
        for i, (x, weight, bias, scale) in enumerate(
            (
                (deter, w.from_deter, v.deter_bias, v.deter_scale),
                (stoch, w.from_stoch, v.stoch_bias, v.stoch_scale),
            )
        ):
            program.multiply(of.plain[i], bias, x, weight)
            program.add(norm_forward, of.plain[i], scale, of.hidden[i], of.inverse[i], sizes=(self.hidden,))
        program.multiply(of.total, action, of.hidden[0], w.shared[0])
        program.multiply(of.total, of.total, of.hidden[1], w.shared[1])
        for block, at in self.columns(width):
            program.multiply(of.total[..., at], of.total[..., at], deter[..., at], w.own[block])
        program.add(norm_forward, of.total, v.scale, of.inputs, of.inverse[2], sizes=(self.size,))
        nothing = np.zeros(3 * width, np.float32)
        for (block, at), (_, to) in zip(self.columns(width), self.columns(3 * width), strict=True):
            program.multiply(of.gates[..., to], nothing, of.inputs[..., at], w.gates[block])
        program.add(gate_forward, of.gates, v.gates_bias, deter, out, sizes=self.gate_sizes())

    def remember(self, deter: Tensor, stoch: Tensor, action_inputs: Tensor) -> Tensor:
        """h' [N, D] without gradients, a block of rows that stays in the cache at a time."""
        out = torch.empty(deter.shape)
        height = min(HEIGHT, len(out))
        if height not in self.single:
            self.single[height] = Memory(self, height)
        memory = self.single[height]
        for first in range(0, len(out), HEIGHT):
            # The last block begins early: rows that come twice come to the same.
            start = min(first, len(out) - height)
            rows = slice(start, start + height)
            out[rows] = memory.run(deter[rows], stoch[rows], action_inputs[rows])
        return out

    def sequences(self, steps: int, count: int) -> Sequences:
        for i, each in enumerate(self.free):
            if each.shape == (steps, count):
                return self.free.pop(i)
        return Sequences(self, steps, count)

    def add_gradients(self, of: Sequences) -> None:
        """Add to the gradients of all weights, from rows of all steps at once."""
        rssm, slopes, width = self.rssm, of.slopes, 2 * self.hidden
        before, drawn, states, seen = map(rows_of, (of.before, of.drawn, of.states[1:], of.posterior))
        total, logits, token = map(rows_of, (slopes.total, slopes.logits, slopes.token))
        plain, hidden = (
            map(rows_of, slopes.plain),
            torch.cat([rows_of(part) for part in of.between.hidden], 1),
        )
        to_deter, to_stoch = plain
        blocks = (self.blocks, -1)
        with torch.no_grad():
            for layer, slope, rows in (
                (rssm.from_deter.linear, to_deter, before),
                (rssm.from_stoch.linear, to_stoch, drawn),
                (rssm.posterior_head, logits, seen),
            ):
                layer.weight.grad.addmm_(slope.t(), rows)
                layer.bias.grad += slope.sum(0)
            rssm.posterior_layer.linear.weight.grad[:, : self.size] += token.t() @ states
            rssm.shared.grad[:width] += hidden.t() @ total
            inputs, gates, owned, into = (
                part.unflatten(-1, blocks).transpose(0, 1)
                for part in (rows_of(of.between.inputs), rows_of(slopes.gates), before, total)
            )
            rssm.gates.weight.grad.baddbmm_(inputs.transpose(1, 2), gates)
            rssm.own.weight.grad.baddbmm_(owned.transpose(1, 2), into)
            for parameter, vector in (
                (rssm.gates.bias, slopes.gates_bias),
                (rssm.from_deter.scale, slopes.scales[0]),
                (rssm.from_stoch.scale, slopes.scales[1]),
                (rssm.posterior_layer.scale, slopes.scales[2]),
                (rssm.scale, slopes.scale),
            ):
                parameter.grad += torch.from_numpy(vector)


def rows_of(array: np.ndarray) -> Tensor:
    """[T, N, ...] → [T · N, ...]."""
    return torch.from_numpy(array).flatten(0, 1)


class Memory:
    """h' of N rows, without a way back."""

    def __init__(self, recurrence: Recurrence, count: int) -> None:
        self.count, self.program, size = count, Program(), recurrence.size
        self.given = (room(count, size), room(count, recurrence.stoch), room(count, size))
        self.out = room(count, size)
        recurrence.add_memory(self.program, *self.given, self.out, recurrence.between(count))

    def run(self, *given: Tensor) -> Tensor:
        for to, part in zip(self.given, given, strict=True):
            to[...] = part.detach().numpy()
        self.program.run(self.count, range(1))
        return torch.from_numpy(self.out)


class Slopes(NamedTuple):
    """The slopes of a loss in what is between, [T, N, ...], and in biases and the scales of RMSNorms."""

    total: np.ndarray  # also those of a
    token: np.ndarray  # also those of o
    logits: np.ndarray
    plain: tuple[np.ndarray, np.ndarray]
    gates: np.ndarray
    gates_bias: np.ndarray
    scales: np.ndarray  # [3, hidden]
    scale: np.ndarray  # [D]


class Sequences:
    """T steps of N sequences: their memory, and the programs of both ways."""

    def __init__(self, recurrence: Recurrence, steps: int, count: int) -> None:
        self.recurrence, self.shape = recurrence, (steps, count)
        size, stoch, hidden = recurrence.size, recurrence.stoch, recurrence.hidden
        choices, lead = recurrence.rssm.num_latents, (steps, count)
        self.sizes = (stoch // choices, choices)
        self.action, self.token = room(*lead, size), room(*lead, hidden)
        self.noise, self.first = room(*lead, choices), room(*lead, 1)
        # Row 0 is the state that they begin with. Before a step it is zeros where an episode begins.
        self.states, self.stochs = room(steps + 1, count, size), room(steps + 1, count, stoch)
        self.before, self.drawn = room(*lead, size), room(*lead, stoch)
        self.between = recurrence.between(*lead)
        self.seen, self.posterior, self.inverse = room(*lead, hidden), room(*lead, hidden), room(*lead, 1)
        self.probs, self.room = room(*lead, stoch), room_to_draw(choices)
        self.to_deter, self.to_stoch, self.to_probs = (
            room(*lead, size),
            room(*lead, stoch),
            room(*lead, stoch),
        )
        plain, gates = (room(*lead, hidden), room(*lead, hidden)), room(*lead, 3 * size)
        self.slopes = Slopes(
            *(room(*lead, size), room(*lead, hidden), room(*lead, stoch), plain, gates),
            *(room(3 * size), room(3, hidden), room(size)),
        )
        self.deter, self.stoch = room(count, size), room(count, stoch)  # slopes that go on to the step before
        self.forth, self.back = self.forward_program(), self.backward_program()

    def forward_program(self) -> Program:
        program, r = Program(), self.recurrence
        w, v, state = r.weights, r.vectors, self.states[1:]
        program.add(carry, self.before, self.states[:-1], self.first, sizes=(r.size,))
        program.add(carry, self.drawn, self.stochs[:-1], self.first, sizes=(r.stoch,))
        r.add_memory(program, self.before, self.drawn, self.action, state, self.between)
        logits = room(self.shape[1], r.stoch)
        program.multiply(self.seen, self.token, state, w.posterior)
        program.add(
            norm_forward, self.seen, v.posterior_scale, self.posterior, self.inverse, sizes=(r.hidden,)
        )
        program.multiply(logits, v.head_bias, self.posterior, w.head)
        program.add(
            draw_forward, logits, self.noise, self.stochs[1:], self.probs, self.room, sizes=self.sizes
        )
        return program

    def backward_program(self) -> Program:
        """The chain rule through a step, from its last operation to its first."""
        program, r, of, slopes = Program(), self.recurrence, self.between, self.slopes
        w, v, count, deter, stoch = r.back, r.vectors, self.shape[1], self.deter, self.stoch
        to_hidden, to_inputs, before = room(count, r.hidden), room(count, r.size), room(count, r.size)
        nothing = np.zeros(max(r.size, r.hidden, r.stoch), np.float32)

        def norm(x: np.ndarray, scale: np.ndarray, inverse: np.ndarray, *rest: np.ndarray) -> None:
            program.add(norm_backward, x, scale, inverse, *rest, sizes=(len(scale),))

        program.add(add, stoch, self.to_stoch, sizes=(r.stoch,))
        program.add(
            draw_backward, self.probs, stoch, self.to_probs, slopes.logits, self.room, sizes=self.sizes
        )
        program.multiply(to_hidden, nothing, slopes.logits, w.head)
        norm(self.seen, v.posterior_scale, self.inverse, to_hidden, slopes.token, slopes.scales[2])
        program.add(add, deter, self.to_deter, sizes=(r.size,))
        program.multiply(deter, deter, slopes.token, w.posterior)
        gated = (of.gates, v.gates_bias, self.before, deter, slopes.gates, before, slopes.gates_bias)
        program.add(gate_backward, *gated, sizes=r.gate_sizes())
        width = r.size // r.blocks
        for (block, to), (_, at) in zip(r.columns(width), r.columns(3 * width), strict=True):
            program.multiply(to_inputs[..., to], nothing, slopes.gates[..., at], w.gates[block])
        norm(of.total, v.scale, of.inverse[2], to_inputs, slopes.total, slopes.scale)
        for block, at in r.columns(width):
            program.multiply(before[..., at], before[..., at], slopes.total[..., at], w.own[block])
        for i, scale in enumerate((v.deter_scale, v.stoch_scale)):
            program.multiply(to_hidden, nothing, slopes.total, w.shared[i])
            norm(of.plain[i], scale, of.inverse[i], to_hidden, slopes.plain[i], slopes.scales[i])
        program.multiply(deter, before, slopes.plain[0], w.from_deter)
        program.multiply(stoch, nothing, slopes.plain[1], w.from_stoch)
        program.add(carry, deter, deter, self.first, sizes=(r.size,))
        program.add(carry, stoch, stoch, self.first, sizes=(r.stoch,))
        return program

    def forward(
        self, action: Tensor, token: Tensor, deter: Tensor, stoch: Tensor, noise: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        given = (action, token, deter, stoch, noise, first.unsqueeze(-1))
        places = (self.action, self.token, self.states[0], self.stochs[0], self.noise, self.first)
        for to, part in zip(places, given, strict=True):
            to[...] = part.detach().numpy()
        steps, count = self.shape
        self.forth.run(count, range(steps))
        results = [torch.from_numpy(part).clone() for part in (self.states[1:], self.stochs[1:], self.probs)]
        return results[0], results[1], results[2].unflatten(-1, self.sizes)

    def backward(self, to_deter: Tensor, to_stoch: Tensor, to_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The slopes of a and o, from those of what `forward` gave."""
        given = (to_deter, to_stoch, to_probs.flatten(-2))
        for to, part in zip((self.to_deter, self.to_stoch, self.to_probs), given, strict=True):
            to[...] = part.numpy()
        slopes = self.slopes
        for sums in (self.deter, self.stoch, slopes.gates_bias, slopes.scales, slopes.scale):
            sums[...] = 0
        steps, count = self.shape
        self.back.run(count, range(steps - 1, -1, -1))
        return torch.from_numpy(slopes.total).clone(), torch.from_numpy(slopes.token).clone()


def observe(
    recurrence: Recurrence,
    state: tuple[Tensor, Tensor],
    inputs: tuple[Tensor, Tensor],
    noise: Tensor,
    first: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """States h [T, N, D] and z [T, N, K · S] and their probabilities [T, N, K, S].

    inputs: a [T, N, D] and o [T, N, hidden]; noise [T, N, S]; first [T, N]: where states before are zeros
    """
    return _Observe.apply(*inputs, *state, noise, first, recurrence)


class _Observe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        *tensors, ctx.recurrence = given
        ctx.sequences = ctx.recurrence.sequences(*tensors[0].shape[:2])
        return ctx.sequences.forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        to_action, to_token = ctx.sequences.backward(*slopes)
        ctx.recurrence.add_gradients(ctx.sequences)
        if ctx.sequences not in ctx.recurrence.free:  # a graph may be gone through twice
            ctx.recurrence.free.append(ctx.sequences)
        return to_action, to_token, None, None, None, None, None
