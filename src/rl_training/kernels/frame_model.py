"""A step of a model of frames as a search asks it, without torch: transition, heads and value prefix of many states.

States are frames [H, W, C] in the order of memory; P = H · W.

    s' = scale(blocks(relu(s + conv(s) + row(a))))        scale: to [0, 1], for each state
    headᵢ = denseᵢ(relu(reduceᵢ(s')))                     reduce: a convolution of 1 × 1 to 16 channels
    gates = W relu(reduce(s')) + U h + b,  as an LSTM has them        prefix = head_reward + V h'

Convolutions of 3 × 3 are those of `winograd.py`, all others are matrix products over all states at once. Their weights
are packed when a search begins, and do not change while it goes on. U h is left out where all memories are empty, as
they are one step from the roots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import njit
from rl_training.kernels.bins import paired_sum, sum_of, top_of
from rl_training.kernels.blocks import expand_scalar
from rl_training.kernels.functions import FAST, tanh
from rl_training.kernels.layers import stride_of
from rl_training.kernels.products import PANEL
from rl_training.kernels.programs import SIZES, Program, add, line
from rl_training.kernels.recurrence import Panels, room
from rl_training.kernels.supports import exponentials
from rl_training.kernels.winograd import InARow, Layer

Dense = tuple[Tensor, Tensor]  # a weight [n, k] and a bias [n]
ZERO, HALF, ONE, LEAST_RANGE = np.float32(0), np.float32(0.5), np.float32(1), np.float32(1e-5)


class Moves(NamedTuple):
    """A transition: convolutions in a row, of which the first is moved by the action's row of a table [A, C]."""

    layers: list[Layer]
    added: Sequence[int]
    table: Tensor


class Head(NamedTuple):
    """A convolution of 1 × 1 to 16 channels, and dense layers of what it makes."""

    reduce: Dense  # [16, C], [16]
    dense: list[Dense]  # the first of inputs [16, P]


class Memory(NamedTuple):
    """An LSTM as torch has it, and what its output adds to the logits of the last head."""

    reduce: Dense
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    head: Dense
    horizon: int


