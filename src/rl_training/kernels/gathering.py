"""Steps for a replay in one call: a dense network that explores in compiled environments, without Python.

What acts, how it sees observations and how its actions become the environment's is data, as for `kernels.rollouts`.
Chance comes from one stream of (key, counter), in the order of steps and lanes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import types

from rl_training.compiling import call_at, njit
from rl_training.dynamics.chance import normal, uniform
from rl_training.dynamics.lanes import LaneState, Led, call_advance
from rl_training.kernels.rollouts import Acting, Scaling, outputs_of, scale

# By their addresses, as a run needs one of two ways to choose actions, and statistics in some cases only.
ROWS, VECTOR, SHARE = types.float32[:, ::1], types.float64[::1], types.float64
CHOOSE = types.void(types.int64, SHARE, SHARE, SHARE, ROWS, ROWS, types.uint64[::1])
TAKE_IN = types.void(VECTOR, VECTOR, VECTOR, types.float64, ROWS, VECTOR)
call_choose, call_take_in = call_at(CHOOSE), call_at(TAKE_IN)


class Exploring(NamedTuple):
    """How actions are chosen."""

    where: int  # the address of `choose_greedily` or `draw_squashed`
    first: int  # the output that the values of choices begin with
    lowest: float  # between which log σ is held
    highest: float
    shares: np.ndarray  # [T], the probability of an action at random


class Moments(NamedTuple):
    """Running statistics of observations, as `RunningMoments` has them; [0] arrays where there are none."""

    where: int  # the address of `take_in`
    mean: np.ndarray  # [O]
    variance: np.ndarray  # [O]
    seen: np.ndarray  # [1]
    epsilon: float  # added to the variance


class Stepped(NamedTuple):
    """Room for T steps of B lanes."""

    obs: np.ndarray  # [T + 1, B, O]; the first row is where the lanes stand
    action: np.ndarray  # [T, B, K] float32
    reward: np.ndarray  # [T, B]
    terminated: np.ndarray  # [T, B]
    truncated: np.ndarray  # [T, B]
    next_obs: np.ndarray  # [T, B, O], never that of a reset
    finished: np.ndarray  # [T·B, 3], rows (lane, return, length)


class Lines(NamedTuple):
    """Room for what is known of all lanes at one step."""

    inputs: np.ndarray  # [B, I]
    outputs: np.ndarray  # [B, P]
    taken: np.ndarray  # [B, K] float64
    reward: np.ndarray  # [B] float64
    rows: np.ndarray  # [B], 0 to B - 1


@njit(borrows=True, error_model="numpy")
def choose_greedily(first, lowest, highest, share, outputs, actions, chance):  # type: ignore[no-untyped-def]
    """The index of the largest number from `first` on, or with probability `share` any, all equally likely."""
    for b in range(len(actions)):
        line, draw, best = outputs[b, first:], uniform(chance), 0
        if draw < share:
            # Given that a draw is below ε, it is uniform in [0, ε): it can choose the action as well.
            best = min(int(draw * (len(line) / share)), len(line) - 1)
        else:
            for j in range(1, len(line)):
                if line[j] > line[best]:
                    best = j
        actions[b, 0] = np.float32(best)


@njit(borrows=True, error_model="numpy")
def draw_squashed(first, lowest, highest, share, outputs, actions, chance):  # type: ignore[no-untyped-def]
    """a = tanh(μ + σ ε) [B, D] from outputs (μ, log σ) [B, 2 D]; with a `share` of 1 uniform in [-1, 1]."""
    count = actions.shape[1]
    for b in range(len(actions)):
        for k in range(count):
            if share == 1:
                actions[b, k] = np.float32(2.0 * uniform(chance) - 1.0)
            else:
                log_std = min(max(np.float64(outputs[b, count + k]), lowest), highest)
                actions[b, k] = np.float32(math.tanh(outputs[b, k] + math.exp(log_std) * normal(chance)))


@njit(borrows=True, error_model="numpy")
def squash_mean(first, lowest, highest, share, outputs, actions, chance):  # type: ignore[no-untyped-def]
    """a = tanh(μ) [B, D] from outputs (μ, log σ) [B, 2 D]."""
    for b in range(len(actions)):
        for k in range(actions.shape[1]):
            actions[b, k] = np.float32(math.tanh(outputs[b, k]))


@njit(borrows=True, error_model="numpy")
def take_in(means, variances, seen, epsilon, rows, deviation):  # type: ignore[no-untyped-def]
    """Merge rows [B, O] into the statistics, by the equations of `RunningMoments.update`."""
    new, old = len(rows), seen[0]
    total = old + new
    for j in range(len(means)):
        mean, square = 0.0, 0.0
        for i in range(new):
            mean += rows[i, j] / new
        for i in range(new):
            square += (rows[i, j] - mean) ** 2
        difference = mean - means[j]
        squares = variances[j] * old + square + difference**2 * old * new / total
        means[j] += difference * new / total
        variances[j] = squares / total
        deviation[j] = math.sqrt(variances[j] + epsilon)
    seen[0] = total


@njit(calls=True, borrows=True, error_model="numpy")
def gather_steps(lanes, acting, scaling, exploring, moments, stepped, lines, chance):  # type: ignore[no-untyped-def]
    """T steps in all lanes; → how many episodes ended. All but `chance` are the fields of what they are named after."""
    lanes, acting, scaling = LaneState(*lanes), Acting(*acting), Scaling(*scaling)
    exploring, moments, stepped = Exploring(*exploring), Moments(*moments), Stepped(*stepped)
    inputs, outputs, taken, reward, rows = lines
    finished = 0
    for t in range(len(stepped.action)):
        share, actions = exploring.shares[t], stepped.action[t]
        if share < 1:
            outputs_of(acting, stepped.obs[t], rows, inputs, outputs)
        how = (exploring.first, exploring.lowest, exploring.highest, share)
        call_choose(exploring.where, (*how, outputs, actions, chance))
        scale(scaling, actions, taken)
        led = Led(
            stepped.next_obs[t],
            stepped.obs[t + 1],
            reward,
            stepped.terminated[t],
            stepped.truncated[t],
            stepped.finished,
        )
        finished = call_advance(lanes.functions[3], (lanes, taken, led, finished))
        for b in range(len(reward)):
            stepped.reward[t, b] = reward[b]
        if len(moments.mean) > 0:
            statistics = (moments.mean, moments.variance, moments.seen, moments.epsilon)
            call_take_in(moments.where, (*statistics, stepped.next_obs[t], acting.deviation))
    return finished
