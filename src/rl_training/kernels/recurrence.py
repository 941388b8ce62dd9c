"""Dreamer's recurrent model over whole sequences in compiled code: forward, and backward through time by hand.

`networks.rssm` has the equations. Of its weights these are read as panels, in which `product` takes them:

    n₁ = h D + d        n₂ = z S + s        y = SiLU(RMSNorm(n))        x = SiLU(RMSNorm(a + y₁ U₁ + y₂ U₂ + h O))
    h' = GRU(x G, h)        p = SiLU(RMSNorm(o + h' P))        z' ~ softmax(p Q + q)

a is what the action adds and o what the observation adds, for all steps at once and by torch; O and G are in blocks.
Sizes are multiples of 16.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.dreamer import UNIMIX
from rl_training.compiling import address, njit
from rl_training.kernels.functions import FAST, RMS_EPSILON
from rl_training.kernels.fused import (
    draw_backward,
    draw_forward,
    gated_backward,
    gated_forward,
    norm_silu_backward,
    norm_silu_forward,
)
from rl_training.kernels.layers import HEIGHT, NEXT, NEXT_PANEL, STAY, Network, put_out, room_for
from rl_training.kernels.products import PANEL, PRODUCT, call_product, product

EPSILON, MIX = np.float32(RMS_EPSILON), np.float32(UNIMIX)
START = np.int64(0)  # numba would compile `_remember` once more for a written 0


class Weights(NamedTuple):
    """Panels [..., n / 16, k, 16] of matrices [..., k, n], and vectors."""

    where: int  # of `product`
    from_deter: np.ndarray
    deter_bias: np.ndarray
    deter_scale: np.ndarray
    from_stoch: np.ndarray
    stoch_bias: np.ndarray
    stoch_scale: np.ndarray
    shared: np.ndarray  # [2, ...]
    own: np.ndarray  # [G, ...]
    scale: np.ndarray
    gates: np.ndarray  # [G, ...]
    gates_bias: np.ndarray
    posterior: np.ndarray
    posterior_scale: np.ndarray
    head: np.ndarray
    head_bias: np.ndarray


class Back(NamedTuple):
    """The panels of the same matrices, transposed."""

    from_deter: np.ndarray
    from_stoch: np.ndarray
    shared: np.ndarray
    own: np.ndarray
    gates: np.ndarray
    posterior: np.ndarray
    head: np.ndarray


class Kept(NamedTuple):
    """What a step leaves for the way back, [T, ...] of N rows."""

    deter: np.ndarray  # [N, D], before the step
    stoch: np.ndarray
    plain: np.ndarray  # [2, N, hidden], before RMSNorm, as are the next two
    total: np.ndarray  # [N, D]
    seen: np.ndarray  # [N, hidden]
    inverse: np.ndarray  # [4, N], of the four RMSNorms
    hidden: np.ndarray  # [2, N, hidden]
    inputs: np.ndarray  # [N, D], of the gates
    gates: np.ndarray  # [G, N, 3 D / G]
    posterior: np.ndarray  # [N, hidden]


def panels(matrix: Tensor) -> np.ndarray:
    """[..., k, n] → [..., n / 16, k, 16]."""
    source = matrix.detach().unflatten(-1, (-1, PANEL)).transpose(-3, -2).numpy()
    to = room_for(source.size).reshape(source.shape)
    to[:] = source
    return to


def keep(steps: int, count: int, weights: Weights) -> Kept:
    blocks, hidden = len(weights.gates), len(weights.deter_bias)
    deter, stoch = len(weights.scale), len(weights.head_bias)
    shapes = (
        (count, deter), (count, stoch), (2, count, hidden), (count, deter), (count, hidden), (4, count),
        (2, count, hidden), (count, deter), (blocks, count, 3 * deter // blocks), (count, hidden),
    )  # fmt: skip
    return Kept(*(room_for(steps * math.prod(shape)).reshape(steps, *shape) for shape in shapes))


class Recurrence:
    """The compiled passes over the weights of an `RSSM`; gradients go to where its parameters have them."""

    def __init__(self, rssm: Any) -> None:
        self.rssm = rssm
        self.begin()

    def begin(self) -> None:
        """Read the parameters as they are now."""
        rssm, size = self.rssm, self.rssm.deter_size
        shared = rssm.shared[: 2 * rssm.from_deter.linear.out_features].unflatten(0, (2, -1))
        matrices = [
            rssm.from_deter.linear.weight.t(),
            rssm.from_stoch.linear.weight.t(),
            shared,
            rssm.own.weight,
            rssm.gates.weight,
            rssm.posterior_layer.linear.weight[:, :size].t(),
            rssm.posterior_head.weight.t(),
        ]
        forth = [panels(matrix) for matrix in matrices]
        self.back = Back(*(panels(matrix.transpose(-1, -2)) for matrix in matrices))
        vectors = [
            rssm.from_deter.linear.bias,
            rssm.from_deter.scale,
            rssm.from_stoch.linear.bias,
            rssm.from_stoch.scale,
            rssm.scale,
            rssm.gates.bias,
            rssm.posterior_layer.scale,
            rssm.posterior_head.bias,
        ]
        d, ds, s, ss, scale, gates, ps, head = (vector.detach().numpy() for vector in vectors)
        self.weights = Weights(
            address(product, PRODUCT),
            *(forth[0], d, ds, forth[1], s, ss, forth[2], forth[3], scale),
            *(forth[4], gates, forth[5], ps, forth[6], head),
        )

    def remember(self, deter: Tensor, stoch: Tensor, action_inputs: Tensor) -> Tensor:
        """h' [N, D] without gradients."""
        out = np.empty(deter.shape, np.float32)
        rows = (part.detach().contiguous().numpy() for part in (deter, stoch, action_inputs))
        _remember_rows(self.weights, *rows, keep(1, min(HEIGHT, len(out)), self.weights), out)
        return torch.from_numpy(out)

    def imagine_choices(self, actor: Network, prior: Network, *given: Tensor) -> None:
        """`imagine_choices` of tensors, the last two of which are filled."""
        arrays = [part.numpy() for part in given]
        kept = keep(1, min(HEIGHT, arrays[1].shape[1]), self.weights)
        imagine_choices(self.weights, actor, prior, *arrays[:3], kept, *arrays[3:])

    def add_gradients(self, kept: Kept, deter: np.ndarray, slopes: Slopes) -> None:
        """Add to the gradients of all weights, from rows of all steps at once."""
        rssm, of = self.rssm, _tensors
        states, before, drawn = (part.flatten(0, 1) for part in of(deter, kept.deter, kept.stoch))
        inputs, hidden, seen = of(kept.inputs, kept.hidden, kept.posterior)
        total, logits, token = (part.flatten(0, 1) for part in of(slopes.total, slopes.logits, slopes.token))
        to_deter, to_stoch = (part.flatten(0, 1) for part in of(slopes.plain)[0].unbind(1))
        width = 2 * len(rssm.from_deter.scale)
        blocks = len(rssm.own.weight)
        with torch.no_grad():
            for layer, slope, rows in (
                (rssm.from_deter.linear, to_deter, before),
                (rssm.from_stoch.linear, to_stoch, drawn),
                (rssm.posterior_head, logits, seen.flatten(0, 1)),
            ):
                layer.weight.grad += slope.t() @ rows
                layer.bias.grad += slope.sum(0)
            rssm.posterior_layer.linear.weight.grad[:, : rssm.deter_size] += token.t() @ states
            rssm.shared.grad[:width] += hidden.permute(1, 3, 0, 2).reshape(width, -1) @ total
            split = (part.flatten(0, 1).unflatten(-1, (blocks, -1)) for part in (inputs, of(kept.deter)[0]))
            gated, owned = (part.permute(1, 2, 0) for part in split)
            gates = of(slopes.gates)[0].transpose(0, 1).flatten(1, 2)
            rssm.gates.weight.grad += gated @ gates
            rssm.gates.bias.grad += gates.sum(1).flatten()
            rssm.own.weight.grad += owned @ total.unflatten(-1, (blocks, -1)).transpose(0, 1)
        for scale, slope in zip(
            (rssm.from_deter.scale, rssm.from_stoch.scale, rssm.posterior_layer.scale, rssm.scale),
            (*slopes.scales, slopes.scale),
            strict=True,
        ):
            scale.grad += torch.from_numpy(slope)


