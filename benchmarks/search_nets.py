"""The models that our side of the row `search` plans with: the peers' layers, laid out for acting.

`SupportModel` has the layers of LightZero's vector model, with two supports to decode; `PlainModel` those that mctx's
side has in jax. What is ours is how they run: an action is a row that is looked up, layers with the same input are
one product, and a few roots go through one compiled function instead of a dozen torch operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from rl_training.networks.acting import FAST
from rl_training.networks.supports import _atoms, _decode_rows, decode_supports, expand_scalar

HEAD = 32  # hidden units of each of LightZero's heads
FEW = 16  # roots up to which the compiled function is faster than torch
ROWS = 64  # whose logits over 601 atoms fit into a cache
DISCOUNT = 0.997

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def layers(sizes: Sequence[tuple[int, int]], chance: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    return [
        (
            torch.randn(inputs, outputs, generator=chance) / inputs**0.5,
            0.1 * torch.randn(outputs, generator=chance),
        )
        for inputs, outputs in sizes
    ]


class SupportModel:
    """70-64-64 to the next state; 64-32-601 to its reward; 64-64-64, then 64-32-601 to its value and 64-32-A.

    With one atom reward and value are numbers h(x), as in LightZero's model without categorical distributions.
    """

    def __init__(self, latent: int, actions: int, atoms: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        sizes = [
            (latent, latent),
            (latent, latent),
            (
                latent,
                latent + HEAD,
            ),  # the first common layer of the prediction, and the reward's hidden layer
            (latent, latent),
            (latent, 2 * HEAD),  # the hidden layers of value and policy
            (HEAD, atoms),
            (HEAD, atoms),
            (HEAD, actions),
        ]
        self.layers = layers(sizes, chance)
        self.latent, self.scalar = latent, atoms == 1
        self.logits = torch.empty(2, ROWS, atoms)
        self.rows = torch.randn(actions, latent, generator=chance) / 8 + self.layers[0][1]
        self.first = self.layers[0][0]
        self.discounts = {count: torch.full((count,), DISCOUNT) for count in (1, 8, 64, 256)}
        if self.scalar:  # value and policy in one product
            weight = torch.block_diag(self.layers[6][0], self.layers[7][0])
            self.last = weight, torch.cat([self.layers[6][1], self.layers[7][1]])
            self.reward = self.layers[5][0].numpy()[:, 0].copy(), self.layers[5][1].numpy()
        self.arrays = tuple((weight.numpy(), bias.numpy()) for weight, bias in self.layers)

    def root(self, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Prior logits, values and states for `count` roots."""
        latent = torch.rand(count, self.latent, generator=torch.Generator().manual_seed(seed))
        _, _, logits, value, _ = self(latent, torch.zeros(count, dtype=torch.int64))
        return logits, value, latent

    def __call__(self, latent: Tensor, action: Tensor) -> Outputs:
        discount = self.discounts[len(latent)]
        if len(latent) <= FEW:
            found = _few(
                latent.numpy(), action.numpy(), self.rows.numpy(), self.arrays, _atoms(self.logits.shape[2])
            )
            logits, reward, value, following = map(torch.from_numpy, found)
            return reward, discount, logits, value, following
        _, second, third, fourth, fifth, sixth, seventh, eighth = self.layers
        hidden = torch.addmm(self.rows.index_select(0, action), latent, self.first).relu_()
        following = torch.addmm(second[1], hidden, second[0]).relu_()
        common = torch.addmm(third[1], following, third[0]).relu_()
        trunk = torch.addmm(fourth[1], common[:, : self.latent], fourth[0]).relu_()
        heads = torch.addmm(fifth[1], trunk, fifth[0]).relu_()
        if self.scalar:
            last = torch.addmm(self.last[1], heads, self.last[0]).numpy()
            scalars = torch.from_numpy(_expanded(common.numpy()[:, self.latent :], self.reward, last[:, 0]))
            return scalars[0], discount, torch.from_numpy(last[:, 1:]), scalars[1], following
        supports = [(common[:, self.latent :], *sixth), (heads[:, :HEAD], *seventh)]
        reward, value = self._decoded(supports, len(latent)).unbind()
        logits = torch.addmm(eighth[1], heads[:, HEAD:], eighth[0])
        return reward, discount, logits, value, following

    def _decoded(self, supports: list[tuple[Tensor, Tensor, Tensor]], count: int) -> Tensor:
        """Some rows at a time, so that their logits never leave the cache."""
        parts = []
        for start in range(0, count, ROWS):
            rows = min(ROWS, count - start)
            logits = self.logits[:, :rows] if rows == ROWS else torch.empty(2, rows, self.logits.shape[2])
            for out, (hidden, weight, bias) in zip(logits.unbind(), supports, strict=True):
                torch.addmm(bias, hidden[start : start + rows], weight, out=out)
            parts.append(decode_supports(logits))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class PlainModel:
    """70-64-64 to the next state, and 64-64-(2 + A) from it to reward, value and policy."""

    def __init__(self, latent: int, actions: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        sizes = [(latent, latent), (latent, latent), (latent, latent), (latent, 2 + actions)]
        self.layers = layers(sizes, chance)
        self.latent, self.actions = latent, actions
        self.discounts = {count: torch.full((count,), DISCOUNT) for count in (1, 8, 64, 256)}
        self.rows = torch.randn(actions, latent, generator=chance) / 8 + self.layers[0][1]

    def root(self, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        latent = torch.rand(count, self.latent, generator=torch.Generator().manual_seed(seed))
        _, _, logits, value, _ = self(latent, torch.zeros(count, dtype=torch.int64))
        return logits, value, latent

    def __call__(self, latent: Tensor, action: Tensor) -> Outputs:
        first, second, third, fourth = self.layers
        hidden = torch.addmm(self.rows.index_select(0, action), latent, first[0]).relu_()
        following = torch.addmm(second[1], hidden, second[0]).relu_()
        trunk = torch.addmm(third[1], following, third[0]).relu_()
        reward, value, logits = torch.addmm(fourth[1], trunk, fourth[0]).split((1, 1, self.actions), 1)
        return reward.view(-1), self.discounts[len(latent)], logits, value.view(-1), following


@numba.njit(cache=True, fastmath=FAST)
def _layer(rows, weight, bias, rectify):  # type: ignore[no-untyped-def]
    """x W + b, row by row: along a row of W the compiler uses vector registers."""
    out = np.empty((len(rows), len(bias)), np.float32)
    for i in range(len(rows)):
        line = out[i]
        line[:] = bias
        for k in range(rows.shape[1]):
            x = rows[i, k]
            if x != 0.0:
                along = weight[k]
                for j in range(len(line)):
                    line[j] += x * along[j]
        if rectify:
            for j in range(len(line)):
                line[j] = max(line[j], np.float32(0.0))
    return out


@numba.njit(cache=True)
def _few(latent, action, table, layers, atoms):  # type: ignore[no-untyped-def]
    count, width = latent.shape
    hidden = _layer(latent, layers[0][0], np.zeros(width, np.float32), False)
    for i in range(count):
        for j in range(width):
            hidden[i, j] = max(hidden[i, j] + table[action[i], j], np.float32(0.0))
    following = _layer(hidden, layers[1][0], layers[1][1], True)
    common = _layer(following, layers[2][0], layers[2][1], True)
    trunk = _layer(common[:, :width].copy(), layers[3][0], layers[3][1], True)
    heads = _layer(trunk, layers[4][0], layers[4][1], True)
    middle = heads.shape[1] // 2
    reward = _layer(common[:, width:].copy(), layers[5][0], layers[5][1], False)
    value = _layer(heads[:, :middle].copy(), layers[6][0], layers[6][1], False)
    logits = _layer(heads[:, middle:].copy(), layers[7][0], layers[7][1], False)
    if len(atoms) == 1:
        scalars = _expanded(common[:, width:], (layers[5][0][:, 0].copy(), layers[5][1]), value[:, 0])
        return logits, scalars[0], scalars[1], following
    return (
        logits,
        _decode_rows(reward, _tops(reward), atoms),
        _decode_rows(value, _tops(value), atoms),
        following,
    )


@numba.njit(cache=True)
def _expanded(hidden, layer, value):  # type: ignore[no-untyped-def]
    """h⁻¹ of the reward, which is the last layer on `hidden`, and of the value."""
    weight, bias = layer
    out = np.empty((2, len(value)), np.float32)
    for i in range(len(value)):
        total = bias[0]
        for j in range(len(weight)):
            total += hidden[i, j] * weight[j]
        out[0, i] = expand_scalar(np.float64(total))
        out[1, i] = expand_scalar(np.float64(value[i]))
    return out


@numba.njit(cache=True)
def _tops(rows):  # type: ignore[no-untyped-def]
    tops = np.empty(len(rows), np.float32)
    for i in range(len(rows)):
        tops[i] = rows[i].max()
    return tops
