"""Whole rollouts in one call: a dense network that acts in compiled environments, step after step, without Python.

What acts is data: the layers of a network, how observations become its inputs, and how its outputs become actions.
Chance comes from one stream of (key, counter), in the order of steps and lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.lanes import Led, call_advance
from rl_training.kernels.families import ACTION, CHOICE, FIRST, KIND, SCALE, SIZE, call_draw, forbid
from rl_training.kernels.layers import FORTH, HEIGHT, call_forward


class Acting(NamedTuple):
    """A network, and how it sees observations."""

    where: np.ndarray  # addresses of the passes over its layers
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
    masked: int  # how many entries of an action mask stand behind the observation


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
    action: np.ndarray  # [T, B, K] float32
    log_prob: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray  # [T, B, O], never that of a reset
    finished: np.ndarray  # [T·B, 3], rows (lane, return, length)


class Room(NamedTuple):
    """Room for what is known of all lanes at one step."""

    inputs: np.ndarray  # [B, I]
    outputs: np.ndarray  # [B, P]
    masks: np.ndarray  # [B, M], or [0, 0]
    taken: np.ndarray  # [B, K] float64
    reward: np.ndarray  # [B] float64
    rows: np.ndarray  # [B], 0 to B - 1
    cut: np.ndarray  # [B]


@njit(error_model="numpy", inline="always")
def held(number, lowest, highest):  # type: ignore[no-untyped-def]
    """A number within bounds; `min` and `max` would be compiled anew for each pair of types."""
    return lowest if number < lowest else highest if number > highest else number


@njit(error_model="numpy", inline="always")
def encode(acting, obs, inputs):  # type: ignore[no-untyped-def]
    """Observations [B, O] as the network's inputs [B, I]."""
    for i in range(obs.shape[0]):
        if acting.choices > 0:
            choice = np.int64(obs[i, 0]) - acting.first_choice
            if choice < 0 or choice >= acting.choices:
                raise ValueError("an observation is outside its space")
            for j in range(inputs.shape[1]):
                inputs[i, j] = np.float32(j == choice)
        elif len(acting.mean) > 0:
            for j in range(inputs.shape[1]):
                scaled = (obs[i, j] - acting.mean[j]) / acting.deviation[j]
                inputs[i, j] = np.float32(held(scaled, -acting.clip, acting.clip))
        else:
            for j in range(inputs.shape[1]):
                inputs[i, j] = obs[i, j]


@njit(calls=True, borrows=True, error_model="numpy")
def outputs_of(acting, obs, rows, inputs, outputs):  # type: ignore[no-untyped-def]
    """The network's outputs [n, P] for some rows of observations [B, O], in blocks; `inputs` [B, I] is room for all."""
    encode(acting, obs, inputs)
    for start in range(0, len(rows), HEIGHT):
        some, to = rows[start : start + HEIGHT], outputs[start : start + HEIGHT]
        network = (acting.table, acting.packed, acting.memory)
        call_forward(acting.where[FORTH], (*network, inputs, some, to))


@njit(error_model="numpy", inline="always")
def scale(scaling, actions, taken):  # type: ignore[no-untyped-def]
    """Actions of the policy [B, K] as the environment's."""
    for b in range(actions.shape[0]):
        for k in range(actions.shape[1]):
            if len(scaling.bounded) == 0:
                taken[b, k] = actions[b, k]
                continue
            number = np.float32(actions[b, k])
            if scaling.bounded[k]:
                number = held(number, np.float32(-1), np.float32(1))
            scaled = np.float32(number * scaling.half_width[k] + scaling.centre[k])
            taken[b, k] = held(np.float64(scaled), scaling.low[k], scaling.high[k])


@njit(error_model="numpy", inline="always")
def read_masks(acting, obs, masks):  # type: ignore[no-untyped-def]
    """The action masks [B, P] that stand behind what else is seen, [B, O]."""
    for i in range(len(masks)):
        allowed = 0
        for j in range(acting.masked):
            masks[i, j] = obs[i, obs.shape[1] - acting.masked + j] != 0
            allowed += masks[i, j]
        if allowed == 0:
            raise ValueError("an action mask allows no action")


@njit(calls=True, borrows=True, error_model="numpy")
def roll(lanes, acting, family, draws, scaling, chance, rolled, room):  # type: ignore[no-untyped-def]
    """T steps in all lanes, with actions of a family; → how many episodes ended."""
    steps, count, _ = rolled.action.shape
    value, finished = acting.outputs - 1, 0
    inputs, outputs, masks, taken, reward, rows, cut = room
    for t in range(steps + 1):
        outputs_of(acting, rolled.obs[t], rows, inputs, outputs)
        if t > 0:
            for b in range(count):
                if not rolled.truncated[t - 1, b]:
                    rolled.next_value[t - 1, b] = outputs[b, value]
        if t == steps:
            break
        read_masks(acting, rolled.obs[t], masks)
        for b in range(count):
            rolled.value[t, b] = outputs[b, value]
            rolled.log_prob[t, b] = np.float32(0)
        for part in range(len(family)):
            if family[part, KIND] == CHOICE:
                forbid(family[part, FIRST], family[part, SIZE], outputs, masks, rows)
            places = (family[part, FIRST], family[part, SIZE], family[part, ACTION], family[part, SCALE])
            call_draw(draws[part], (*places, outputs, rolled.action[t], rolled.log_prob[t], chance))
        scale(scaling, rolled.action[t], taken)
        led = Led(
            rolled.next_obs[t],
            rolled.obs[t + 1],
            reward,
            rolled.terminated[t],
            rolled.truncated[t],
            rolled.finished,
        )
        finished = call_advance(lanes.functions[3], (lanes, taken, led, finished))
        ends = 0
        for b in range(count):
            rolled.reward[t, b] = reward[b]
            if rolled.truncated[t, b]:
                cut[ends] = b
                ends += 1
        if ends > 0:
            outputs_of(acting, rolled.next_obs[t], cut[:ends], inputs, outputs)
            for i in range(ends):
                rolled.next_value[t, cut[i]] = outputs[i, value]
    return finished
