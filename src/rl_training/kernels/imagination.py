"""Acting in a recurrent state-space model (RSSM): all steps of a block of rows in one call, without gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.compiling import njit
from rl_training.kernels.functions import FAST, tanh
from rl_training.kernels.fused import HALF, MIX, ONE, ZERO, draw_forward, norm_forward, room_to_draw
from rl_training.kernels.layers import HEIGHT
from rl_training.kernels.products import PANEL
from rl_training.kernels.programs import SIZES, Program, line
from rl_training.kernels.recurrence import Panels, Recurrence, room


class DenseLayer(NamedTuple):
    weight: np.ndarray  # panels
    bias: np.ndarray
    scale: np.ndarray | None  # of RMSNorm, which SiLU follows; or neither


def read_layers(panels: Panels, modules: Sequence[Any]) -> list[DenseLayer]:
    """Layers one behind the other: with `linear` and `scale`, or plain ones."""
    layers = []
    for module in modules:
        linear = getattr(module, "linear", module)
        scale = module.scale.detach().numpy() if linear is not module else None
        layers.append(DenseLayer(panels.matrix(linear.weight.t()), panels.vector(linear.bias), scale))
    return layers


def add_layers(program: Program, layers: Sequence[DenseLayer], x: np.ndarray, count: int) -> np.ndarray:
    """What the layers make of x, a view of [T, N, ...]: the same room [N, ...] in every step."""
    for weight, bias, scale in layers:
        y = room(count, len(weight) * PANEL)
        program.multiply(y, bias, x, weight)
        if scale is not None:
            # Not in place: the compiler's vectors need to know that nothing is read where they are written.
            normed = room(count, len(weight) * PANEL)
            program.add(norm_forward, y, scale, normed, room(count, 1), sizes=(len(scale),))
            y = normed
        x = y
    return x


class Imagination:
    """Features [H + 1, N, F] from those of N states on, and actions [H, N, ...], by an actor and the prior."""

    def __init__(
        self, recurrence: Recurrence, actor: Sequence[Any], prior: Sequence[Any], dimensions: int
    ) -> None:
        """dimensions: of an action that is a vector; 0 where it is one choice."""
        self.recurrence, self.dimensions = recurrence, dimensions
        panels = recurrence.panels
        self.actor, self.prior = read_layers(panels, actor), read_layers(panels, prior)
        rssm = recurrence.rssm
        self.from_action = read_layers(panels, [rssm.from_action]) if dimensions else []
        if dimensions:
            shared = panels.matrix(rssm.shared[2 * recurrence.hidden :])
            self.from_action.append(DenseLayer(shared, rssm.own.bias.detach().numpy(), None))
        recurrence.begin()
        self.laid: Laid | None = None

    def run(
        self, start: Tensor, noise: Tensor, chance: Tensor, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features and actions, from the features [N, F] of states; valid until the next call.

        noise, chance: by which latents and actions are drawn, [H, N, ...]
        inputs [A, D]: what each action adds to the memory's input, where an action is one choice
        """
        if self.laid is None or self.laid.chance.shape != chance.shape:
            self.laid = Laid(self, *chance.shape)
        laid = self.laid
        laid.features[0], laid.noise[...], laid.chance[...] = start.numpy(), noise.numpy(), chance.numpy()
        if inputs is not None:
            laid.inputs[...] = inputs.numpy()
        # A block of rows goes through all steps before the next one: it stays in the cache.
        for program, height in laid.programs:
            program.run(height, range(len(chance)))
        return torch.from_numpy(laid.features), torch.from_numpy(laid.actions)


class Laid:
    """The memory of H steps of N rows, and the programs of its blocks."""

    def __init__(self, of: Imagination, horizon: int, count: int, width: int) -> None:
        r = of.recurrence
        self.features = room(horizon + 1, count, r.size + r.stoch)
        self.noise, self.chance = room(horizon, count, r.rssm.num_latents), room(horizon, count, width)
        self.actions, self.inputs = room(horizon, count, of.dimensions or 1), room(width, r.size)
        self.programs = []
        for first in range(0, count, HEIGHT):
            rows = slice(first, min(first + HEIGHT, count))
            self.programs.append((self.program(of, rows), rows.stop - first))

    def program(self, of: Imagination, rows: slice) -> Program:
        """A step of these rows."""
        program, r, count = Program(), of.recurrence, rows.stop - rows.start
        now, after = self.features[:-1, rows], self.features[1:, rows]
        deter, stoch = after[..., : r.size], after[..., r.size :]
        chance, actions, choices = self.chance[:, rows], self.actions[:, rows], r.rssm.num_latents
        outputs = add_layers(program, of.actor, now, count)
        if of.dimensions:
            bounded = room(count, of.dimensions)
            program.add(draw_bounded, outputs, chance, actions, bounded, sizes=(of.dimensions,))
            added = add_layers(program, of.from_action, bounded, count)
        else:
            added = room(count, r.size)
            program.add(choose, outputs, chance, actions, sizes=chance.shape[2:])
            program.add(take, added, self.inputs, actions, sizes=(r.size,))
        r.add_memory(program, now[..., : r.size], now[..., r.size :], added, deter, r.between(count))
        logits, probs = add_layers(program, of.prior, deter, count), room(count, r.stoch)
        drawn = (logits, self.noise[:, rows], stoch, probs, room_to_draw(choices))
        program.add(draw_forward, *drawn, sizes=(r.stoch // choices, choices))
        return program


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def choose(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs, chance E ~ Exp(1) → a = argmaxᵢ (log πᵢ - log Eᵢ), Gumbel-max; π has its 1 % of 1 / A."""
    choices = op[SIZES]
    for i in range(rows):
        outputs, chance = line(op, 0, step, i, choices), line(op, 1, step, i, choices)
        top, total, best, chosen = outputs[0], ZERO, ZERO, 0
        for j in range(1, choices):
            top = max(top, outputs[j])
        for j in range(choices):
            total += np.float32(math.exp(outputs[j] - top))
        for j in range(choices):
            share = np.float32(math.exp(outputs[j] - top)) / total * (ONE - MIX) + MIX / np.float32(choices)
            score = np.float32(math.log(share)) - np.float32(math.log(chance[j]))
            if j == 0 or score > best:
                chosen, best = j, score
        line(op, 2, step, i, 1)[0] = chosen


@njit(borrows=True, nogil=True)
def take(op, step, rows):  # type: ignore[no-untyped-def]
    """Out ← the row of a table that each choice names."""
    width = op[SIZES]
    for i in range(rows):
        to, source = (
            line(op, 0, step, i, width),
            line(op, 1, step, np.int64(line(op, 2, step, i, 1)[0]), width),
        )
        for j in range(width):
            to[j] = source[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def draw_bounded(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs m and s, noise e ~ N(0, 1) → a = tanh(m) + (0.9 σ(s + 2) + 0.1) e, and a / max(1, |a|)."""
    size = op[SIZES]
    for i in range(rows):
        outputs, noise = line(op, 0, step, i, 2 * size), line(op, 1, step, i, size)
        action, bounded = line(op, 2, step, i, size), line(op, 3, step, i, size)
        for j in range(size):
            deviation = HALF + HALF * tanh(HALF * (outputs[size + j] + np.float32(2)))
            drawn = tanh(outputs[j]) + (np.float32(0.9) * deviation + np.float32(0.1)) * noise[j]
            action[j], bounded[j] = drawn, drawn / max(ONE, abs(drawn))
