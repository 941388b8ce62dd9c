"""Planning with small networks, without torch.

A simulation is one call of the model on as many states as there are roots. For a few roots and layers of some dozen
units, torch's cost per operation is many times that of the arithmetic: here a call is one compiled function. The
weights are the torch parameters themselves, seen as arrays; nothing is copied and nothing can be out of date.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.muzero import EPSILON
from rl_training.networks.acting import ACTIVATIONS, FAST, _dense, _forward, _view

if TYPE_CHECKING:
    from rl_training.networks.muzero import VectorDynamics

# Above this many multiplications per call torch's matrix products win.
MOST_MULTIPLICATIONS = 3_000_000


class SmallModel:
    """Dynamics and heads for states that are vectors, on the CPU."""

    def __init__(self, dynamics: VectorDynamics, prediction: nn.Module, kind: int) -> None:
        self.dynamics, self.prediction, self.kind = dynamics, prediction, kind
        self._look_again()

    @classmethod
    def of(cls, dynamics: VectorDynamics, prediction: nn.Module) -> SmallModel | None:
        """For layers whose activation is known here; None for all others."""
        kinds = {type(layer) for layer in dynamics.modules()} & set(ACTIVATIONS)
        return cls(dynamics, prediction, ACTIVATIONS[kinds.pop()]) if kinds else None

    def fits(self, count: int) -> bool:
        """Whether a batch of this many states is small enough to be faster here."""
        on_cpu = self.parameter.device.type == "cpu"
        return on_cpu and count * self.multiplications <= MOST_MULTIPLICATIONS

    def _look_again(self) -> None:
        self.parameter = self.dynamics.action.weight
        self.seen_at = self.parameter.data_ptr()
        self.first, self.table = _layer(self.dynamics.state), _view(self.parameter)
        self.rest, self.heads = _layers(self.dynamics.rest), _layers(self.prediction)
        weights = (self.first[0], *self.rest[0], *self.heads[0])
        self.multiplications = sum(weight.size for weight in weights)

    def recurrent(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States [N, L] and actions [N] → rewards [N], policy logits [N, A], values [N], the next states."""
        if self.parameter.data_ptr() != self.seen_at:
            self._look_again()  # an optimizer has moved the parameters into one vector
        found = _recurrent(
            latent.numpy(),
            action.numpy(),
            self.first,
            self.table,
            self.rest,
            self.heads,
            self.kind,
            len(self.table),
        )
        reward, logits, value, following = map(torch.from_numpy, found)
        return reward, logits, value, following


def _layer(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    return _view(layer.weight), _view(layer.bias)


def _layers(module: nn.Module) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    dense = [_layer(layer) for layer in module.modules() if isinstance(layer, nn.Linear)]
    return tuple(weight for weight, _ in dense), tuple(bias for _, bias in dense)


@numba.njit(cache=True, fastmath=FAST)
def _recurrent(latent, action, first, table, rest, heads, activation, num_actions):  # type: ignore[no-untyped-def]
    count = len(latent)
    hidden = _dense(latent, first[0], first[1], 0)
    for i in range(count):
        row = table[action[i]]
        for j in range(hidden.shape[1]):
            total = hidden[i, j] + row[j]
            hidden[i, j] = np.float32(math.tanh(total)) if activation == 1 else max(total, np.float32(0.0))
    following = _forward(hidden, rest, activation)
    for i in range(count):
        low, high = np.float32(np.inf), np.float32(-np.inf)
        for j in range(following.shape[1]):
            following[i, j] += latent[i, j]
            low, high = min(low, following[i, j]), max(high, following[i, j])
        scale = np.float32(1.0) / (high - low + np.float32(1e-5))
        for j in range(following.shape[1]):
            following[i, j] = (following[i, j] - low) * scale
    output = _forward(following, heads, activation)
    atoms = (output.shape[1] - num_actions) // 2
    logits = np.empty((count, num_actions), np.float32)
    value, reward = np.empty(count, np.float32), np.empty(count, np.float32)
    for i in range(count):
        for j in range(num_actions):
            logits[i, j] = output[i, j]
        value[i] = _decode(output[i, num_actions : num_actions + atoms])
        reward[i] = _decode(output[i, num_actions + atoms :])
    return reward, logits, value, following


@numba.njit(cache=True, fastmath=FAST)
def _decode(logits):  # type: ignore[no-untyped-def]
    """As `algorithms.muzero.decode`, of one row."""
    size = len(logits) // 2
    top = logits[0]
    for j in range(1, len(logits)):
        top = max(top, logits[j])
    total, mean = np.float32(0.0), np.float32(0.0)
    for j in range(len(logits)):
        share = np.float32(math.exp(logits[j] - top))
        total += share
        mean += share * np.float32(j - size)
    y = np.float64(mean / total)
    c = abs(y) + (1 + EPSILON)
    q = 2 * c / (math.sqrt(1 + 4 * EPSILON * c) + 1)
    return math.copysign(q * q - 1, y)
