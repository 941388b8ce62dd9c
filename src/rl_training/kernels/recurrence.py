"""A recurrent state-space model (RSSM) over whole sequences, compiled: forward, and backward through time by hand.

`networks.rssm` has the equations. Of its weights these are read as panels, in which `multiply` takes them:

    n₁ = h D + d        n₂ = z S + s        y = SiLU(RMSNorm(n))        x = SiLU(RMSNorm(a + y₁ U₁ + y₂ U₂ + h O))
    h' = GRU(x G, h)        p = SiLU(RMSNorm(o + h' P))        z' ~ softmax(p Q + q)

a is what the action adds and o what the observation adds, for all steps at once and by torch; O and G are in blocks.
Sizes are multiples of 16. Both ways are programs: an operation is a row of a table.
"""

from __future__ import annotations

from itertools import cycle
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
from rl_training.kernels.programs import Program, add, carry, outer, pack_rows, pack_turned, pick, sum_rows

PAGE = 1024  # numbers
APART = cycle(range(0, PAGE, 9 * PANEL))


class Panels:
    """Matrices as `multiply` takes them; `read` takes them from the parameters as they are now."""

    def __init__(self) -> None:
        self.program = Program()
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def matrix(self, weight: Tensor) -> np.ndarray:
        """[..., k, n] → [..., n / 16, k, 16], the last panel filled up with zeros."""
        source = weight.detach().numpy()
        *others, depth, width = source.shape
        to = room(*others, -(-width // PANEL), depth, PANEL)
        for place in np.ndindex(*others) if source.size else ():
            panels, matrix = to[place].reshape(-1), source[place]
            if matrix.strides[1] == matrix.itemsize:
                self.program.add(pack_rows, panels, matrix, sizes=(depth, width))
            else:
                self.program.add(pack_turned, panels, matrix.T, sizes=(width, depth))
        return to

    def vector(self, bias: Tensor) -> np.ndarray:
        """A bias, filled up as the columns of its matrix are."""
        source = bias.detach().numpy()
        if len(source) % PANEL == 0:
            return source
        to = room(-(-len(source) // PANEL) * PANEL)
        self.pairs.append((to[: len(source)], source))
        return to

    def plain(self, weight: Tensor) -> np.ndarray:
        """A matrix as it is, its rows without gaps."""
        to = room(*weight.shape)
        self.pairs.append((to, weight.detach().numpy()))
        return to

    def read(self) -> None:
        self.program.run(1, range(1))
        for to, source in self.pairs:
            to[...] = source


def room(*shape: int) -> np.ndarray:
    """Zeros that begin with a cache line, and each time at another place of a page.

    Of rows that lie equally far in two pages, a load from one waits for what was just stored in the other.
    """
    count, first = int(np.prod(shape)), next(APART)
    return room_for(count + PAGE)[first : first + count].reshape(shape)


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
        self.laid: Sequences | None = None
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
        stoch: np.ndarray | tuple[np.ndarray, np.ndarray],
        action: np.ndarray,
        out: np.ndarray,
        of: Between,
    ) -> None:
        """h' = f(h, z, a), each a view of [T, N, ...] or [N, ...]; z perhaps as a table Sᵀ and places in it."""
        w, v, width = self.weights, self.vectors, self.size // self.blocks
        program.multiply(of.plain[0], v.deter_bias, deter, w.from_deter)
        if isinstance(stoch, tuple):
            sizes = (self.hidden, stoch[1].shape[-1])
            program.add(pick, of.plain[1], v.stoch_bias, *stoch, sizes=sizes)
        else:
            program.multiply(of.plain[1], v.stoch_bias, stoch, w.from_stoch)
        for i, scale in enumerate((v.deter_scale, v.stoch_scale)):
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
        if self.laid is None or self.laid.shape != (steps, count):
            self.laid = Sequences(self, steps, count)
        return self.laid


def rows_of(array: np.ndarray) -> np.ndarray:
    """[T, N, ...] → [T · N, ...]."""
    return array.reshape(-1, array.shape[-1])


def slopes_of(parameter: Tensor) -> np.ndarray:
    """Where a parameter has its gradient."""
    assert parameter.grad is not None
    slopes: np.ndarray = parameter.grad.numpy()
    return slopes


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
    """The slopes of a loss in what is between, [T, N, ...]."""

    total: np.ndarray  # also those of a
    token: np.ndarray  # also those of o
    logits: np.ndarray
    plain: tuple[np.ndarray, np.ndarray]
    gates: np.ndarray


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
        self.slopes = Slopes(room(*lead, size), room(*lead, hidden), room(*lead, stoch), plain, gates)
        self.deter, self.stoch = room(count, size), room(count, stoch)  # slopes that go on to the step before
        self.forth, self.back = self.forward_program(), self.backward_program()
        self.sums = self.program_of_sums()

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
        rssm, (from_deter, from_stoch) = r.rssm, (r.rssm.from_deter.scale, r.rssm.from_stoch.scale)
        w, v, count, deter, stoch = r.back, r.vectors, self.shape[1], self.deter, self.stoch
        to_hidden, to_inputs, before = room(count, r.hidden), room(count, r.size), room(count, r.size)
        nothing = np.zeros(max(r.size, r.hidden, r.stoch), np.float32)

        def norm(of: tuple[np.ndarray, ...], scale: Tensor, *slopes: np.ndarray) -> None:
            x, inverse, y = of
            arrays = (x, scale.detach().numpy(), inverse, *slopes, slopes_of(scale), y)
            program.add(norm_backward, *arrays, sizes=(len(scale),))

        program.add(add, stoch, self.to_stoch, sizes=(r.stoch,))
        program.add(
            draw_backward, self.probs, stoch, self.to_probs, slopes.logits, self.room, sizes=self.sizes
        )
        program.multiply(to_hidden, nothing, slopes.logits, w.head)
        seen = (self.seen, self.inverse, self.posterior)
        norm(seen, rssm.posterior_layer.scale, to_hidden, slopes.token)
        program.add(add, deter, self.to_deter, sizes=(r.size,))
        program.multiply(deter, deter, slopes.token, w.posterior)
        gated = (of.gates, v.gates_bias, self.before, deter, slopes.gates, before)
        program.add(gate_backward, *gated, slopes_of(rssm.gates.bias), sizes=r.gate_sizes())
        width = r.size // r.blocks
        for (block, to), (_, at) in zip(r.columns(width), r.columns(3 * width), strict=True):
            program.multiply(to_inputs[..., to], nothing, slopes.gates[..., at], w.gates[block])
        norm((of.total, of.inverse[2], of.inputs), rssm.scale, to_inputs, slopes.total)
        for block, at in r.columns(width):
            program.multiply(before[..., at], before[..., at], slopes.total[..., at], w.own[block])
        for i, scale in enumerate((from_deter, from_stoch)):
            program.multiply(to_hidden, nothing, slopes.total, w.shared[i])
            norm((of.plain[i], of.inverse[i], of.hidden[i]), scale, to_hidden, slopes.plain[i])
        program.multiply(deter, before, slopes.plain[0], w.from_deter)
        program.multiply(stoch, nothing, slopes.plain[1], w.from_stoch)
        program.add(carry, deter, deter, self.first, sizes=(r.size,))
        program.add(carry, stoch, stoch, self.first, sizes=(r.stoch,))
        return program

    def program_of_sums(self) -> Program:
        """What is added to the slopes of all weights, of rows of all steps at once."""
        program, r, of, slopes = Program(), self.recurrence, self.between, self.slopes
        rssm, hidden = r.rssm, r.hidden
        for layer, slope, x in (
            (rssm.from_deter.linear, slopes.plain[0], self.before),
            (rssm.from_stoch.linear, slopes.plain[1], self.drawn),
            (rssm.posterior_head, slopes.logits, self.posterior),
        ):
            outer(program, slopes_of(layer.weight), rows_of(slope), rows_of(x))
            program.add(sum_rows, slopes_of(layer.bias), rows_of(slope), sizes=(slope.shape[-1],))
        to_posterior = slopes_of(rssm.posterior_layer.linear.weight)[:, : r.size]
        outer(program, to_posterior, rows_of(slopes.token), rows_of(self.states[1:]))
        for i, x in enumerate(of.hidden):
            to_shared = slopes_of(rssm.shared)[i * hidden : (i + 1) * hidden]
            outer(program, to_shared, rows_of(x), rows_of(slopes.total))
        to_own, to_gates, width = slopes_of(rssm.own.weight), slopes_of(rssm.gates.weight), r.size // r.blocks
        for (block, at), (_, to) in zip(r.columns(width), r.columns(3 * width), strict=True):
            outer(program, to_own[block], rows_of(self.before)[:, at], rows_of(slopes.total)[:, at])
            outer(program, to_gates[block], rows_of(of.inputs)[:, at], rows_of(slopes.gates)[:, to])
        return program

    def follow(
        self,
        action: np.ndarray,
        token: np.ndarray,
        deter: np.ndarray,
        stoch: np.ndarray,
        noise: np.ndarray,
        first: np.ndarray,
    ) -> None:
        """Fill `states`, `stochs` and `probs`, from a [T, N, D], o [T, N, hidden], the state before, noise [T, N, S].

        first [T, N]: where states before are zeros
        """
        given = (action, token, deter, stoch, noise, first[..., None])
        places = (self.action, self.token, self.states[0], self.stochs[0], self.noise, self.first)
        for to, part in zip(places, given, strict=True):
            to[...] = part
        steps, count = self.shape
        self.forth.run(count, range(steps))

    def go_back(self, to_states: np.ndarray, to_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slopes of a and o, from those of the states [T · N, D + K · S] and of the probabilities.

        Those of weights are added to what the parameters have.
        """
        size = self.recurrence.size
        for to, part in (
            (self.to_deter, to_states[:, :size]),
            (self.to_stoch, to_states[:, size:]),
            (self.to_probs, to_probs),
        ):
            to[...] = part.reshape(to.shape)
        self.deter[...], self.stoch[...] = 0, 0
        steps, count = self.shape
        self.back.run(count, range(steps - 1, -1, -1))
        self.sums.run(steps * count, range(1))
        return self.slopes.total, self.slopes.token
