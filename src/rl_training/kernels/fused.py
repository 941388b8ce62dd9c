"""RMSNorm with SiLU, a GRU's step and one-hot draws: each one pass over memory, with hand-written gradients.

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

from rl_training.algorithms.one_hot import UNIMIX, draw_one_hot, straight_through, unimix
from rl_training.compiling import njit
from rl_training.kernels.compiled import fits
from rl_training.kernels.functions import FAST, RMS_EPSILON, fast_tanh
from rl_training.kernels.programs import SIZES, line, perform
from rl_training.kernels.supports import exponentials

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
EPSILON, MIX = np.float32(RMS_EPSILON), np.float32(UNIMIX)


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
    return _gated_step(gates, bias, state)


def draw_latent(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [..., K, S] and noise [..., S] in [0, 1) → one-hot draws with straight-through gradients, and probs."""
    if not fits(logits):
        probs = unimix(logits)
        return straight_through(draw_one_hot(probs.detach(), noise), probs), probs
    return _DrawLatent.apply(logits, noise) if torch.is_grad_enabled() else _draw_latent(logits, noise)


def _rows(x: Tensor, size: int) -> np.ndarray:
    return x.detach().reshape(-1, size).contiguous().numpy()


def _norm_silu(x: Tensor, scale: Tensor) -> tuple[Tensor, np.ndarray]:
    rows, size = _rows(x, len(scale)), len(scale)
    y, inverse = torch.empty(x.shape), np.empty((len(rows), 1), np.float32)
    perform(norm_forward, len(rows), rows, scale.detach().numpy(), _rows(y, size), inverse, sizes=(size,))
    return y, inverse


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        y, ctx.inverse = _norm_silu(x, scale)
        ctx.save_for_backward(x, scale)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        size, to_x, to_scale = len(scale), torch.empty(x.shape), torch.zeros(scale.shape)
        given = (_rows(x, size), scale.detach().numpy(), ctx.inverse, _rows(slope, size))
        count = len(given[0])
        arrays = (*given, _rows(to_x, size), to_scale.numpy(), np.empty_like(given[0]))
        perform(norm_backward, count, *arrays, sizes=(size,))
        return to_x, to_scale


def _gated_step(gates: Tensor, bias: Tensor, state: Tensor) -> Tensor:
    out = torch.empty(state.shape)
    given = [part.detach().contiguous().numpy() for part in (gates, bias, state, out)]
    perform(gate_forward, len(state), given[0][0], *given[1:], sizes=_gate_sizes(given[0]))
    return out


def _gate_sizes(gates: np.ndarray) -> tuple[int, int, int]:
    """Units of a block, blocks, and numbers from one to the next in gates [G, N, 3 D / G]."""
    blocks, count, width = gates.shape
    return width // 3, blocks, count * width


class _GatedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        ctx.save_for_backward(gates, bias, state)
        return _gated_step(gates, bias, state)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        given = [part.detach().contiguous().numpy() for part in (*ctx.saved_tensors, slope)]
        gates, bias, state, _ = given
        to_gates, to_bias, to_state = np.empty_like(gates), np.zeros_like(bias), np.empty_like(state)
        arrays = (gates[0], *given[1:], to_gates[0], to_state, to_bias)
        perform(gate_backward, len(state), *arrays, sizes=_gate_sizes(gates))
        return torch.from_numpy(to_gates), torch.from_numpy(to_bias), torch.from_numpy(to_state)


