"""Whole rollouts in one call: a dense network that acts in compiled environments, step after step, without Python.

What acts is data: the layers of a network, how observations become its inputs, and how its outputs become actions.
Chance comes from one stream of (key, counter), in the order of steps and lanes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import normal, uniform
from rl_training.dynamics.lanes import Led, advance
from rl_training.kernels.layers import HEIGHT, OUTPUTS, forward

CHOICE, NORMALS = range(2)  # how actions are drawn from what a network puts out
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Acting(NamedTuple):
    """A network, how it sees observations, and how it acts."""

    table: np.ndarray  # the layers, as `kernels.layers` has them
    packed: np.ndarray
    memory: np.ndarray
    outputs: int  # numbers in a row of its outputs
    # Observations: (x - mean) / deviation, cut at ±clip, or a choice as one-hot; [0] arrays where nothing is done.
    mean: np.ndarray
    deviation: np.ndarray
    clip: float
    choices: int  # of a one-hot; 0 for numbers as they are
    first_choice: int
    # Actions.
    kind: int
    valued: bool  # whether the last output is the value


class Scaling(NamedTuple):
    """How an action of the policy becomes one of a Box, as `ActionCodec.to_env` does it; [0] arrays for choices."""

    bounded: np.ndarray
    half_width: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Rolled(NamedTuple):
    """Room for a rollout, [T, B, ...] each."""

    obs: np.ndarray  # [T + 1, B, O]; the first row is where the lanes stand
    action: np.ndarray  # [T, B, K]
    log_prob: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray  # [T, B, O], never that of a reset
    finished: np.ndarray  # [T·B, 3], rows (lane, return, length)


@njit(error_model="numpy")
def encode(acting, obs, inputs):  # type: ignore[no-untyped-def]
    """Observations [B, O] as the network's inputs [B, I]."""
    for i in range(obs.shape[0]):
        if acting.choices > 0:
            choice = np.int64(obs[i, 0]) - acting.first_choice
            if choice < 0 or choice >= acting.choices:
                raise ValueError("an observation is outside its space")
            inputs[i] = np.float32(0)
            inputs[i, choice] = np.float32(1)
        elif len(acting.mean) > 0:
            for j in range(obs.shape[1]):
                scaled = (obs[i, j] - acting.mean[j]) / acting.deviation[j]
                inputs[i, j] = np.float32(min(max(scaled, -acting.clip), acting.clip))
        else:
            for j in range(obs.shape[1]):
                inputs[i, j] = obs[i, j]


@njit(error_model="numpy")
def outputs_of(acting, inputs, rows, outputs):  # type: ignore[no-untyped-def]
    """The network's outputs [n, P] for some rows of its inputs, in blocks."""
    for start in range(0, len(rows), HEIGHT):
        end = min(start + HEIGHT, len(rows))
        forward(acting.table, acting.packed, acting.memory, inputs, rows[start:end], outputs[start:end])


@njit(error_model="numpy")
def draw_choice(line, count, chance):  # type: ignore[no-untyped-def]
    """An index by its probability ∝ exp(logit), and its log-probability; one uniform number decides."""
    top, total = line[0], 0.0
    for j in range(1, count):
        top = max(top, line[j])
    for j in range(count):
        total += math.exp(np.float64(line[j] - top))
    left, chosen = uniform(chance) * total, count - 1
    for j in range(count - 1):
        left -= math.exp(np.float64(line[j] - top))
        if left < 0:
            chosen = j
            break
    return chosen, np.float64(line[chosen] - top) - math.log(total)


@njit(error_model="numpy")
def draw_normals(line, action, chance):  # type: ignore[no-untyped-def]
    """a = μ + σ ε into `action` [D], from outputs (μ, log σ) [2 D]; → its log-density."""
    count, log_prob = len(action), 0.0
    for k in range(count):
        noise = normal(chance)
        action[k] = np.float32(line[k] + math.exp(np.float64(line[count + k])) * noise)
        log_prob -= 0.5 * noise * noise + line[count + k] + HALF_LOG_2_PI
    return log_prob


@njit(error_model="numpy")
def scale(scaling, action, taken):  # type: ignore[no-untyped-def]
    """An action of the policy as the environment's."""
    for k in range(len(action)):
        if len(scaling.bounded) == 0:
            taken[k] = action[k]
            continue
        number = action[k]
        if scaling.bounded[k]:
            number = min(max(number, np.float32(-1)), np.float32(1))
        scaled = np.float32(number * scaling.half_width[k] + scaling.centre[k])
        taken[k] = min(max(scaled, scaling.low[k]), scaling.high[k])


@njit(error_model="numpy")
def act(acting, line, action, chance):  # type: ignore[no-untyped-def]
    """Draw one action from a row of outputs; → its log-probability."""
    if acting.kind == CHOICE:
        action[0], log_prob = draw_choice(line, len(line) - acting.valued, chance)
        return log_prob
    return draw_normals(line, action, chance)


@njit(error_model="numpy")
def roll(lanes, acting, scaling, chance, rolled):  # type: ignore[no-untyped-def]
    """T steps in all lanes; → how many episodes ended."""
    steps, count, numbers = rolled.action.shape
    width, finished = acting.table[-1, OUTPUTS], 0
    inputs = np.empty((count, width), np.float32)
    outputs = np.empty((count, acting.outputs), np.float32)
    taken, rows, cut = np.empty((count, numbers)), np.arange(count), np.empty(count, np.int64)
    for t in range(steps + 1):
        encode(acting, rolled.obs[t], inputs)
        outputs_of(acting, inputs, rows, outputs)
        if acting.valued and t > 0:
            for b in range(count):
                if not rolled.truncated[t - 1, b]:
                    rolled.next_value[t - 1, b] = outputs[b, acting.outputs - 1]
        if t == steps:
            break
        for b in range(count):
            if acting.valued:
                rolled.value[t, b] = outputs[b, acting.outputs - 1]
            log_prob = act(acting, outputs[b], rolled.action[t, b], chance)
            if len(rolled.log_prob) > 0:
                rolled.log_prob[t, b] = log_prob
            scale(scaling, rolled.action[t, b], taken[b])
        led = Led(
            rolled.next_obs[t],
            rolled.obs[t + 1],
            rolled.reward[t],
            rolled.terminated[t],
            rolled.truncated[t],
            rolled.finished,
        )
        finished = advance(lanes, taken, led, finished)
        if acting.valued and rolled.truncated[t].any():
            ends = 0
            for b in range(count):
                if rolled.truncated[t, b]:
                    cut[ends] = b
                    ends += 1
            encode(acting, rolled.next_obs[t], inputs)
            outputs_of(acting, inputs, cut[:ends], outputs)
            for i in range(ends):
                rolled.next_value[t, cut[i]] = outputs[i, acting.outputs - 1]
    return finished
