"""Forward passes of small networks for acting, without torch.

For a few observations and layers of some dozen units, torch's cost per operation is many times that of the
arithmetic: two networks of 64 units take 180 µs in torch and 20 µs here. The weights are the torch parameters
themselves, seen as arrays; nothing is copied and nothing can be out of date.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import torch
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor, nn

from rl_training.algorithms.distributions import Categorical, DiagonalGaussian, Family, SquashedGaussian
from rl_training.compiling import njit
from rl_training.kernels.dense import dense_layers
from rl_training.kernels.exact import Path, Shortcut, is_exact
from rl_training.kernels.families import log_tanh_slope, squashed, unsquashed
from rl_training.kernels.functions import FAST, fast_tanh
from rl_training.networks.actor_critic import ActionHead, ActorCritic, has_own_forward

# Above this many multiplications per step torch's matrix products win.
MOST_MULTIPLICATIONS = 300_000
ACTIVATIONS = {nn.Tanh: 1, nn.ReLU: 2}
ACTIONS = (Categorical, DiagonalGaussian, SquashedGaussian)

SILENCE = np.zeros((0, 0))  # no noise, of the same type: for another one numba would compile again

OUTPUTS, INPUTS = range(
    2
)  # of a row of a table of layers; behind them the addresses of its weight and its bias


class InMemory(Shortcut[Path]):
    """A shortcut that reads the parameters at their addresses; made again when one of them lies elsewhere or otherwise.

    It holds the memory that it has seen: nothing else can come to lie there.
    """

    def _look(self) -> None:
        parameters = list(self.module.parameters())
        self.owners = [part._parameters for part in self.module.modules() if part._parameters]
        self.square = [each for each in parameters if each.ndim == 2 and each.shape[0] == each.shape[1]]
        super()._look()
        self.held = [parameter.detach() for parameter in parameters]

    def _now(self) -> tuple[Any, ...]:
        try:
            addresses = list(map(Tensor.data_ptr, chain.from_iterable(map(dict.values, self.owners))))  # type: ignore[arg-type]
        except TypeError:  # a parameter that is None
            addresses = []
        # A square matrix can be transposed at its address.
        return *super()._now(), addresses, all(map(Tensor.is_contiguous, self.square))


class SmallActorCritic:
    """The forward pass and the sampling of an `ActorCritic` of dense layers on the CPU; kept by an `InMemory`."""

    def __init__(self, network: ActorCritic, family: Family) -> None:
        critic = network.actor_encoder if network.critic_encoder is None else network.critic_encoder
        self.family = family
        self.activation = _activation(network.actor_encoder)
        self.actor = _layers(network.actor_encoder, network.actor_head.output)
        self.critic = _layers(critic, network.critic_head)
        self.log_std = None if network.actor_head.log_std is None else _view(network.actor_head.log_std)
        self.inputs, self.outputs = self.actor[0, INPUTS], self.actor[-1, OUTPUTS]
        self.multiplications = multiplications(self.actor) + multiplications(self.critic)

    @classmethod
    def of(cls, network: ActorCritic, family: Family) -> SmallActorCritic | None:
        """For networks that are dense throughout, with actions of one choice or Gaussian; None for all others."""
        ours = has_own_forward(network) and is_exact(network.actor_head, ActionHead)
        if not ours or type(family) not in ACTIONS or not _readable(network):
            return None
        actor = dense_layers(network.actor_encoder, network.actor_head.output)
        critic = dense_layers(network.critic_encoder or network.actor_encoder, network.critic_head)
        if actor is None or critic is None or actor[1] is not critic[1] or actor[1] not in ACTIVATIONS:
            return None
        return cls(network, family)

    def fits(self, count: int) -> bool:
        """Whether a batch of this many observations is small enough to be faster here."""
        return count * self.multiplications <= MOST_MULTIPLICATIONS

    def act(self, obs: np.ndarray, explore: bool) -> dict[str, np.ndarray]:
        """Observations [B, ...] → `action`, `log_prob` and `value` [B, ...]."""
        rows, shape, noise = _rows(obs, self.inputs), (len(obs), self.outputs), SILENCE
        parameters = _forward(rows, self.actor, self.activation)
        if self.log_std is None:
            if explore:
                noise = np.random.standard_exponential(shape)
            action, log_prob = _choose(parameters, noise)
        else:
            if explore:
                noise = np.random.standard_normal(shape)
            squashed = type(self.family) is SquashedGaussian
            action, log_prob = (_squash if squashed else _move)(parameters, self.log_std, noise)
        return {"action": action, "log_prob": log_prob, "value": self._values(rows)}

    def value(self, obs: np.ndarray) -> np.ndarray:
        """Observations [B, ...] → values [B]."""
        return self._values(_rows(obs, self.inputs))

    def _values(self, rows: np.ndarray) -> np.ndarray:
        values: np.ndarray = _forward(rows, self.critic, self.activation)[:, 0]
        return values


class SmallNetwork:
    """The forward pass of an encoder and its linear head on the CPU: observations [B, ...] → [B, outputs]."""

    def __init__(self, encoder: nn.Sequential, head: nn.Linear) -> None:
        self.activation = _activation(encoder)
        self.layers = _layers(encoder, head)
        self.inputs, self.multiplications = self.layers[0, INPUTS], multiplications(self.layers)

    @classmethod
    def of(cls, network: Any, kind: type[nn.Module]) -> SmallNetwork | None:
        """For a network of this kind that is dense throughout, an `encoder` and a `head`; None for all others."""
        exact = is_exact(network, kind)
        if not exact or not _readable(network):
            return None
        layers = dense_layers(network.encoder, network.head)
        return cls(network.encoder, network.head) if layers and layers[1] in ACTIVATIONS else None

    def fits(self, count: int) -> bool:
        """Whether a batch of this many observations is small enough to be faster here."""
        return count * self.multiplications <= MOST_MULTIPLICATIONS

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return _forward(_rows(obs, self.inputs), self.layers, self.activation)


def _rows(obs: np.ndarray, inputs: int) -> np.ndarray:
    """Observations [B, ...] as rows [B, inputs]: the compiled loops look at no bounds."""
    rows = np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32)
    if rows.shape[1] != inputs:
        raise ValueError(f"observations of {rows.shape[1]} numbers; the network takes {inputs}")
    return rows


def _readable(network: nn.Module) -> bool:
    """Whether the compiled loops, which look at no types, can read the parameters: 32-bit floats, row by row."""
    return all(
        parameter.device.type == "cpu" and parameter.dtype == torch.float32 and parameter.is_contiguous()
        for parameter in network.parameters()
    )


def _view(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()


def _activation(encoder: nn.Module) -> int:
    return next(ACTIVATIONS[type(layer)] for layer in encoder.modules() if type(layer) in ACTIVATIONS)


def _layers(encoder: nn.Module, head: nn.Linear) -> np.ndarray:
    """A table of layers: one type for networks of any depth, so that the passes are compiled once."""
    dense = [layer for layer in encoder.modules() if isinstance(layer, nn.Linear)] + [head]
    rows = [(*layer.weight.shape, layer.weight.data_ptr(), layer.bias.data_ptr()) for layer in dense]
    return np.array(rows, np.int64)


def multiplications(layers: np.ndarray) -> int:
    return int((layers[:, OUTPUTS] * layers[:, INPUTS]).sum())


def _typed_pointer(typing: Any, where: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        return build.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_typed_pointer)  # compiled code calls it without `typing`


@njit(fastmath=FAST)
def _dense(rows, weight, bias, activation):  # type: ignore[no-untyped-def]
    """f(x Wᵀ + b): [B, n] → [B, m]."""
    out = np.empty((rows.shape[0], weight.shape[0]), np.float32)
    for i in range(rows.shape[0]):
        for j in range(weight.shape[0]):
            total = np.float32(0.0)
            for k in range(weight.shape[1]):
                total += rows[i, k] * weight[j, k]
            out[i, j] = total + bias[j]
        if activation == 1:
            for j in range(weight.shape[0]):
                out[i, j] = fast_tanh(out[i, j])
        elif activation == 2:
            for j in range(weight.shape[0]):
                out[i, j] = max(out[i, j], np.float32(0.0))
    return out


@njit()
def _forward(rows, layers, activation):  # type: ignore[no-untyped-def]
    for i in range(len(layers)):
        outputs, inputs, weight_at, bias_at = layers[i]
        weight = carray(_pointer(weight_at), (outputs, inputs), np.float32)
        bias = carray(_pointer(bias_at), (outputs,), np.float32)
        rows = _dense(rows, weight, bias, activation if i < len(layers) - 1 else 0)
    return rows


@njit()
def _choose(logits, noise):  # type: ignore[no-untyped-def]
    """argmaxᵢ (logitᵢ - log Eᵢ) and its log-probability; without noise the mode."""
    action = np.empty(logits.shape[0], np.int64)
    log_prob = np.empty(logits.shape[0], np.float32)
    for i in range(logits.shape[0]):
        best, highest, top = 0, -np.inf, logits[i, 0]
        for j in range(1, logits.shape[1]):  # an array's own max() takes half a second to compile
            top = max(top, logits[i, j])
        total = 0.0
        for j in range(logits.shape[1]):
            total += math.exp(logits[i, j] - top)
            score = np.float64(logits[i, j])
            if len(noise):
                score -= math.log(noise[i, j])
            if score > highest:
                best, highest = j, score
        action[i] = best
        log_prob[i] = logits[i, best] - top - math.log(total)
    return action, log_prob


@njit()
def _move(mean, log_std, noise):  # type: ignore[no-untyped-def]
    """μ + σ ε, in place of μ, and its log-probability; without noise the mode."""
    log_prob = np.zeros(mean.shape[0], np.float32)
    for i in range(mean.shape[0]):
        total = 0.0
        for j in range(mean.shape[1]):
            total -= log_std[j] + 0.5 * math.log(2 * math.pi)
            if len(noise):
                mean[i, j] += math.exp(log_std[j]) * noise[i, j]
                total -= 0.5 * noise[i, j] ** 2
        log_prob[i] = total
    return mean, log_prob


@njit(nogil=True)
def _squash(mean, log_std, noise):  # type: ignore[no-untyped-def]
    """tanh(μ + σ ε), in place of μ, and its log-probability; without noise tanh(μ)."""
    log_prob = np.zeros(mean.shape[0], np.float32)
    for i in range(mean.shape[0]):
        total = 0.0
        for j in range(mean.shape[1]):
            raw = np.float64(mean[i, j])
            if len(noise):
                raw += math.exp(log_std[j]) * noise[i, j]
            action = squashed(raw)
            raw = unsquashed(action)
            away = (raw - mean[i, j]) * math.exp(-log_std[j])
            total -= 0.5 * away * away + log_std[j] + 0.5 * math.log(2 * math.pi) + log_tanh_slope(raw)
            mean[i, j] = action
        log_prob[i] = total
    return mean, log_prob