class Slopes(NamedTuple):
    """The slopes of a loss in what `Kept` is of, and in the scales of RMSNorms."""

    total: np.ndarray  # [T, N, D], also those of a
    token: np.ndarray  # [T, N, hidden], also those of o
    logits: np.ndarray  # [T, N, K · S]
    plain: np.ndarray  # [T, 2, N, hidden]
    gates: np.ndarray  # [T, G, N, 3 D / G]
    scales: np.ndarray  # [3, hidden]
    scale: np.ndarray  # [D]


def _tensors(*arrays: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


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
    def forward(
        ctx: Any,
        action: Tensor,
        token: Tensor,
        deter: Tensor,
        stoch: Tensor,
        noise: Tensor,
        first: Tensor,
        recurrence: Recurrence,
    ) -> tuple[Tensor, ...]:
        weights = recurrence.weights
        given = [part.detach().contiguous().numpy() for part in (action, token, deter, stoch, noise, first)]
        steps, count, _ = given[0].shape
        kept = keep(steps, count, weights)
        outputs = _forward(weights, kept, *given)
        ctx.recurrence, ctx.kept, ctx.first, ctx.outputs = recurrence, kept, given[-1], outputs
        return tuple(torch.from_numpy(part) for part in outputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        recurrence, (deter, _, probs) = ctx.recurrence, ctx.outputs
        given = [part.contiguous().numpy() for part in slopes]
        back = Slopes(*_backward(recurrence.weights, recurrence.back, ctx.kept, ctx.first, probs, *given))
        recurrence.add_gradients(ctx.kept, deter, back)
        return torch.from_numpy(back.total), torch.from_numpy(back.token), None, None, None, None, None


@njit(nogil=True)
def multiply(where, rows, to, begin, left, right, sizes):  # type: ignore[no-untyped-def]
    """out = start + left · right of `sizes` (depth, width), each but `right` a flat array, a place and a row's step."""
    depth, width = sizes
    first, second = (left[0], left[1], left[2], NEXT), (right, STAY, NEXT_PANEL, depth * NEXT_PANEL)
    call_product(where, (rows, width, depth, to, begin, first, second))


@njit(nogil=True)
def flat(array):  # type: ignore[no-untyped-def]
    return array.reshape(array.size)


@njit(nogil=True)
def whole(array):  # type: ignore[no-untyped-def]
    """All of a matrix [N, width], as `multiply` takes it."""
    return (array.reshape(array.size), STAY, np.int64(array.shape[1]))


@njit(nogil=True)
def all_rows(vector):  # type: ignore[no-untyped-def]
    """The same vector in every row."""
    return (vector, STAY, STAY)


@njit(nogil=True)
def dense(where, x, weight, begin, out):  # type: ignore[no-untyped-def]
    """out [N, n] = begin + x [N, k] · weight, given as panels."""
    multiply(
        where,
        len(x),
        whole(out),
        begin,
        whole(x),
        flat(weight),
        (np.int64(x.shape[1]), np.int64(out.shape[1])),
    )


@njit(nogil=True)
def _remember(w, kept, t, action, out):  # type: ignore[no-untyped-def]
    """h' from a [N, D] and the state that is in `kept` already; the rest of `kept` is filled."""
    deter, rows, size = kept.deter[t], len(action), action.shape[1]
    blocks, width = len(w.own), np.int64(size // len(w.own))
    parts = (
        (deter, w.from_deter, w.deter_bias, w.deter_scale),
        (kept.stoch[t], w.from_stoch, w.stoch_bias, w.stoch_scale),
    )
    for i in range(2):
        x, weight, bias, scale = parts[i]
        dense(w.where, x, weight, all_rows(bias), kept.plain[t, i])
        kept.hidden[t, i], kept.inverse[t, i] = norm_silu_forward(kept.plain[t, i], scale, EPSILON)
    total = kept.total[t]
    dense(w.where, kept.hidden[t, 0], w.shared[0], whole(action), total)
    dense(w.where, kept.hidden[t, 1], w.shared[1], whole(total), total)
    for block in range(blocks):
        at = (flat(total), block * width, np.int64(size))
        left = (flat(deter), block * width, np.int64(size))
        multiply(w.where, rows, at, at, left, flat(w.own[block]), (width, width))
    kept.inputs[t], kept.inverse[t, 2] = norm_silu_forward(total, w.scale, EPSILON)
    for block in range(blocks):
        begin = all_rows(np.zeros(3 * width, np.float32))
        left = (flat(kept.inputs[t]), block * width, np.int64(size))
        multiply(
            w.where, rows, whole(kept.gates[t, block]), begin, left, flat(w.gates[block]), (width, 3 * width)
        )
    out[:] = gated_forward(kept.gates[t], w.gates_bias, deter)


@njit(nogil=True, error_model="numpy")
def _remember_rows(w, deter, stoch, action, kept, out):  # type: ignore[no-untyped-def]
    """The same for any number of rows, a block that stays in the cache at a time."""
    height = kept.deter.shape[1]
    for first in range(0, len(out), height):
        # The last block begins early: rows that come twice come to the same.
        start = min(first, len(out) - height)
        end = start + height
        kept.deter[0], kept.stoch[0] = deter[start:end], stoch[start:end]
        _remember(w, kept, START, action[start:end], out[start:end])


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def choose(outputs, chance, chosen):  # type: ignore[no-untyped-def]
    """Actions [N] by Gumbel-max: argmaxᵢ (log πᵢ - log Eᵢ) with `chance` E ~ Exp(1) [N, A]; π has its 1 % of 1 / A."""
    choices = outputs.shape[1]
    for i in range(len(chosen)):
        top, total, best = outputs[i].max(), np.float32(0), np.float32(0)
        for j in range(choices):
            total += math.exp(outputs[i, j] - top)
        for j in range(choices):
            share = math.exp(outputs[i, j] - top) / total * (np.float32(1) - MIX) + MIX / np.float32(choices)
            score = np.float32(math.log(share)) - np.float32(math.log(chance[i, j]))
            if j == 0 or score > best:
                chosen[i], best = j, score


@njit(calls=True, nogil=True, error_model="numpy")
def imagine_choices(w, actor, prior, inputs, noise, chance, kept, features, actions):  # type: ignore[no-untyped-def]
    """Act in the model: features [H + 1, N, F] of which the first are given, and actions [H, N].

    inputs [A, D]: what each action adds to the memory's input
    noise, chance: by which latents and actions are drawn, [H, N, ...]
    A block of rows goes through all steps before the next one: it stays in the cache.
    """
    actor, prior = Network(*actor), Network(*prior)
    horizon, count, choices = noise.shape
    size, height = len(w.scale), kept.deter.shape[1]
    order, added = np.arange(count), np.empty((height, size), np.float32)
    deter, classes = np.empty((height, size), np.float32), (features.shape[2] - size) // choices
    for first in range(0, count, height):
        # The last block begins early: rows that come twice come to the same.
        start = min(first, count - height)
        part = slice(start, start + height)
        for t in range(horizon):
            choose(put_out(actor, features[t], order[part]), chance[t, part], actions[t, part])
            for i in range(height):
                added[i] = inputs[actions[t, start + i]]
            kept.deter[0], kept.stoch[0] = features[t, part, :size], features[t, part, size:]
            _remember(w, kept, START, added, deter)
            logits = put_out(prior, deter, order[:height])
            drawn, _ = draw_forward(logits.reshape((height, classes, choices)), noise[t, part], MIX)
            features[t + 1, part, :size] = deter
            features[t + 1, part, size:] = drawn.reshape((height, classes * choices))


@njit(nogil=True, error_model="numpy")
def _forward(w, kept, action, token, deter, stoch, noise, first):  # type: ignore[no-untyped-def]
    steps, count, choices = noise.shape
    states = np.empty(action.shape, np.float32)
    drawn = np.empty((steps, count, stoch.shape[1]), np.float32)
    probs = np.empty((steps, count, stoch.shape[1] // choices, choices), np.float32)
    logits = np.empty((count, stoch.shape[1]), np.float32)
    for t in range(steps):
        kept.deter[t] = deter if t == 0 else states[t - 1]
        kept.stoch[t] = stoch if t == 0 else drawn[t - 1]
        for i in range(count):
            if first[t, i] > 0:
                kept.deter[t, i], kept.stoch[t, i] = np.float32(0), np.float32(0)
        _remember(w, kept, t, action[t], states[t])
        dense(w.where, states[t], w.posterior, whole(token[t]), kept.seen[t])
        kept.posterior[t], kept.inverse[t, 3] = norm_silu_forward(kept.seen[t], w.posterior_scale, EPSILON)
        dense(w.where, kept.posterior[t], w.head, all_rows(w.head_bias), logits)
        one_hot, probs[t] = draw_forward(logits.reshape(probs[t].shape), noise[t], MIX)
        drawn[t] = one_hot.reshape(drawn[t].shape)
    return states, drawn, probs


@njit(nogil=True, error_model="numpy")
def _backward(w, back, kept, first, probs, to_deter, to_stoch, to_probs):  # type: ignore[no-untyped-def]
    """The chain rule from the last step to the first; to_…: slopes of a loss in what `_forward` gave."""
    steps, count, size = to_deter.shape
    hidden, blocks = kept.plain.shape[3], len(w.own)
    width = np.int64(size // blocks)
    total = np.empty(to_deter.shape, np.float32)
    token = np.empty((steps, count, hidden), np.float32)
    logits = np.empty(to_stoch.shape, np.float32)
    plain, gates = np.empty(kept.plain.shape, np.float32), np.empty(kept.gates.shape, np.float32)
    scales, scale = np.zeros((3, hidden), np.float32), np.zeros(size, np.float32)
    nothing = all_rows(np.zeros(max(size, hidden, logits.shape[2]), np.float32))
    deter, stoch = np.zeros((count, size), np.float32), np.zeros((count, logits.shape[2]), np.float32)
    to_hidden, to_inputs = np.empty((count, hidden), np.float32), np.empty((count, size), np.float32)
    for t in range(steps - 1, -1, -1):
        stoch += to_stoch[t]
        slope = draw_backward(probs[t], stoch.reshape(probs[t].shape), to_probs[t], MIX)
        logits[t] = slope.reshape(logits[t].shape)
        dense(w.where, logits[t], back.head, nothing, to_hidden)
        token[t], more = norm_silu_backward(kept.seen[t], w.posterior_scale, kept.inverse[t, 3], to_hidden)
        scales[2] += more
        deter += to_deter[t]
        dense(w.where, token[t], back.posterior, whole(deter), deter)
        gates[t], _, before = gated_backward(kept.gates[t], w.gates_bias, kept.deter[t], deter)
        for block in range(blocks):
            to = (flat(to_inputs), block * width, np.int64(size))
            sizes = (3 * width, width)
            multiply(w.where, count, to, nothing, whole(gates[t, block]), flat(back.gates[block]), sizes)
        total[t], more_scale = norm_silu_backward(kept.total[t], w.scale, kept.inverse[t, 2], to_inputs)
        scale += more_scale
        for block in range(blocks):
            at = (flat(before), block * width, np.int64(size))
            left = (flat(total[t]), block * width, np.int64(size))
            multiply(w.where, count, at, at, left, flat(back.own[block]), (width, width))
        for i in range(2):
            dense(w.where, total[t], back.shared[i], nothing, to_hidden)
            given = w.deter_scale if i == 0 else w.stoch_scale
            plain[t, i], more = norm_silu_backward(kept.plain[t, i], given, kept.inverse[t, i], to_hidden)
            scales[i] += more
        dense(w.where, plain[t, 0], back.from_deter, whole(before), before)
        dense(w.where, plain[t, 1], back.from_stoch, nothing, stoch)
        for i in range(count):
            if first[t, i] > 0:
                before[i], stoch[i] = np.float32(0), np.float32(0)
        deter = before
    return total, token, logits, plain, gates, scales, scale
