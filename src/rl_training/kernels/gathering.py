"""Steps for a replay in one call: a dense network that explores in compiled environments, without Python.

What acts, how it sees observations and how its actions become the environment's is data, as for `kernels.rollouts`.
Chance comes from one stream of (key, counter), in the order of steps and lanes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import normal, uniform
from rl_training.dynamics.lanes import LaneState, Led, call_advance
from rl_training.kernels.layers import OUTPUTS
from rl_training.kernels.rollouts import Acting, Scaling, outputs_of, scale

GREEDY, SQUASHED = range(2)  # how actions come of what a network puts out


class Exploring(NamedTuple):
    """How actions are chosen."""

    kind: int
    first: int  # the output that the values of choices begin with
    lowest: float  # between which log σ is held
    highest: float
    shares: np.ndarray  # [T], the probability of an action at random


class Moments(NamedTuple):
    """Running statistics of observations, as `RunningMoments` has them; [0] arrays where there are none."""

    mean: np.ndarray  # [O]
    variance: np.ndarray  # [O]
    seen: np.ndarray  # [1]
    epsilon: float  # added to the variance


class Stepped(NamedTuple):
    """Room for T steps of B lanes."""

    obs: np.ndarray  # [T + 1, B, O]; the first row is where the lanes stand
    action: np.ndarray  # [T, B, K]
    reward: np.ndarray  # [T, B]
    terminated: np.ndarray  # [T, B]
    truncated: np.ndarray  # [T, B]
    next_obs: np.ndarray  # [T, B, O], never that of a reset
    finished: np.ndarray  # [T·B, 3], rows (lane, return, length)


@njit(error_model="numpy")
def choose_greedily(line, share, chance):  # type: ignore[no-untyped-def]
    """The index of the largest number, or with probability `share` any, all equally likely."""
    draw, best = uniform(chance), 0
    if draw < share:
        # Given that a draw is below ε, it is uniform in [0, ε): it can choose the action as well.
        return min(np.int64(draw * (len(line) / share)), len(line) - 1)
    for j in range(1, len(line)):
        if line[j] > line[best]:
            best = j
    return best


@njit(error_model="numpy")
def draw_squashed(exploring, line, action, share, chance):  # type: ignore[no-untyped-def]
    """a = tanh(μ + σ ε) into `action` [D], from outputs (μ, log σ) [2 D]; with a `share` of 1 uniform in [-1, 1]."""
    count = len(action)
    for k in range(count):
        if share == 1:
            action[k] = np.float32(2.0 * uniform(chance) - 1.0)
        else:
            log_std = min(max(np.float64(line[count + k]), exploring.lowest), exploring.highest)
            action[k] = np.float32(math.tanh(line[k] + math.exp(log_std) * normal(chance)))


@njit(error_model="numpy")
def take_in(moments, rows, deviation):  # type: ignore[no-untyped-def]
    """Merge rows [B, O] into the statistics, by the equations of `RunningMoments.update`."""
    new, old = len(rows), moments.seen[0]
    total = old + new
    for j in range(len(moments.mean)):
        mean, square = 0.0, 0.0
        for i in range(new):
            mean += rows[i, j] / new
        for i in range(new):
            square += (rows[i, j] - mean) ** 2
        difference = mean - moments.mean[j]
        squares = moments.variance[j] * old + square + difference**2 * old * new / total
        moments.mean[j] += difference * new / total
        moments.variance[j] = squares / total
        deviation[j] = math.sqrt(moments.variance[j] + moments.epsilon)
    moments.seen[0] = total


@njit(calls=True, error_model="numpy")
def gather_steps(lanes, acting, scaling, exploring, moments, stepped, chance):  # type: ignore[no-untyped-def]
    """T steps in all lanes; → how many episodes ended. All but `chance` are the fields of what they are named after."""
    lanes, acting, scaling = LaneState(*lanes), Acting(*acting), Scaling(*scaling)
    exploring, moments, stepped = Exploring(*exploring), Moments(*moments), Stepped(*stepped)
    steps, count, numbers = stepped.action.shape
    inputs = np.empty((count, acting.table[-1, OUTPUTS]), np.float32)
    outputs = np.empty((count, acting.outputs), np.float32)
    taken, rows, finished = np.empty((count, numbers)), np.arange(count), 0
    reward = np.empty(count)
    for t in range(steps):
        share = exploring.shares[t]
        if share < 1:
            outputs_of(acting, stepped.obs[t], rows, inputs, outputs)
        for b in range(count):
            action = stepped.action[t, b]
            if exploring.kind == GREEDY:
                action[0] = choose_greedily(outputs[b, exploring.first :], share, chance)
            else:
                draw_squashed(exploring, outputs[b], action, share, chance)
        scale(scaling, stepped.action[t], taken)
        led = Led(
            stepped.next_obs[t],
            stepped.obs[t + 1],
            reward,
            stepped.terminated[t],
            stepped.truncated[t],
            stepped.finished,
        )
        finished = call_advance(lanes.functions[3], (lanes, taken, led, finished))
        for b in range(count):
            stepped.reward[t, b] = reward[b]
        if len(moments.mean) > 0:
            take_in(moments, stepped.next_obs[t], acting.deviation)
    return finished
