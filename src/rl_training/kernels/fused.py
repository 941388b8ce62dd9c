"""Three operations of Dreamer's networks, each fused into one pass over memory, with hand-written gradients.

torch would run each as a row of small operations, every one of them through all of the memory, and torch's softmax
over the few classes of a latent is some fifty times slower than the exponentials in it. Where tensors are not single
precision on a CPU, or are being compiled, torch's own operations do the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.dreamer import UNIMIX, draw_one_hot, straight_through, unimix
from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.functions import FAST, RMS_EPSILON, fast_tanh
from rl_training.kernels.supports import exponentials

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


def norm_silu(x: Tensor, scale: Tensor) -> Tensor:
    """SiLU(RMSNorm(x)) over the last dimension: z = x / √(mean(x²) + ε) · scale, y = z σ(z)."""
    if not fits(x):
        return F.silu(F.rms_norm(x, scale.shape, scale, RMS_EPSILON))
    return _NormSiLU.apply(x, scale) if torch.is_grad_enabled() else _norm_silu(x, scale)[0]


def gated_step(gates: Tensor, bias: Tensor, state: Tensor) -> Tensor:
    """A GRU's step from gates [G, N, 3 D / G] and their bias [3 D], in blocks, and the state [N, D].

    Each block of the gates holds reset r, candidate c and update u:
        h' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) h        the -1 makes remembering the default
    """
    if not fits(gates):
        blocks = len(gates)
        given = gates.transpose(0, 1) + bias.unflatten(0, (blocks, -1))
        reset, candidate, update = given.unflatten(-1, (3, -1)).unbind(-2)
        memory = state.unflatten(-1, (blocks, -1))
        return torch.lerp(memory, (reset.sigmoid() * candidate).tanh(), (update - 1).sigmoid()).flatten(-2)
    if torch.is_grad_enabled():
        return _GatedStep.apply(gates, bias, state)
    return torch.from_numpy(gated_forward(*_arrays(gates, bias, state)))


def draw_latent(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [..., K, S] and noise [..., S] in [0, 1) → one-hot draws with straight-through gradients, and probs."""
    if not fits(logits):
        probs = unimix(logits)
        return straight_through(draw_one_hot(probs.detach(), noise), probs), probs
    return _DrawLatent.apply(logits, noise) if torch.is_grad_enabled() else _draw_latent(logits, noise)


def _rows(x: Tensor, size: int) -> np.ndarray:
    return x.detach().reshape(-1, size).numpy()


def _like(array: np.ndarray, x: Tensor) -> Tensor:
    return torch.from_numpy(array).view(x.shape)


def _norm_silu(x: Tensor, scale: Tensor) -> tuple[Tensor, np.ndarray]:
    y, inverse = norm_silu_forward(_rows(x, len(scale)), scale.detach().numpy(), np.float32(RMS_EPSILON))
    return _like(y, x), inverse


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        y, ctx.inverse = _norm_silu(x, scale)
        ctx.save_for_backward(x, scale)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        size = len(scale)
        back = norm_silu_backward(_rows(x, size), scale.detach().numpy(), ctx.inverse, _rows(slope, size))
        return _like(back[0], x), torch.from_numpy(back[1])


