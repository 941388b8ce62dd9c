"""Parallel compiled environments: one call steps them all and resets those whose episode has ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from rl_training.compiling import address, call_at, njit
from rl_training.dynamics.chance import COUNTER, KEY, episode_key
from rl_training.dynamics.interface import Dynamics, call_observe, call_reset, call_step


class LaneState(NamedTuple):
    """All there is to know of B lanes, and the addresses of what moves them."""

    functions: np.ndarray  # [4], of `reset`, `step`, `observe` and `advance`
    stream: np.ndarray  # [1], the key that all chance comes from
    limit: np.ndarray  # [1], steps after which an episode is cut
    states: np.ndarray  # [B, S]
    chance: np.ndarray  # [B, 2], key and counter of the episode
    episode: np.ndarray  # [B], its number
    returns: np.ndarray  # [B], the sum of its rewards
    lengths: np.ndarray  # [B], its steps


class Led(NamedTuple):
    """What the actions led to, [B, ...] each, and the episodes that ended."""

    next_obs: np.ndarray  # [B, O], never that of a reset
    obs: np.ndarray  # [B, O], what to act on next
    reward: np.ndarray  # [B]
    terminated: np.ndarray  # [B]
    truncated: np.ndarray  # [B]
    finished: np.ndarray  # [≥ B, 3], rows (lane, return, length); how many of them count is returned


NEVER = np.iinfo(np.int64).max
FLOATS, NUMBERS, FLAGS, INTEGERS = (
    types.float32[:, ::1],
    types.float64[:, ::1],
    types.boolean[::1],
    types.int64[::1],
)
LANES = types.NamedTuple(
    (
        INTEGERS,
        types.uint64[::1],
        INTEGERS,
        NUMBERS,
        types.uint64[:, ::1],
        INTEGERS,
        types.float64[::1],
        INTEGERS,
    ),
    LaneState,
)
LED = types.NamedTuple((FLOATS, FLOATS, types.float64[::1], FLAGS, FLAGS, NUMBERS), Led)
ADVANCE = types.int64(LANES, NUMBERS, LED, types.int64)
call_advance = call_at(ADVANCE)


def lane_state(dynamics: Dynamics, count: int, stream: int, limit: int | None) -> LaneState:
    """Lanes that have begun nothing yet."""
    return LaneState(
        functions=np.array([*dynamics.addresses(), address(advance, ADVANCE)], np.int64),
        stream=np.array([stream], np.uint64),
        limit=np.array([NEVER if limit is None else limit], np.int64),
        states=np.zeros((count, len(dynamics.lowest))),
        chance=np.zeros((count, 2), np.uint64),
        episode=np.zeros(count, np.int64),
        returns=np.zeros(count),
        lengths=np.zeros(count, np.int64),
    )


def led(count: int, numbers: int) -> Led:
    """Room for what one step of all lanes leads to."""
    return Led(
        np.empty((count, numbers), np.float32),
        np.empty((count, numbers), np.float32),
        np.empty(count),
        np.empty(count, np.bool_),
        np.empty(count, np.bool_),
        np.empty((count, 3)),
    )


@njit(error_model="numpy", inline="always")
def begin(lanes, lane, obs):  # type: ignore[no-untyped-def]
    """Begin the episode of a lane that its number names, and show its first observation."""
    lanes.chance[lane, KEY] = episode_key(lanes.stream[0], lane, lanes.episode[lane])
    lanes.chance[lane, COUNTER] = np.uint64(0)
    lanes.returns[lane] = 0.0
    lanes.lengths[lane] = 0
    call_reset(lanes.functions[0], (lanes.states[lane], lanes.chance[lane]))
    call_observe(lanes.functions[2], (lanes.states[lane], obs))


@njit(calls=True, borrows=True, error_model="numpy")
def begin_all(lanes, obs):  # type: ignore[no-untyped-def]
    for lane in range(lanes.states.shape[0]):
        begin(lanes, lane, obs[lane])


@njit(calls=True, borrows=True, error_model="numpy")
def observe_all(lanes, obs):  # type: ignore[no-untyped-def]
    for lane in range(lanes.states.shape[0]):
        call_observe(lanes.functions[2], (lanes.states[lane], obs[lane]))


# As Python calls it: `advance` itself would be compiled a second time.
@njit(calls=True, borrows=True, error_model="numpy")
def advance_all(lanes, actions, led):  # type: ignore[no-untyped-def]
    return call_advance(lanes.functions[3], (lanes, actions, led, 0))


@njit(calls=True, borrows=True, error_model="numpy")
def advance(lanes, actions, led, count):  # type: ignore[no-untyped-def]
    """One action [B, A] in every lane; `count` episodes are in `led.finished` already. → how many are then."""
    for lane in range(actions.shape[0]):
        reward, terminated = call_step(
            lanes.functions[1], (lanes.states[lane], actions[lane], lanes.chance[lane])
        )
        lanes.lengths[lane] += 1
        lanes.returns[lane] += reward
        truncated = lanes.lengths[lane] >= lanes.limit[0]
        led.reward[lane], led.terminated[lane], led.truncated[lane] = reward, terminated, truncated
        call_observe(lanes.functions[2], (lanes.states[lane], led.next_obs[lane]))
        if terminated or truncated:
            led.finished[count, 0] = lane
            led.finished[count, 1] = lanes.returns[lane]
            led.finished[count, 2] = lanes.lengths[lane]
            count += 1
            lanes.episode[lane] += 1
            begin(lanes, lane, led.obs[lane])
        else:
            # Number by number: assigning rows takes numba seconds to compile, for the sake of an error message.
            for j in range(led.obs.shape[1]):
                led.obs[lane, j] = led.next_obs[lane, j]
    return count
