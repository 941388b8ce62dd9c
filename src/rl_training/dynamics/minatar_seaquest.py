"""Seaquest of MinAtar: a submarine picks up divers, shoots fish and submarines, and must come up for air.

Things lie in lists that are gone through from the end while things are taken out of them, the first equal one each
time, as the package does it: which of two equal things goes decides what is moved twice.
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.chance import below, uniform
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.minatar import DOWN, FIRE, LEFT, RIGHT, SIDE, UP, mark, taken

(
    _, OXYGEN, DIVERS_ABOARD, X, Y, FACES_RIGHT, SPAWN_SPEED, SPAWN_TIMER, DIVER_TIMER, MOVE_SPEED, RAMP,
    SHOT_TIMER, SURFACED, COUNTS,
) = range(14)  # fmt: skip
BULLETS, TORPEDOES, FISH, SUBS, DIVERS = range(5)  # lists of things: ours, the enemies', and the rest
ROOM = 40  # for things of a list: at most one enemy a frame appears, and the slowest cross the grid in 30 frames then
FIELDS = 5
COLUMN, ROW, TO_THE_RIGHT, MOVE_TIMER, TO_SHOT = range(FIELDS)
THINGS = COUNTS + 5
AIR, SPAWN_INTERVAL, DIVER_INTERVAL, MOVE_INTERVAL, COOL_DOWN, SHOT_INTERVAL, MOST_DIVERS = (
    200,
    20,
    30,
    5,
    5,
    10,
    6,
)
CHANNELS = 10  # front, back, our bullet, trail, enemy's bullet, fish, sub, oxygen, divers aboard, diver


@njit(error_model="numpy")
def reset(state, chance):  # type: ignore[no-untyped-def]
    state[OXYGEN:] = 0
    state[OXYGEN], state[X] = AIR, 5
    state[SPAWN_SPEED], state[SPAWN_TIMER], state[DIVER_TIMER] = (
        SPAWN_INTERVAL,
        SPAWN_INTERVAL,
        DIVER_INTERVAL,
    )
    state[MOVE_SPEED], state[SURFACED] = MOVE_INTERVAL, 1


@njit(error_model="numpy")
def step(state, action, chance):  # type: ignore[no-untyped-def]
    move = taken(state, np.int64(action[0]), chance)
    things = state[THINGS:].reshape(5, ROOM, FIELDS)
    if state[SPAWN_TIMER] == 0:
        _spawn_enemy(state, things, chance)
        state[SPAWN_TIMER] = state[SPAWN_SPEED]
    if state[DIVER_TIMER] == 0:
        right, row = uniform(chance) < 1 / 2, 1 + below(chance, 8)
        _add(state, things, DIVERS, 0 if right else SIDE - 1, row, right, MOVE_INTERVAL, 0)
        state[DIVER_TIMER] = DIVER_INTERVAL
    _steer(state, things, move)
    reward = _move_bullets(state, things)
    _move_divers(state, things)
    killed, over = _move_enemies(state, things, SUBS)
    reward += killed
    over = _move_torpedoes(state, things) or over
    killed, met = _move_enemies(state, things, FISH)
    reward, over = reward + killed, over or met
    for timer in (SPAWN_TIMER, DIVER_TIMER, SHOT_TIMER):
        state[timer] -= state[timer] > 0
    over = over or state[OXYGEN] <= 0
    if state[Y] > 0:
        state[OXYGEN] -= 1
        state[SURFACED] = 0
    elif not state[SURFACED]:
        if state[DIVERS_ABOARD] == 0:
            over = True
        else:
            reward += _surface(state)
    return reward, over


@njit(error_model="numpy")
def _add(state, things, which, column, row, right, move_timer, to_shot):  # type: ignore[no-untyped-def]
    count = np.int64(state[COUNTS + which])
    if count < ROOM:
        thing = things[which, count]
        thing[COLUMN], thing[ROW], thing[TO_THE_RIGHT] = column, row, right
        thing[MOVE_TIMER], thing[TO_SHOT] = move_timer, to_shot
        state[COUNTS + which] += 1


@njit(error_model="numpy")
def _remove_like(state, things, which, i):  # type: ignore[no-untyped-def]
    """Take out the first thing that is equal to number i; → which number that was."""
    rows, count = things[which], np.int64(state[COUNTS + which])
    j = 0
    while (rows[j] != rows[i]).any():
        j += 1
    for k in range(j, count - 1):
        rows[k] = rows[k + 1]
    rows[count - 1] = 0
    state[COUNTS + which] -= 1
    return j


@njit(error_model="numpy")
def _first_at(state, things, which, thing):  # type: ignore[no-untyped-def]
    """The number of the first thing where another one is; -1 for none."""
    for i in range(np.int64(state[COUNTS + which])):
        if things[which, i, COLUMN] == thing[COLUMN] and things[which, i, ROW] == thing[ROW]:
            return i
    return -1


@njit(error_model="numpy")
def _spawn_enemy(state, things, chance):  # type: ignore[no-untyped-def]
    """A fish or a submarine, unless one in its row goes the other way."""
    right, is_sub, row = uniform(chance) < 1 / 2, uniform(chance) < 1 / 3, 1 + below(chance, 8)
    for which in (SUBS, FISH):
        for i in range(np.int64(state[COUNTS + which])):
            if things[which, i, ROW] == row and things[which, i, TO_THE_RIGHT] != right:
                return
    column, speed = 0 if right else SIDE - 1, state[MOVE_SPEED]
    if is_sub:
        _add(state, things, SUBS, column, row, right, speed, SHOT_INTERVAL)
    else:
        _add(state, things, FISH, column, row, right, speed, 0)


@njit(error_model="numpy")
def _steer(state, things, move):  # type: ignore[no-untyped-def]
    if move == FIRE and state[SHOT_TIMER] == 0:
        _add(state, things, BULLETS, state[X], state[Y], state[FACES_RIGHT], 0, 0)
        state[SHOT_TIMER] = COOL_DOWN
    elif move == LEFT:
        state[X], state[FACES_RIGHT] = max(state[X] - 1, 0), 0
    elif move == RIGHT:
        state[X], state[FACES_RIGHT] = min(state[X] + 1, SIDE - 1), 1
    elif move == UP:
        state[Y] = max(state[Y] - 1, 0)
    elif move == DOWN:
        state[Y] = min(state[Y] + 1, SIDE - 2)


@njit(error_model="numpy")
def _forward(thing):  # type: ignore[no-untyped-def]
    """Move a thing by a cell; → whether it is still on the grid."""
    thing[COLUMN] += 1 if thing[TO_THE_RIGHT] else -1
    return 0 <= thing[COLUMN] < SIDE


@njit(error_model="numpy")
def _at_the_sub(state, thing):  # type: ignore[no-untyped-def]
    return thing[COLUMN] == state[X] and thing[ROW] == state[Y]


@njit(error_model="numpy")
def _move_bullets(state, things):  # type: ignore[no-untyped-def]
    """Ours, which hit fish first; → how many hit."""
    reward = 0.0
    for i in range(np.int64(state[COUNTS + BULLETS]) - 1, -1, -1):
        bullet = things[BULLETS, i]
        if not _forward(bullet):
            _remove_like(state, things, BULLETS, i)
            continue
        for which in (FISH, SUBS):
            hit = _first_at(state, things, which, bullet)
            if hit >= 0:
                _remove_like(state, things, which, hit)
                _remove_like(state, things, BULLETS, i)
                reward += 1.0
                break
    return reward


@njit(error_model="numpy")
def _move_divers(state, things):  # type: ignore[no-untyped-def]
    for i in range(np.int64(state[COUNTS + DIVERS]) - 1, -1, -1):
        diver = things[DIVERS, i]
        room = state[DIVERS_ABOARD] < MOST_DIVERS
        if _at_the_sub(state, diver) and room:
            _remove_like(state, things, DIVERS, i)
            state[DIVERS_ABOARD] += 1
        elif diver[MOVE_TIMER] == 0:
            diver[MOVE_TIMER] = MOVE_INTERVAL
            if not _forward(diver):
                _remove_like(state, things, DIVERS, i)
            elif _at_the_sub(state, diver) and room:
                _remove_like(state, things, DIVERS, i)
                state[DIVERS_ABOARD] += 1
        else:
            diver[MOVE_TIMER] -= 1


@njit(error_model="numpy")
def _move_enemies(state, things, which):  # type: ignore[no-untyped-def]
    """Fish or submarines; → how many met a bullet, and whether one met the player."""
    killed, over = 0.0, False
    for i in range(np.int64(state[COUNTS + which]) - 1, -1, -1):
        enemy, at = things[which, i].copy(), i
        over = over or _at_the_sub(state, enemy)
        if enemy[MOVE_TIMER] == 0:
            enemy[MOVE_TIMER] = state[MOVE_SPEED]
            inside = _forward(enemy)
            things[which, i] = enemy
            hit = _first_at(state, things, BULLETS, enemy) if inside else -1
            if inside and _at_the_sub(state, enemy):
                over = True
            elif not inside or hit >= 0:
                gone = _remove_like(state, things, which, i)
                at = -1 if gone == i else i - 1
                if hit >= 0:
                    _remove_like(state, things, BULLETS, hit)
                    killed += 1.0
        else:
            enemy[MOVE_TIMER] -= 1
        if which == SUBS:
            if enemy[TO_SHOT] == 0:
                enemy[TO_SHOT] = SHOT_INTERVAL
                _add(state, things, TORPEDOES, enemy[COLUMN], enemy[ROW], enemy[TO_THE_RIGHT], 0, 0)
            else:
                enemy[TO_SHOT] -= 1
        if at >= 0:  # one that is gone still shoots
            things[which, at] = enemy
    return killed, over


@njit(error_model="numpy")
def _move_torpedoes(state, things):  # type: ignore[no-untyped-def]
    over = False
    for i in range(np.int64(state[COUNTS + TORPEDOES]) - 1, -1, -1):
        torpedo = things[TORPEDOES, i]
        over = over or _at_the_sub(state, torpedo)
        if not _forward(torpedo):
            _remove_like(state, things, TORPEDOES, i)
        else:
            over = over or _at_the_sub(state, torpedo)
    return over


@njit(error_model="numpy")
def _surface(state):  # type: ignore[no-untyped-def]
    """Fresh air for a diver; six of them are worth the air that is left."""
    reward, state[SURFACED] = 0.0, 1
    if state[DIVERS_ABOARD] == MOST_DIVERS:
        state[DIVERS_ABOARD], reward = 0, state[OXYGEN] * 10 // AIR
    state[OXYGEN] = AIR
    state[DIVERS_ABOARD] -= 1
    if state[SPAWN_SPEED] > 1 or state[MOVE_SPEED] > 2:
        if state[MOVE_SPEED] > 2 and state[RAMP] % 2:
            state[MOVE_SPEED] -= 1
        state[SPAWN_SPEED] -= state[SPAWN_SPEED] > 1
        state[RAMP] += 1
    return reward


@njit(error_model="numpy")
def observe(state, obs):  # type: ignore[no-untyped-def]
    obs[:] = np.float32(0)
    row, column = np.int64(state[Y]), np.int64(state[X])
    mark(obs, CHANNELS, row, column, 0)
    mark(obs, CHANNELS, row, column + (-1 if state[FACES_RIGHT] else 1), 1)
    for i in range(np.int64(max(state[OXYGEN], 0.0)) * SIDE // AIR):
        mark(obs, CHANNELS, SIDE - 1, i, 7)
    for i in range(SIDE - 1 - np.int64(state[DIVERS_ABOARD]), SIDE - 1):
        mark(obs, CHANNELS, SIDE - 1, i, 8)
    things = state[THINGS:].reshape(5, ROOM, FIELDS)
    for which, channel in ((BULLETS, 2), (TORPEDOES, 4), (FISH, 5), (SUBS, 6), (DIVERS, 9)):
        for i in range(np.int64(state[COUNTS + which])):
            row, column = np.int64(things[which, i, ROW]), np.int64(things[which, i, COLUMN])
            mark(obs, CHANNELS, row, column, channel)
            if which >= FISH:
                mark(obs, CHANNELS, row, column - (1 if things[which, i, TO_THE_RIGHT] else -1), 3)


SEAQUEST = Dynamics(
    reset,
    step,
    observe,
    (0, -1, -1e9, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, *(0,) * 5, *(0,) * 5 * ROOM * FIELDS),
    (5, AIR, 6, 9, 8, 1, 20, 20, 30, 5, 1e9, 5, 1, *(ROOM,) * 5, *(9, 9, 1, 5, 10) * 5 * ROOM),
)