class FrameModel:
    """What a search asks; made when it begins.

    What `recurrent` returns is overwritten by its next call: a search copies what it keeps.
    """

    def __init__(
        self,
        moves: Moves,
        heads: list[Head],
        activation: type[nn.Module],
        atoms: Tensor,
        memory: Memory | None = None,
    ) -> None:
        self.row = InARow(moves.layers, moves.added)
        self.table = moves.table.detach().numpy()
        self.memory, self.activate, self.actions = memory, ACTIVATIONS[activation], len(heads[0].dense[-1][1])
        self.atoms, self.count, self.panels = atoms.numpy(), -1, Panels()
        reduce = [head.reduce for head in heads] + ([] if memory is None else [memory.reduce])
        self.reduce = [self._packed(*layer) for layer in reduce]
        self.dense = [self._stack(head.dense) for head in heads]
        if memory is not None:
            from_state, from_hidden, state_bias, hidden_bias = memory.weights
            self.gates = self._packed(_by_places(from_state), state_bias + hidden_bias)
            self.from_hidden = self.panels.matrix(from_hidden.t())
            self.more = self._packed(*memory.head)
        self.panels.read()

    def _stack(self, layers: list[Dense]) -> list[tuple[np.ndarray, np.ndarray]]:
        (weight, bias), *others = layers
        return [self._packed(*layer) for layer in ((_by_places(weight), bias), *others)]

    def _packed(self, weight: Tensor, bias: Tensor) -> tuple[np.ndarray, np.ndarray]:
        return self.panels.matrix(weight.t()), self.panels.vector(bias)

    def recurrent(self, latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """As a network's `recurrent`."""
        state = latent["latent"] if self.memory else latent
        frames = state.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()
        if len(frames) != self.count:
            self._make_room(*frames.shape)
        moved = self.row.biases[0] + self.table[action.numpy()]
        self.row.run(frames, self.state, moved)
        count, places = self.count, range(1)
        self.scaling.run(count, places)
        self.reducing.run(count * self.places, places)
        if self.memory:
            self.hidden[...], self.cell[...] = latent["hidden"].numpy(), latent["cell"].numpy()
            self.gating.run(count, places)
            if latent["steps"].any():  # else all memories are empty
                self.recalling.run(count, places)
        self.telling.run(count, places)
        policy, value, reward = (torch.from_numpy(part) for part in self.said)
        following = torch.from_numpy(self.state).permute(0, 3, 1, 2)
        if self.memory is None:
            return reward, policy, value, following
        prefix, memory = reward, (torch.from_numpy(self.hidden), torch.from_numpy(self.cell))
        earned = prefix - latent["prefix"]
        # The step that fills the horizon is the last one that remembers: the next prefix begins at 0.
        steps = (latent["steps"] + 1) % self.memory.horizon
        remembers = steps > 0
        if not remembers.all():
            prefix = prefix * remembers
            for part in memory:
                part *= remembers[:, None]
        names = ("latent", "hidden", "cell", "prefix", "steps")
        return earned, policy, value, dict(zip(names, (following, *memory, prefix, steps), strict=True))

    def _make_room(self, count: int, height: int, width: int, channels: int) -> None:
        """Rows of all states, and the programs that fill them."""
        self.count, self.places = count, height * width
        state = room(count, self.places * channels)
        self.state = state.reshape(count, height, width, channels)
        self.scaling, self.reducing, self.gating, self.recalling, self.telling = (Program() for _ in range(5))
        self.scaling.add(scale_rows, state, sizes=(state.shape[1],))
        reduced = []
        for weight, bias in self.reduce:
            to = room(count * self.places, PANEL)
            self.reducing.multiply(to, bias, state.reshape(-1, channels), weight)
            self.reducing.add(rectify, to, sizes=(PANEL,))
            reduced.append(to.reshape(count, -1))
        outputs = [self._dense(self.telling, *each) for each in zip(reduced, self.dense, strict=False)]
        if self.memory:
            self._remember(reduced[-1], outputs[-1])
        policy, *others = outputs
        self.said, shares = [policy[:, : self.actions]], room(len(self.atoms))
        for logits in others:
            self.said.append(to := room(count))
            self.telling.add(decode, to[:, None], logits, shares, self.atoms, sizes=(len(self.atoms),))

    def _dense(self, program: Program, rows: np.ndarray, layers: Any) -> np.ndarray:
        for number, (weight, bias) in enumerate(layers, start=1):
            to = _rows(len(rows), len(weight) * PANEL)
            program.multiply(to, bias, rows, weight)
            if number < len(layers):
                program.add(self.activate, to, sizes=(to.shape[1],))
            rows = to
        return rows

    def _remember(self, reduced: np.ndarray, logits: np.ndarray) -> None:
        """A step of the memory, which adds to the logits."""
        size = len(self.from_hidden) * PANEL // 4
        self.hidden, self.cell = room(self.count, size), room(self.count, size)
        gates = _rows(self.count, 4 * size)
        weight, bias = self.gates
        self.gating.multiply(gates, bias, reduced, weight)
        self.recalling.multiply(gates, gates, self.hidden, self.from_hidden)
        self.telling.add(remember, gates, self.hidden, self.cell, sizes=(size,))
        weight, bias = self.more
        self.telling.multiply(logits, logits, self.hidden, weight)
        self.telling.add(add, logits, bias, sizes=(logits.shape[1],))


def _by_places(weight: Tensor) -> Tensor:
    """[n, 16 · P] → [n, P · 16]: the inputs as frames lie in memory."""
    return weight.unflatten(1, (PANEL, -1)).transpose(1, 2).flatten(1)


def _rows(count: int, width: int) -> np.ndarray:
    """Rows that do not all begin at the same place of a page."""
    return room(count, stride_of(width))[:, :width]


# Without FAST: a quotient of vectors would be an estimate.
@njit(borrows=True, nogil=True, error_model="numpy")
def scale_rows(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← (a - min a) / (max a - min a + 10⁻⁵), of each row of whole panels."""
    width = op[SIZES]
    for i in range(rows):
        row = line(op, 0, step, i, width)
        low, high = _ends(row)
        factor = ONE / (high - low + LEAST_RANGE)
        for j in range(width):
            row[j] = (row[j] - low) * factor


# With comparisons as the compiler likes them: what is no number may be lost here, but not in the row itself.
@njit(borrows=True, nogil=True, fastmath={"nnan", "nsz"})
def _ends(row):  # type: ignore[no-untyped-def]
    """The smallest and the largest number of a row."""
    low, high = row[0], row[0]
    for j in range(len(row)):
        low, high = min(low, row[j]), max(high, row[j])
    return low, high


@njit(borrows=True, nogil=True)
def rectify(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← max(0, a); what is no number stays none."""
    width = op[SIZES]
    for i in range(rows):
        row = line(op, 0, step, i, width)
        for j in range(width):
            row[j] = ZERO if row[j] < ZERO else row[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def squash(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← tanh(a)."""
    width = op[SIZES]
    for i in range(rows):
        row = line(op, 0, step, i, width)
        for j in range(width):
            row[j] = tanh(row[j])


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def remember(op, step, rows):  # type: ignore[no-untyped-def]
    """c ← σ(f) c + σ(i) tanh(g) and h ← σ(o) tanh(c), of gates (i, f, g, o)."""
    size = op[SIZES]
    for n in range(rows):
        gates = line(op, 0, step, n, 4 * size)
        hidden, cell = line(op, 1, step, n, size), line(op, 2, step, n, size)
        for j in range(size):
            # σ(x) = ½ + ½ tanh(x / 2)
            enters = HALF + HALF * tanh(HALF * gates[j])
            stays = HALF + HALF * tanh(HALF * gates[size + j])
            leaves = HALF + HALF * tanh(HALF * gates[3 * size + j])
            cell[j] = stays * cell[j] + enters * tanh(gates[2 * size + j])
            hidden[j] = leaves * tanh(cell[j])


@njit(borrows=True, nogil=True, error_model="numpy")
def decode(op, step, rows):  # type: ignore[no-untyped-def]
    """a ← h⁻¹(Σᵢ pᵢ i) of logits b over the atoms i, with room c for p."""
    width = op[SIZES]
    for n in range(rows):
        to, logits = line(op, 0, step, n, 1), line(op, 1, step, n, width)
        shares, atoms = line(op, 2, step, 0, width), line(op, 3, step, 0, width)
        top = top_of(logits)
        exponentials(logits, top, shares)
        # The last term is 0, and NaN where a logit is: comparisons made a number of it.
        to[0] = np.float32(expand_scalar(paired_sum(shares, atoms) / sum_of(shares))) + ZERO * top


ACTIVATIONS: dict[type[nn.Module], Any] = {nn.ReLU: rectify, nn.Tanh: squash}
