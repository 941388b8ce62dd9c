"""A whole search in one call, where the model is a small network: nothing of Python between two simulations.

With some dozen roots and units, calling the trees and the model takes longer than what they compute. The functions are
those that a search of single calls uses, so the numbers are the same.
"""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.small_model import evaluate
from rl_training.kernels.tree import advance_gumbel, advance_puct


@njit(nogil=True, calls=True)
def search_puct(nodes, edges, seen, received, places, actions, max_depth, more, latents, model):  # type: ignore[no-untyped-def]
    """All simulations of a search by pUCT; how many there were when an evaluation was not finite, or 0.

    received: reward [B], discount [B], logits [B, A], value [B] of the last call of the model; the discount stays
    more:     what `advance_puct` takes at its end
    latents:  [N - 1, B, L], the states of all nodes but the last; those of the roots are there
    model:    what `SmallModel.current` gives
    """
    state, last = np.empty_like(latents[0]), np.empty_like(latents[0])
    reward, discount, logits, value = received
    weights, bounds = more
    for made in range(len(places) + 1):
        if made > 0:
            _evaluate_ends(latents, places, actions, made, model, state, last, reward, logits, value)
        if not advance_puct(
            nodes,
            edges,
            seen,
            made,
            reward,
            discount,
            logits,
            value,
            places,
            actions,
            max_depth,
            weights,
            bounds,
        ):
            return made
    return 0


@njit(nogil=True, calls=True)
def search_gumbel(nodes, edges, seen, received, places, actions, max_depth, more, latents, model):  # type: ignore[no-untyped-def]
    """The same by Gumbel search; `more` is what `advance_gumbel` takes at its end."""
    state, last = np.empty_like(latents[0]), np.empty_like(latents[0])
    reward, discount, logits, value = received
    asked, gumbel, c_visit, c_scale, by_node, improved = more
    for made in range(len(places) + 1):
        if made > 0:
            _evaluate_ends(latents, places, actions, made, model, state, last, reward, logits, value)
        if not advance_gumbel(
            nodes,
            edges,
            seen,
            made,
            reward,
            discount,
            logits,
            value,
            places,
            actions,
            max_depth,
            asked,
            gumbel,
            c_visit,
            c_scale,
            by_node,
            improved,
        ):
            return made
    return 0


@njit(nogil=True)
def _evaluate_ends(latents, places, actions, made, model, state, last, reward, logits, value):  # type: ignore[no-untyped-def]
    """Ask the model where the walks of a simulation ended; the states become those of node `made`."""
    first, table, rest, heads, activation, _ = model
    _read_ends(latents, places[made - 1], state)
    following = latents[made] if made < len(latents) else last
    evaluate(
        state, actions[made - 1], first, table, rest, heads, activation, reward, logits, value, following
    )


# Number by number: an assignment of rows checks their shapes, and counts who holds them.
@njit(borrows=True, nogil=True)
def _read_ends(latents, places, state):  # type: ignore[no-untyped-def]
    """state[b] = latents[n, b] where places[b] = n · B + b, B roots."""
    roots, size = state.shape
    for b in range(roots):
        node = places[b] // roots
        for j in range(size):
            state[b, j] = latents[node, b, j]