class _GatedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        ctx.save_for_backward(gates, bias, state)
        return torch.from_numpy(gated_forward(*_arrays(gates, bias, state)))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        back = gated_backward(*_arrays(*ctx.saved_tensors, slope))
        return tuple(torch.from_numpy(part) for part in back)


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def _draw_latent(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    classes, choices = logits.shape[-2:]
    rows = logits.detach().reshape(-1, classes, choices).numpy()
    drawn, probs = draw_forward(rows, _rows(noise, choices), np.float32(UNIMIX))
    return _like(drawn, logits), _like(probs, logits)


class _DrawLatent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        drawn, probs = _draw_latent(logits, noise)
        ctx.save_for_backward(probs)
        return drawn, probs

    @staticmethod
    def backward(ctx: Any, to_drawn: Tensor, to_probs: Tensor) -> tuple[Tensor, None]:
        (probs,) = ctx.saved_tensors
        shape = (-1, *probs.shape[-2:])
        shares, slopes, others = (part.reshape(shape).numpy() for part in (probs, to_drawn, to_probs))
        return _like(draw_backward(shares, slopes, others, np.float32(UNIMIX)), probs), None


@njit(fastmath=FAST, inline="always")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """½ + ½ tanh(x / 2). The last term is 0, and NaN where x is: the tanh would make a number of it."""
    return HALF + HALF * fast_tanh(HALF * x) + ZERO * x


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def norm_silu_forward(x, scale, epsilon):  # type: ignore[no-untyped-def]
    count, size = x.shape
    y, inverse = np.empty((count, size), np.float32), np.empty(count, np.float32)
    for i in range(count):
        total = ZERO
        for j in range(size):
            total += x[i, j] * x[i, j]
        factor = ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
        inverse[i] = factor
        for j in range(size):
            z = x[i, j] * factor * scale[j]
            y[i, j] = z * _sigmoid(z)
    return y, inverse


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def norm_silu_backward(x, scale, inverse, slope):  # type: ignore[no-untyped-def]
    """With n = x / rms and z = n · scale: ∂z = g σ(z) (1 + z (1 - σ(z))), ∂n = ∂z · scale, and

    ∂x = (∂n - n · mean(∂n n)) / rms.
    """
    count, size = x.shape
    to_x, to_scale = np.empty((count, size), np.float32), np.zeros(size, np.float32)
    for i in range(count):
        factor, total = inverse[i], ZERO
        for j in range(size):
            normed = x[i, j] * factor
            z = normed * scale[j]
            gate = _sigmoid(z)
            to_z = slope[i, j] * gate * (ONE + z * (ONE - gate))
            to_x[i, j] = to_z * scale[j]
            to_scale[j] += to_z * normed
        for j in range(size):
            total += to_x[i, j] * x[i, j]
        mean = total * factor / np.float32(size)
        for j in range(size):
            to_x[i, j] = (to_x[i, j] - x[i, j] * factor * mean) * factor
    return to_x, to_scale


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def gated_forward(gates, bias, state):  # type: ignore[no-untyped-def]
    blocks, count, width = gates.shape[0], gates.shape[1], gates.shape[2] // 3
    out = np.empty(state.shape, np.float32)
    for block in range(blocks):
        begin, first = block * width, 3 * block * width
        for i in range(count):
            for j in range(width):
                reset = _sigmoid(gates[block, i, j] + bias[first + j])
                candidate = fast_tanh(reset * (gates[block, i, width + j] + bias[first + width + j]))
                update = _sigmoid(gates[block, i, 2 * width + j] + bias[first + 2 * width + j] - ONE)
                old = state[i, begin + j]
                out[i, begin + j] = old + update * (candidate - old)
    return out


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def gated_backward(gates, bias, state, slope):  # type: ignore[no-untyped-def]
    blocks, count, width = gates.shape[0], gates.shape[1], gates.shape[2] // 3
    to_gates, to_state = np.empty(gates.shape, np.float32), np.empty(state.shape, np.float32)
    to_bias = np.zeros(bias.shape, np.float32)
    for block in range(blocks):
        begin, first = block * width, 3 * block * width
        for i in range(count):
            for j in range(width):
                g, old = slope[i, begin + j], state[i, begin + j]
                value = gates[block, i, width + j] + bias[first + width + j]
                reset = _sigmoid(gates[block, i, j] + bias[first + j])
                candidate = fast_tanh(reset * value)
                update = _sigmoid(gates[block, i, 2 * width + j] + bias[first + 2 * width + j] - ONE)
                inner = g * update * (ONE - candidate * candidate)
                to_gates[block, i, j] = inner * value * reset * (ONE - reset)
                to_gates[block, i, width + j] = inner * reset
                to_gates[block, i, 2 * width + j] = g * (candidate - old) * update * (ONE - update)
                to_state[i, begin + j] = g * (ONE - update)
            for j in range(3 * width):
                to_bias[first + j] += to_gates[block, i, j]
    return to_gates, to_bias, to_state


@njit(nogil=True, error_model="numpy")
def draw_forward(logits, noise, unimix):  # type: ignore[no-untyped-def]
    count, classes, choices = logits.shape
    drawn, probs = np.zeros(logits.shape, np.float32), np.empty(logits.shape, np.float32)
    top, total = np.empty(choices, np.float32), np.empty(choices, np.float32)
    left, place = np.empty(choices, np.float32), np.empty(choices, np.int64)
    away = np.empty((classes, choices), np.float32)
    for i in range(count):
        top[:] = logits[i, 0]
        for k in range(1, classes):
            for s in range(choices):
                top[s] = max(top[s], logits[i, k, s])
        for k in range(classes):
            for s in range(choices):
                away[k, s] = logits[i, k, s] - top[s]
        exponentials(away.reshape(away.size), ZERO, probs[i].reshape(away.size))
        total[:] = ZERO
        for k in range(classes):
            for s in range(choices):
                total[s] += probs[i, k, s]
        left[:] = noise[i]
        place[:] = 0
        for s in range(choices):
            total[s] = (ONE - unimix) / total[s]
        for k in range(classes):
            for s in range(choices):
                probs[i, k, s] = probs[i, k, s] * total[s] + unimix / np.float32(classes)
                probs[i, k, s] += ZERO * logits[i, k, s]  # NaN stays NaN
                left[s] -= probs[i, k, s]
                place[s] += left[s] >= ZERO
        for s in range(choices):
            drawn[i, min(place[s], classes - 1), s] = ONE
    return drawn, probs


@njit(nogil=True, error_model="numpy")
def draw_backward(probs, to_drawn, to_probs, unimix):  # type: ignore[no-untyped-def]
    """Through p = (1 - m) q + m / K with q = softmax(l): ∂l = (1 - m) q (g - Σ q g), g = ∂drawn + ∂p."""
    count, classes, choices = probs.shape
    to_logits, mean = np.empty(probs.shape, np.float32), np.empty(choices, np.float32)
    for i in range(count):
        mean[:] = ZERO
        for k in range(classes):
            for s in range(choices):
                plain = (probs[i, k, s] - unimix / np.float32(classes)) / (ONE - unimix)
                mean[s] += plain * (to_drawn[i, k, s] + to_probs[i, k, s])
        for k in range(classes):
            for s in range(choices):
                plain = probs[i, k, s] - unimix / np.float32(classes)
                to_logits[i, k, s] = plain * (to_drawn[i, k, s] + to_probs[i, k, s] - mean[s])
    return to_logits
