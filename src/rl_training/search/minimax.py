"""Minimax with alpha-beta over a compiled game of two, to a given depth."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.dynamics.interface import Dynamics, call_observe, call_step

LATER = 0.99  # what a win a move later is worth of it: the soonest is taken, and a loss is put off


def minimax_values(
    dynamics: Dynamics, state: np.ndarray, depth: int, numbers: int, actions: int
) -> np.ndarray:
    """What each action is worth to who moves at a state [S], looking `depth` moves ahead; -∞ where it is forbidden.

    A reward belongs to who moved, and beyond the last move looked at all is worth 0.

    numbers: how many `observe` writes, the mask of the `actions` being the last of them
    """
    if not dynamics.masked or depth < 1:
        raise ValueError("minimax needs a game with action masks and a depth of at least 1")
    _, step, observe = dynamics.addresses()
    values = np.full(actions, -np.inf)
    _weigh(step, observe, state, depth, numbers, values)
    return values


@njit(error_model="numpy")
def _weigh(step, observe, state, depth, numbers, values):  # type: ignore[no-untyped-def]
    """The exact value of every action: of those that are no better, alpha-beta would only tell a bound."""
    row, actions = np.empty(numbers, np.float32), len(values)
    call_observe(observe, (state, row))
    for a in range(actions):
        if row[numbers - actions + a] != 0:
            values[a] = _after(step, observe, state, a, depth, -np.inf, np.inf, numbers, actions)


@njit(error_model="numpy")
def _after(step, observe, state, a, depth, alpha, beta, numbers, actions):  # type: ignore[no-untyped-def]
    """What an action is worth to its mover, exactly if that is between alpha and beta, and else a bound."""
    child, action, chance = state.copy(), np.empty(1), np.zeros(2, np.uint64)
    action[0] = a
    value, over = call_step(step, (child, action, chance))
    if over or depth == 1:
        return value
    row = np.empty(numbers, np.float32)
    call_observe(observe, (child, row))
    # value - LATER · best lies between alpha and beta where best, of the other side, lies between these.
    low, high = (value - beta) / LATER, (value - alpha) / LATER
    best = -np.inf
    for b in range(actions):
        if row[numbers - actions + b] != 0:
            found = _after(step, observe, child, b, depth - 1, max(low, best), high, numbers, actions)
            best = max(best, found)
            if best >= high:
                break
    return value - LATER * best