def _draw_latent(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    classes, choices = logits.shape[-2:]
    drawn, probs = torch.empty(logits.shape), torch.empty(logits.shape)
    rows, *out = (_rows(part, classes * choices) for part in (logits, drawn, probs))
    room = room_to_draw(choices)
    perform(draw_forward, len(rows), rows, _rows(noise, choices), *out, room, sizes=(classes, choices))
    return drawn, probs


def room_to_draw(choices: int) -> np.ndarray:
    """What `draw_forward` and `draw_backward` need for a row."""
    return np.empty(4 * choices, np.float32)


class _DrawLatent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        drawn, probs = _draw_latent(logits, noise)
        ctx.save_for_backward(probs)
        return drawn, probs

    @staticmethod
    def backward(ctx: Any, to_drawn: Tensor, to_probs: Tensor) -> tuple[Tensor, None]:
        (probs,) = ctx.saved_tensors
        classes, choices = probs.shape[-2:]
        to_logits = torch.empty(probs.shape)
        given = [_rows(part, classes * choices) for part in (probs, to_drawn, to_probs, to_logits)]
        perform(draw_backward, len(given[0]), *given, room_to_draw(choices), sizes=(classes, choices))
        return to_logits, None


@njit(fastmath=FAST, inline="always")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """½ + ½ tanh(x / 2). The last term is 0, and NaN where x is: the tanh would make a number of it."""
    return HALF + HALF * fast_tanh(HALF * x) + ZERO * x


# Operations of programs: their arrays are named in the order in which they are given.


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def norm_forward(op, step, rows):  # type: ignore[no-untyped-def]
    """x, scale → y, inverse: one over the root of each row."""
    size = op[SIZES]
    scale = line(op, 1, step, 0, size)
    for i in range(rows):
        x, y, total = line(op, 0, step, i, size), line(op, 2, step, i, size), ZERO
        for j in range(size):
            total += x[j] * x[j]
        factor = ONE / np.float32(math.sqrt(total / np.float32(size) + EPSILON))
        line(op, 3, step, i, 1)[0] = factor
        for j in range(size):
            z = x[j] * factor * scale[j]
            y[j] = z * _sigmoid(z)


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def norm_backward(op, step, rows):  # type: ignore[no-untyped-def]
    """x, scale, inverse, slope → ∂x, and y once more; to ∂scale is added. With n = x / rms and z = n · scale:

    ∂z = g σ(z) (1 + z (1 - σ(z)))        ∂n = ∂z · scale        ∂x = (∂n - n · mean(∂n n)) / rms
    """
    size = op[SIZES]
    scale, to_scale = line(op, 1, step, 0, size), line(op, 5, step, 0, size)
    for i in range(rows):
        x, slope, to_x = line(op, 0, step, i, size), line(op, 3, step, i, size), line(op, 4, step, i, size)
        factor, total, y = line(op, 2, step, i, 1)[0], ZERO, line(op, 6, step, i, size)
        for j in range(size):
            normed = x[j] * factor
            z = normed * scale[j]
            gate = _sigmoid(z)
            y[j] = z * gate
            to_z = slope[j] * gate * (ONE + z * (ONE - gate))
            to_x[j] = to_z * scale[j]
            to_scale[j] += to_z * normed
        for j in range(size):
            total += to_x[j] * x[j]
        mean = total * factor / np.float32(size)
        for j in range(size):
            to_x[j] = (to_x[j] - x[j] * factor * mean) * factor


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def gate_forward(op, step, rows):  # type: ignore[no-untyped-def]
    """Gates, their bias, the state before → the state; sizes: a block's units, blocks, the step between blocks."""
    width, blocks, apart = op[SIZES], op[SIZES + 1], op[SIZES + 2]
    for block in range(blocks):
        bias = line(op, 1, step, 0, 3 * width * blocks)[3 * block * width :]
        for i in range(rows):
            gates = line(op, 0, step, i, apart * (blocks - 1) + 3 * width)[block * apart :]
            state = line(op, 2, step, i, width * blocks)[block * width :]
            out = line(op, 3, step, i, width * blocks)[block * width :]
            for j in range(width):
                reset = _sigmoid(gates[j] + bias[j])
                candidate = fast_tanh(reset * (gates[width + j] + bias[width + j]))
                update = _sigmoid(gates[2 * width + j] + bias[2 * width + j] - ONE)
                out[j] = state[j] + update * (candidate - state[j])


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def gate_backward(op, step, rows):  # type: ignore[no-untyped-def]
    """The same and the slope of the state → ∂gates, ∂state before; to ∂bias is added."""
    width, blocks, apart = op[SIZES], op[SIZES + 1], op[SIZES + 2]
    every, size = 3 * width * blocks, width * blocks
    for block in range(blocks):
        bias, to_bias = (
            line(op, 1, step, 0, every)[3 * block * width :],
            line(op, 6, step, 0, every)[3 * block * width :],
        )
        for i in range(rows):
            gates = line(op, 0, step, i, apart * (blocks - 1) + 3 * width)[block * apart :]
            to_gates = line(op, 4, step, i, apart * (blocks - 1) + 3 * width)[block * apart :]
            state, slope = (
                line(op, 2, step, i, size)[block * width :],
                line(op, 3, step, i, size)[block * width :],
            )
            to_state = line(op, 5, step, i, size)[block * width :]
            for j in range(width):
                g, old = slope[j], state[j]
                value = gates[width + j] + bias[width + j]
                reset = _sigmoid(gates[j] + bias[j])
                candidate = fast_tanh(reset * value)
                update = _sigmoid(gates[2 * width + j] + bias[2 * width + j] - ONE)
                inner = g * update * (ONE - candidate * candidate)
                to_gates[j] = inner * value * reset * (ONE - reset)
                to_gates[width + j] = inner * reset
                to_gates[2 * width + j] = g * (candidate - old) * update * (ONE - update)
                to_state[j] = g * (ONE - update)
            for j in range(3 * width):
                to_bias[j] += to_gates[j]


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_forward(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits, noise → one-hot draws, probabilities; sizes: classes and choices."""
    classes, choices = op[SIZES], op[SIZES + 1]
    size, room = classes * choices, line(op, 4, step, 0, 4 * choices)
    top, total, left, place = room[:choices], room[choices:], room[2 * choices :], room[3 * choices :]
    for i in range(rows):
        logits, noise = line(op, 0, step, i, size), line(op, 1, step, i, choices)
        drawn, probs = line(op, 2, step, i, size), line(op, 3, step, i, size)
        for s in range(choices):
            top[s], total[s], left[s], place[s] = logits[s], ZERO, noise[s], ZERO
        for k in range(1, classes):
            for s in range(choices):
                top[s] = max(top[s], logits[k * choices + s])
        # Differences lie in `drawn` for now: of numbers in place, exponentials are computed one by one.
        for k in range(classes):
            for s in range(choices):
                drawn[k * choices + s] = logits[k * choices + s] - top[s]
        exponentials(drawn, ZERO, probs)
        for k in range(classes):
            for s in range(choices):
                total[s] += probs[k * choices + s]
        for s in range(choices):
            total[s] = (ONE - MIX) / total[s]
        for k in range(classes):
            for s in range(choices):
                at = k * choices + s
                probs[at] = probs[at] * total[s] + MIX / np.float32(classes)
                probs[at] += ZERO * logits[at]  # NaN stays NaN
                left[s] -= probs[at]
                place[s] += ONE if left[s] >= ZERO else ZERO
                drawn[at] = ZERO
        for s in range(choices):
            drawn[min(np.int64(place[s]), classes - 1) * choices + s] = ONE


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_backward(op, step, rows):  # type: ignore[no-untyped-def]
    """Probabilities and the slopes of draws and of them → those of logits, through p = (1 - m) q + m / K:

    q = softmax(l)        ∂l = (1 - m) q (g - Σ q g)        g = ∂drawn + ∂p
    """
    classes, choices = op[SIZES], op[SIZES + 1]
    size, mean = classes * choices, line(op, 4, step, 0, choices)
    for i in range(rows):
        probs, to_drawn = line(op, 0, step, i, size), line(op, 1, step, i, size)
        to_probs, to_logits = line(op, 2, step, i, size), line(op, 3, step, i, size)
        for s in range(choices):
            mean[s] = ZERO
        for k in range(classes):
            for s in range(choices):
                at = k * choices + s
                plain = (probs[at] - MIX / np.float32(classes)) / (ONE - MIX)
                mean[s] += plain * (to_drawn[at] + to_probs[at])
        for k in range(classes):
            for s in range(choices):
                at = k * choices + s
                plain = probs[at] - MIX / np.float32(classes)
                to_logits[at] = plain * (to_drawn[at] + to_probs[at] - mean[s])
