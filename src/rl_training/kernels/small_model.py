"""Planning with small networks, without torch.

A simulation is one call of the model on as many states as there are roots. For a few roots and layers of some dozen
units, torch's cost per operation is many times that of the arithmetic: here a call is one compiled function, which
takes the states in blocks. The weights are the torch parameters themselves, seen as arrays; nothing is copied and
nothing can be out of date.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import njit
from rl_training.kernels.acting import ACTIVATIONS, _view
from rl_training.kernels.blocks import (
    LANES,
    LINEAR,
    activate,
    add_actions,
    decode_block,
    dense,
    from_block,
    to_block,
)
from rl_training.kernels.dense import stacked
from rl_training.kernels.exact import is_exact

# More do not stay in a core's cache from one block to the next: torch, which takes all states at once, wins.
MOST_WEIGHTS = 1_000_000


class Transition(Protocol):
    """The next state: s + rest(state(s) + action(a))."""

    state: nn.Linear
    action: nn.Embedding | nn.Linear
    rest: nn.Sequential


class SmallModel:
    """Dynamics and heads for states that are vectors, on the CPU."""

    def __init__(self, dynamics: Transition, prediction: nn.Module, kind: int) -> None:
        self.dynamics, self.prediction, self.kind = dynamics, prediction, kind
        self._look_again()

    @classmethod
    def of(cls, dynamics: Transition, prediction: nn.Sequential, *more: Any) -> SmallModel | None:
        """For dense layers whose activation is known here, `dynamics` being exactly ours; None for all others."""
        action = dynamics.action
        rows = is_exact(action, nn.Embedding) or (is_exact(action, nn.Linear) and action.bias is None)
        rows = rows and is_exact(dynamics.state, nn.Linear)
        if not rows or not all(is_exact(layers, nn.Sequential) for layers in (dynamics.rest, prediction)):
            return None
        flat, *heads = prediction
        moves, tells = stacked([dynamics.state, *dynamics.rest]), stacked(heads)
        if moves is None or tells is None or not is_exact(flat, nn.Flatten):
            return None
        kinds = moves[1] | tells[1]
        known = len(kinds) == 1 and kinds <= set(ACTIVATIONS)
        return cls(dynamics, prediction, ACTIVATIONS[kinds.pop()], *more) if known else None

    @property
    def fits(self) -> bool:
        """Whether the network is small enough to be faster here."""
        return self.parameter.device.type == "cpu" and self.count <= MOST_WEIGHTS

    def _look_again(self) -> None:
        action = self.dynamics.action
        self.parameter = action.weight
        self.address = self.parameter.data_ptr()
        first, table = dense_layer(self.dynamics.state), _view(self.parameter)
        outputs = len(table)  # of the policy: a logit for each index, or a mean and a scale for each number
        if isinstance(action, nn.Linear):
            table, outputs = table.T, 2 * action.in_features
        rest, heads = _layers(self.dynamics.rest), _layers(self.prediction)
        self.layers = (first, table, rest, heads, self.kind, outputs)
        self.count = sum(weight.size for weight in (first[0], *rest[0], *heads[0]))

    def recurrent(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States [N, L] and actions [N] or [N, D] → rewards [N], policy outputs, values [N], the next states."""
        outputs = _recurrent(latent.numpy(), action.numpy(), *self.current())
        reward, logits, value, following = map(torch.from_numpy, outputs)
        return reward, logits, value, following

    def current(self) -> tuple[Any, ...]:
        """The weights, the activation and the number of policy outputs, as compiled functions take them."""
        if self.parameter.data_ptr() != self.address:
            self._look_again()  # an optimizer has moved the parameters into one vector
        return self.layers


def dense_layer(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    return _view(layer.weight), _view(layer.bias)


def _layers(module: nn.Module) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    dense = [dense_layer(layer) for layer in module.modules() if isinstance(layer, nn.Linear)]
    return tuple(weight for weight, _ in dense), tuple(bias for _, bias in dense)


@njit(nogil=True)
def _recurrent(latent, action, first, table, rest, heads, activation, num_actions):  # type: ignore[no-untyped-def]
    count = len(latent)
    following = np.empty_like(latent)
    reward, value = np.empty(count, np.float32), np.empty(count, np.float32)
    logits = np.empty((count, num_actions), np.float32)
    evaluate(latent, action, first, table, rest, heads, activation, reward, logits, value, following)
    return reward, logits, value, following


@njit(nogil=True)
def evaluate(  # type: ignore[no-untyped-def]
    latent, action, first, table, rest, heads, activation, reward, logits, value, following
):
    """Put the states [N, L] that actions [N] lead to, and what the heads say of them, into the last four arrays."""
    count, num_actions = logits.shape
    for start in range(0, count, LANES):
        places = slice(start, min(start + LANES, count))
        _, output = advance(
            latent[places], action[places], first, table, rest, heads, activation, following[places]
        )
        atoms = (len(output) - num_actions) // 2
        from_block(output[:num_actions], logits[places])
        decode_block(output[num_actions : num_actions + atoms], value[places])
        decode_block(output[num_actions + atoms :], reward[places])


@njit(nogil=True)
def advance(latent, action, first, table, rest, heads, activation, following):  # type: ignore[no-untyped-def]
    """The states [n, L] that the actions lead to, also as a block, and a block of what the heads say of them."""
    block, states = to_block(latent), len(latent)
    hidden = dense(block, first[0], first[1], states, LINEAR)
    add_actions(hidden, table, action)
    activate(hidden, activation)
    change = _forward(hidden, rest, activation, states)
    _follow(block, change, following)
    return block, _forward(block, heads, activation, states)


@njit(nogil=True)
def _forward(block, layers, activation, states):  # type: ignore[no-untyped-def]
    weights, biases = layers
    for i in range(len(weights) - 1):
        block = dense(block, weights[i], biases[i], states, activation)
    return dense(block, weights[-1], biases[-1], states, LINEAR)


# Without FAST: a quotient of vectors would be an estimate.
@njit(nogil=True, error_model="numpy")
def _follow(block, change, states):  # type: ignore[no-untyped-def]
    """Add the change to the states of a block and scale each to [0, 1]; they come as rows of `states` too."""
    low, high = np.full(LANES, np.float32(np.inf)), np.full(LANES, np.float32(-np.inf))
    for j in range(len(block)):
        for i in range(LANES):
            block[j, i] += change[j, i]
            low[i], high[i] = min(low[i], block[j, i]), max(high[i], block[j, i])
    for i in range(LANES):
        high[i] = np.float32(1.0) / (high[i] - low[i] + np.float32(1e-5))
    for j in range(len(block)):
        for i in range(LANES):
            block[j, i] = (block[j, i] - low[i]) * high[i]
    from_block(block, states)
