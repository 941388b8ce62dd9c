"""Gymnasium's toy text: FrozenLake, CliffWalking and Taxi. The state is the single integer that Gymnasium observes."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import below, uniform
from rl_training.dynamics.interface import Dynamics


def _squares(*rows: str) -> np.ndarray:
    return np.array([[ord(letter) for letter in row] for row in rows], np.uint8)


SMALL_LAKE = _squares("SFFF", "FHFH", "FFFH", "HFFG")
LARGE_LAKE = _squares(
    "SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"
)
HOLE, GOAL = ord("H"), ord("G")
# What the share of draws below is that slip to the first side, and that slip there or go as told.
TO_ONE_SIDE = (1.0 - 1.0 / 3.0) / 2.0
NOT_TO_THE_OTHER = TO_ONE_SIDE + 1.0 / 3.0


@njit(error_model="numpy")
def show_index(state, obs):  # type: ignore[no-untyped-def]
    obs[0] = np.float32(state[0])


@njit(error_model="numpy")
def reset_lake(state, chance):  # type: ignore[no-untyped-def]
    state[0] = 0.0


@njit()
def _slid(state, action, chance, squares):  # type: ignore[no-untyped-def]
    """Left, down, right and up are 0 to 3; a third of the time each, one slips to either side."""
    size = squares.shape[0]
    drawn = uniform(chance)
    way = np.int64(action[0]) + (3 if drawn < TO_ONE_SIDE else 0 if drawn < NOT_TO_THE_OTHER else 1)
    row, column = divmod(np.int64(state[0]), size)
    if way % 4 == 0:
        column = max(column - 1, 0)
    elif way % 4 == 1:
        row = min(row + 1, size - 1)
    elif way % 4 == 2:
        column = min(column + 1, size - 1)
    else:
        row = max(row - 1, 0)
    state[0] = row * size + column
    square = squares[row, column]
    return (1.0 if square == GOAL else 0.0), square in (GOAL, HOLE)


@njit(error_model="numpy")
def step_small_lake(state, action, chance):  # type: ignore[no-untyped-def]
    return _slid(state, action, chance, SMALL_LAKE)


@njit(error_model="numpy")
def step_large_lake(state, action, chance):  # type: ignore[no-untyped-def]
    return _slid(state, action, chance, LARGE_LAKE)


CLIFF_START, CLIFF_END, CLIFF_COLUMNS = 36, 47, 12
THIRD = 1.0 / 3.0


@njit(error_model="numpy")
def reset_cliff(state, chance):  # type: ignore[no-untyped-def]
    state[0] = CLIFF_START


@njit()
def _walked(state, way):  # type: ignore[no-untyped-def]
    """Up, right, down and left are 0 to 3."""
    row, column = divmod(int(state[0]), CLIFF_COLUMNS)
    if way == 0:
        row = max(row - 1, 0)
    elif way == 1:
        column = min(column + 1, CLIFF_COLUMNS - 1)
    elif way == 2:
        row = min(row + 1, 3)
    else:
        column = max(column - 1, 0)
    place = row * CLIFF_COLUMNS + column
    if CLIFF_START < place < CLIFF_END:
        state[0] = CLIFF_START
        return -100.0, False
    state[0] = place
    return -1.0, place == CLIFF_END


@njit(error_model="numpy")
def step_cliff(state, action, chance):  # type: ignore[no-untyped-def]
    return _walked(state, np.int64(action[0]))


@njit(error_model="numpy")
def step_slippery_cliff(state, action, chance):  # type: ignore[no-untyped-def]
    drawn = uniform(chance)
    turned = 3 if drawn < THIRD else 0 if drawn < THIRD + THIRD else 1
    return _walked(state, (np.int64(action[0]) + turned) % 4)


# Where one can go east from a square of the taxi's town; and the places of R, G, Y and B.
OPEN_TO_THE_EAST = np.array(
    [[1, 0, 1, 1, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]], np.bool_
)
PLACES = np.array([[0, 0], [0, 4], [4, 0], [4, 3]])
IN_THE_TAXI = 4


@njit()
def _encoded(row, column, passenger, destination):  # type: ignore[no-untyped-def]
    return ((row * 5 + column) * 5 + passenger) * 4 + destination


@njit()
def _decoded(number):  # type: ignore[no-untyped-def]
    return number // 100, number // 20 % 5, number // 4 % 5, number % 4


@njit(error_model="numpy")
def reset_taxi(state, chance):  # type: ignore[no-untyped-def]
    """Each square of the taxi, and each place of the passenger that is not the destination, is equally likely."""
    drawn = below(chance, 300)
    square, pair = divmod(drawn, 12)
    passenger, other = divmod(pair, 3)
    destination = other + (other >= passenger)
    state[0] = _encoded(square // 5, square % 5, passenger, destination)


@njit()
def _place_at(row, column):  # type: ignore[no-untyped-def]
    """Which of the four places this is; -1 for none."""
    for i in range(4):
        if PLACES[i, 0] == row and PLACES[i, 1] == column:
            return i
    return -1


@njit(error_model="numpy")
def step_taxi(state, action, chance):  # type: ignore[no-untyped-def]
    """South, north, east, west, pick up and drop off are 0 to 5."""
    row, column, passenger, destination = _decoded(np.int64(state[0]))
    what, place, reward, there = np.int64(action[0]), _place_at(row, column), -1.0, False
    uniform(chance)  # which Gymnasium draws too, to choose among one outcome
    if what == 0:
        row = min(row + 1, 4)
    elif what == 1:
        row = max(row - 1, 0)
    elif what == 2:
        column += OPEN_TO_THE_EAST[row, column]
    elif what == 3:
        column -= column > 0 and OPEN_TO_THE_EAST[row, column - 1]
    elif what == 4 and passenger < IN_THE_TAXI and place == passenger:
        passenger = IN_THE_TAXI
    elif what == 5 and passenger == IN_THE_TAXI and place >= 0:
        passenger, there = place, place == destination
        reward = 20.0 if there else -1.0
    else:
        reward = -10.0
    state[0] = _encoded(row, column, passenger, destination)
    return reward, there


@njit(error_model="numpy")
def observe_taxi(state, obs):  # type: ignore[no-untyped-def]
    """The state's number, and after it which actions change it."""
    row, column, passenger, _ = _decoded(np.int64(state[0]))
    place = _place_at(row, column)
    obs[0] = np.float32(state[0])
    obs[1], obs[2] = np.float32(row < 4), np.float32(row > 0)
    obs[3] = np.float32(OPEN_TO_THE_EAST[row, column])
    obs[4] = np.float32(column > 0 and OPEN_TO_THE_EAST[row, column - 1])
    obs[5] = np.float32(passenger < IN_THE_TAXI and place == passenger)
    obs[6] = np.float32(passenger == IN_THE_TAXI and place >= 0)


FROZEN_LAKE = Dynamics(reset_lake, step_small_lake, show_index, (0,), (15,))
LARGE_FROZEN_LAKE = Dynamics(reset_lake, step_large_lake, show_index, (0,), (63,))
CLIFF_WALKING = Dynamics(reset_cliff, step_cliff, show_index, (0,), (47,))
SLIPPERY_CLIFF_WALKING = Dynamics(reset_cliff, step_slippery_cliff, show_index, (0,), (47,))
TAXI = Dynamics(reset_taxi, step_taxi, observe_taxi, (0,), (499,), masked=True)
