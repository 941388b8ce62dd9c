"""Planning with small networks that predict value prefixes, without torch: states and their memory, in blocks."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import njit
from rl_training.kernels.acting import _view
from rl_training.kernels.blocks import LANES, LINEAR, decode_block, dense, from_block, to_block
from rl_training.kernels.functions import FAST, fast_tanh
from rl_training.kernels.small_model import SmallModel, Transition, advance, dense_layer


class Memory(Protocol):
    """An LSTM over states, and the layer that makes logits of a value prefix from what it remembers."""

    cell: nn.LSTM
    head: nn.Linear


class SmallPrefixModel(SmallModel):
    """Dynamics, heads and value prefix for states that are vectors, on the CPU."""

    def __init__(
        self, dynamics: Transition, prediction: nn.Module, kind: int, prefix: Memory, horizon: int
    ) -> None:
        self.prefix, self.horizon = prefix, horizon
        super().__init__(dynamics, prediction, kind)

    def _look_again(self) -> None:
        super()._look_again()
        lstm = tuple(_view(parameter) for parameter in self.prefix.cell.parameters())
        self.memory = (lstm, dense_layer(self.prefix.head), self.horizon)

    def recurrent(self, latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """As `SmallModel.recurrent`, of states that are dicts: a latent, the memory, the prefix and its steps."""
        if self.parameter.data_ptr() != self.address:
            self._look_again()  # an optimizer has moved the parameters into one vector
        names = ("latent", "hidden", "cell", "prefix", "steps")
        state = tuple(latent[name].numpy() for name in names)
        outputs = _recurrent_with_prefix(state, action.numpy(), self.layers, self.memory)
        reward, logits, value, *following = map(torch.from_numpy, outputs)
        return reward, logits, value, dict(zip(names, following, strict=True))


@njit(nogil=True)
def _recurrent_with_prefix(state, action, layers, memory):  # type: ignore[no-untyped-def]
    latent, hidden, cell, prefix, steps = state
    first, table, rest, heads, activation, num_actions = layers
    (from_state, from_hidden, state_bias, hidden_bias), head, horizon = memory
    count = len(latent)
    following, kept, remembered = np.empty_like(latent), np.empty_like(hidden), np.empty_like(cell)
    earned, value = np.empty(count, np.float32), np.empty(count, np.float32)
    logits = np.empty((count, num_actions), np.float32)
    total, since = np.empty_like(prefix), np.empty_like(steps)
    for start in range(0, count, LANES):
        places = slice(start, min(start + LANES, count))
        states = places.stop - start
        block, output = advance(
            latent[places], action[places], first, table, rest, heads, activation, following[places]
        )
        gates = dense(block, from_state, state_bias, states, LINEAR)
        _add(gates, dense(to_block(hidden[places]), from_hidden, hidden_bias, states, LINEAR))
        cells = to_block(cell[places])
        memory_block = _remember(gates, cells)
        from_block(memory_block, kept[places])
        from_block(cells, remembered[places])
        more = dense(memory_block, head[0], head[1], states, LINEAR)
        atoms = len(more)
        _add(output[num_actions + atoms :], more)
        from_block(output[:num_actions], logits[places])
        decode_block(output[num_actions : num_actions + atoms], value[places])
        decode_block(output[num_actions + atoms :], total[places])
    for i in range(count):
        earned[i] = total[i] - prefix[i]
        since[i] = (steps[i] + 1) % horizon
        if since[i] == 0:
            total[i] = 0.0
            for j in range(kept.shape[1]):
                kept[i, j] = remembered[i, j] = 0.0
    return earned, logits, value, following, kept, remembered, total, since


# Number by number: sums and assignments of arrays take numba seconds to compile, for the sake of error messages.
@njit(borrows=True, nogil=True)
def _add(to, more):  # type: ignore[no-untyped-def]
    for j in range(to.shape[0]):
        for i in range(to.shape[1]):
            to[j, i] += more[j, i]


@njit(nogil=True, fastmath=FAST)
def _remember(gates, cells):  # type: ignore[no-untyped-def]
    """c ← σ(f) c + σ(i) tanh(g) in place, and h = σ(o) tanh(c), blocks; the gates [4 H, LANES] in torch's order."""
    size, half = len(cells), np.float32(0.5)
    hidden = np.empty_like(cells)
    for j in range(size):
        for i in range(LANES):
            # σ(x) = ½ + ½ tanh(x / 2)
            enters = half + half * fast_tanh(half * gates[j, i])
            stays = half + half * fast_tanh(half * gates[size + j, i])
            leaves = half + half * fast_tanh(half * gates[3 * size + j, i])
            cells[j, i] = stays * cells[j, i] + enters * fast_tanh(gates[2 * size + j, i])
            hidden[j, i] = leaves * fast_tanh(cells[j, i])
    return hidden
