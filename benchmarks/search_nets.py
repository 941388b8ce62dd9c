"""The models that our side of the row `search` plans with: the peers' layers, laid out for acting.

`SupportModel` has the layers of LightZero's vector model, with two supports to decode; `PlainModel` those that mctx's
side has in jax. What is ours is how they run: an action is a row that is looked up, layers with the same input are
one product, and a call is one compiled function, made of the same parts as that of `rl_training.kernels.small_model`.
`PackageModel` is the network that `muzero` itself trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.compiling import njit
from rl_training.kernels.blocks import (
    LANES,
    RELU,
    activate,
    add_rows,
    decode_block,
    dense,
    expand_scalar,
    from_block,
    to_block,
)
from rl_training.kernels.exact import taken
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.search import Small

HEAD = 32  # hidden units of each of LightZero's heads
DISCOUNT = 0.997

Layer = tuple[np.ndarray, np.ndarray]
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Model:
    """A random model for searches: where its roots are, and its discount."""

    def __init__(self, latent: int, actions: int, sizes: Sequence[tuple[int, int]], seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.latent, self.actions = latent, actions
        self.layers: tuple[Layer, ...] = tuple(
            (normal(chance, (outputs, inputs), inputs**-0.5), normal(chance, (outputs,), 0.1))
            for inputs, outputs in sizes
        )
        self.table = normal(chance, (actions, latent), 1 / 8)
        self.discounts: dict[int, Tensor] = {}

    def root(self, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Prior logits, values and states for `count` roots."""
        self.discounts[count] = torch.full((count,), DISCOUNT)
        latent = torch.rand(count, self.latent, generator=torch.Generator().manual_seed(seed))
        _, _, logits, value, _ = self(latent, torch.zeros(count, dtype=torch.int64))
        return logits, value, latent

    def __call__(self, latent: Tensor, action: Tensor) -> Outputs:
        found = self.run(latent.numpy(), action.numpy())
        reward, logits, value, following = map(torch.from_numpy, found)
        return reward, self.discounts[len(latent)], logits, value, following

    def run(self, latent: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        raise NotImplementedError


class SupportModel(Model):
    """70-64-64 to the next state; 64-32-601 to its reward; 64-64-64, then 64-32-601 to its value and 64-32-A.

    With one atom reward and value are numbers h(x), as in LightZero's model without categorical distributions.
    """

    def __init__(self, latent: int, actions: int, atoms: int, seed: int) -> None:
        sizes = [
            (latent, latent),
            (latent, latent),
            # The first common layer of the prediction, and the reward's hidden layer.
            (latent, latent + HEAD),
            (latent, latent),
            (latent, 2 * HEAD),  # the hidden layers of value and policy
            (HEAD, atoms),
            (HEAD, atoms),
            (HEAD, actions),
        ]
        super().__init__(latent, actions, sizes, seed)

    def run(self, latent: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        return _support_model(latent, action, self.table, self.layers)


class PlainModel(Model):
    """70-64-64 to the next state, and 64-64-(2 + A) from it to reward, value and policy."""

    def __init__(self, latent: int, actions: int, seed: int) -> None:
        sizes = [(latent, latent), (latent, latent), (latent, latent), (latent, 2 + actions)]
        super().__init__(latent, actions, sizes, seed)

    def run(self, latent: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        return _plain_model(latent, action, self.table, self.layers)


class PackageModel(Model):
    """64-64-32-64 to the next state, scaled to [0, 1], and 64-64-32-(A + 2 · 601) to policy, value and reward."""

    def __init__(self, latent: int, actions: int, atoms: int, seed: int) -> None:
        super().__init__(latent, actions, [], seed)
        torch.manual_seed(seed)
        self.network = MuZeroNetwork(
            spaces.Box(-1, 1, (4,), np.float32),
            actions,
            latent_size=latent,
            hidden_sizes=[latent, HEAD],
            activation="relu",
            image_encoder="nature",
            support_size=atoms // 2,
            residual_blocks=1,
        )
        heads = list(self.network.prediction.children())[-1]
        assert isinstance(heads, torch.nn.Linear)
        torch.nn.init.normal_(heads.weight, 0, HEAD**-0.5)  # or all values would be equal
        self.small: Small | None = None

    def root(self, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        found = super().root(count, seed)
        model = taken(self.network.small)  # as a trained policy does: the whole search is one compiled call
        assert model is not None
        self.small = Small(model, self.discounts[count])
        return found

    def __call__(self, latent: Tensor, action: Tensor) -> Outputs:
        reward, logits, value, following = self.network.recurrent(latent, action)
        return reward, self.discounts[len(latent)], logits, value, following


def normal(chance: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    return (scale * chance.standard_normal(shape)).astype(np.float32)


@njit()
def _support_model(latent: Any, action: Any, table: Any, layers: Any) -> Any:
    count, width = latent.shape
    following = np.empty_like(latent)
    reward, value = np.empty(count, np.float32), np.empty(count, np.float32)
    logits = np.empty((count, table.shape[0]), np.float32)
    for start in range(0, count, LANES):
        places = slice(start, min(start + LANES, count))
        states = places.stop - start
        state = _dynamics(latent[places], action[places], table, layers)
        from_block(state, following[places])
        common = _layer(state, layers[2], states)
        heads = _layer(_layer(common[:width], layers[3], states), layers[4], states)
        _decoded(common[width:], layers[5], reward[places])
        _decoded(heads[:HEAD], layers[6], value[places])
        from_block(dense(heads[HEAD:], layers[7][0], layers[7][1], states, 0), logits[places])
    return reward, logits, value, following


@njit()
def _plain_model(latent: Any, action: Any, table: Any, layers: Any) -> Any:
    count = len(latent)
    following = np.empty_like(latent)
    reward, value = np.empty(count, np.float32), np.empty(count, np.float32)
    logits = np.empty((count, table.shape[0]), np.float32)
    for start in range(0, count, LANES):
        places = slice(start, min(start + LANES, count))
        states = places.stop - start
        state = _dynamics(latent[places], action[places], table, layers)
        from_block(state, following[places])
        heads = dense(_layer(state, layers[2], states), layers[3][0], layers[3][1], states, 0)
        reward[places] = heads[0, :states]
        value[places] = heads[1, :states]
        from_block(heads[2:], logits[places])
    return reward, logits, value, following


@njit()
def _dynamics(latent: Any, action: Any, table: Any, layers: Any) -> Any:
    hidden = dense(to_block(latent), layers[0][0], layers[0][1], len(latent), 0)
    add_rows(hidden, table, action)
    activate(hidden, RELU)
    return _layer(hidden, layers[1], len(latent))


@njit()
def _layer(block: Any, layer: Any, states: int) -> Any:
    return dense(block, layer[0], layer[1], states, RELU)


@njit()
def _decoded(hidden: Any, layer: Any, out: Any) -> None:
    """The scalars that the support of a head's last layer stands for; h⁻¹ of its output if it has a single one."""
    output = dense(hidden, layer[0], layer[1], len(out), 0)
    if len(output) > 1:
        decode_block(output, out)
        return
    for i in range(len(out)):
        out[i] = expand_scalar(np.float64(output[0, i]))
