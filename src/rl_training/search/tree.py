"""Search trees in flat arrays, one tree per root, and what happens in them between two network calls.

A tree has one node per evaluation: node 0 is the root, simulation s makes node s + 1. B is the number of roots,
N the number of nodes a tree can have, A the number of actions. Nothing here draws random numbers, and the first
of equal scores wins, so a search is a function of its arguments.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numba
import numpy as np

# A spread of Q below this counts as this much, so that noise is not blown up to the whole range.
LEAST_SPREAD = 0.01
# The same for completed values of one node in a Gumbel search.
LEAST_RESCALED_SPREAD = 1e-8


class Tree(NamedTuple):
    """Edges are [B, N, A], nodes are [B, N]; a row is filled when its node is made."""

    children: np.ndarray  # the node an action leads to, -1 if nobody went there yet
    visits: np.ndarray  # how often the edge was taken
    q: np.ndarray  # reward + discount · value(child), as the parent sees it; 0 if not visited
    logits: np.ndarray  # of the prior policy
    prior: np.ndarray  # its probabilities
    value: np.ndarray  # mean of all that was backed up through the node, its own evaluation included
    raw_value: np.ndarray  # its own evaluation
    node_visits: np.ndarray  # how many numbers that mean has: 1 + the visits of its edges
    reward: np.ndarray  # on the edge into the node
    discount: np.ndarray
    parent: np.ndarray
    action: np.ndarray  # the edge's action at the parent
    seen: np.ndarray  # [B, 2]: the smallest and the largest Q met in the tree so far


def empty_tree(roots: int, nodes: int, actions: int) -> Tree:
    def edges(kind: type) -> np.ndarray:
        return np.empty((roots, nodes, actions), kind)

    def per_node(kind: type) -> np.ndarray:
        return np.empty((roots, nodes), kind)

    return Tree(
        children=edges(np.int32),
        visits=edges(np.int32),
        q=edges(np.float64),
        logits=edges(np.float64),
        prior=edges(np.float64),
        value=per_node(np.float64),
        raw_value=per_node(np.float64),
        node_visits=per_node(np.int32),
        reward=per_node(np.float64),
        discount=per_node(np.float64),
        parent=per_node(np.int32),
        action=per_node(np.int32),
        seen=np.empty((roots, 2)),
    )


@functools.lru_cache(maxsize=64)
def exploration_weights(nodes: int, pb_c_init: float, pb_c_base: float) -> np.ndarray:
    """√n · (c₁ + log((n + c₂ + 1) / c₂)) for a node whose value is the mean of n numbers, n = 0 … nodes."""
    n = np.arange(nodes + 1.0)
    return np.sqrt(n) * (pb_c_init + np.log((n + pb_c_base + 1) / pb_c_base))


@functools.lru_cache(maxsize=64)
def halving_table(max_considered: int, num_simulations: int) -> np.ndarray:
    """Sequential halving, [max_considered + 1, num_simulations].

    Row m holds, for each simulation, the number of visits that an action must have to be visited next when m
    actions are considered. A phase with c survivors gives each of them max(1, ⌊n / (⌈log₂ m⌉ · c)⌋) visits, and
    then c halves, down to 2.
    """
    table = np.zeros((max_considered + 1, num_simulations), np.int32)
    for considered in range(1, max_considered + 1):
        table[considered] = _halving_row(considered, num_simulations)
    return table


def _halving_row(considered: int, num_simulations: int) -> list[int]:
    if considered == 1:
        return list(range(num_simulations))
    phases = (considered - 1).bit_length()
    row: list[int] = []
    survivors, visits = considered, 0
    while len(row) < num_simulations:
        for _ in range(max(1, num_simulations // (phases * survivors))):
            row += [visits] * survivors
            visits += 1
        survivors = max(2, survivors // 2)
    return row[:num_simulations]


@numba.njit(cache=True, nogil=True)
def _softmax(logits, out):  # type: ignore[no-untyped-def]
    top, total = logits[0], 0.0
    for a in range(1, len(logits)):
        top = max(top, logits[a])
    for a in range(len(logits)):
        out[a] = math.exp(logits[a] - top)
        total += out[a]
    for a in range(len(logits)):
        out[a] /= total


@numba.njit(cache=True, nogil=True)
def _make_node(tree, b, node, logits, value):  # type: ignore[no-untyped-def]
    """Fill the row of a node; False if its evaluation is not finite."""
    finite = math.isfinite(value)
    for a in range(len(logits)):
        finite &= math.isfinite(logits[a])
        tree.children[b, node, a] = -1
        tree.visits[b, node, a] = 0
        tree.q[b, node, a] = 0.0
        tree.logits[b, node, a] = logits[a]
    _softmax(tree.logits[b, node], tree.prior[b, node])
    tree.value[b, node] = tree.raw_value[b, node] = value
    tree.node_visits[b, node] = 1
    return finite


@numba.njit(cache=True, nogil=True)
def plant(tree, logits, value):  # type: ignore[no-untyped-def]
    """Make the roots; False if a number is not finite."""
    finite = True
    for b in range(len(value)):
        finite &= _make_node(tree, b, 0, logits[b], value[b])
        tree.parent[b, 0] = -1
        tree.seen[b, 0] = np.inf
        tree.seen[b, 1] = -np.inf
    return finite


@numba.njit(cache=True, nogil=True)
def grow(tree, new, leaf, action, reward, discount, logits, value):  # type: ignore[no-untyped-def]
    """Put node `new` at the end of each tree's walk and back its value up to the root.

    From the leaf upwards G ← reward + discount · G; each node's value becomes the mean of all such G. A walk that
    ended because it was deep enough may end at a node that is there already: then its value is backed up again.
    Returns False if a number is not finite.
    """
    finite = True
    for b in range(len(value)):
        finite &= math.isfinite(reward[b]) and math.isfinite(discount[b])
        node = tree.children[b, leaf[b], action[b]]
        if node < 0:
            node = new
            finite &= _make_node(tree, b, node, logits[b], value[b])
            tree.children[b, leaf[b], action[b]] = node
            tree.parent[b, node] = leaf[b]
            tree.action[b, node] = action[b]
            tree.reward[b, node] = reward[b]
            tree.discount[b, node] = discount[b]
        else:
            tree.node_visits[b, node] += 1
        gain = tree.raw_value[b, node]
        while node > 0:
            parent, taken = tree.parent[b, node], tree.action[b, node]
            q = tree.reward[b, node] + tree.discount[b, node] * tree.value[b, node]
            tree.q[b, parent, taken] = q
            tree.visits[b, parent, taken] += 1
            tree.seen[b, 0] = min(tree.seen[b, 0], q)
            tree.seen[b, 1] = max(tree.seen[b, 1], q)
            gain = tree.reward[b, node] + tree.discount[b, node] * gain
            tree.node_visits[b, parent] += 1
            tree.value[b, parent] += (gain - tree.value[b, parent]) / tree.node_visits[b, parent]
            node = parent
    return finite


@numba.njit(cache=True, nogil=True)
def walk_puct(tree, valid, max_depth, weights, bounds, leaf, action):  # type: ignore[no-untyped-def]
    """From every root to an edge nobody took yet, by pUCT; writes where the walks ended, `leaf` and `action` [B].

    bounds: None to scale Q by what each tree has seen, where an unvisited edge counts as its parent's value; else
    (min, max), where an unvisited edge scores 0
    """
    actions = tree.visits.shape[2]
    for b in range(len(leaf)):
        if bounds is None:
            low, scale = tree.seen[b, 0], 1.0 / max(tree.seen[b, 1] - tree.seen[b, 0], LEAST_SPREAD)
        else:
            low, scale = bounds[0], 1.0 / (bounds[1] - bounds[0])
        node, depth = 0, 0
        while True:
            unvisited = 0.0
            if bounds is None and tree.node_visits[b, 0] > 1:
                unvisited = min(max((tree.value[b, node] - low) * scale, 0.0), 1.0)
            weight = weights[tree.node_visits[b, node]]
            best, highest = -1, -np.inf
            for a in range(actions):
                if node == 0 and not valid[b, a]:
                    continue
                visits = tree.visits[b, node, a]
                score = unvisited if visits == 0 else (tree.q[b, node, a] - low) * scale
                score += weight * tree.prior[b, node, a] / (visits + 1)
                if score > highest:
                    best, highest = a, score
            depth += 1
            child = tree.children[b, node, best]
            if child < 0 or depth >= max_depth:
                break
            node = child
        leaf[b], action[b] = node, best


@numba.njit(cache=True, nogil=True)
def _improve(tree, b, node, c_visit, c_scale, out):  # type: ignore[no-untyped-def]
    """logits + σ(completed Q) of a node's actions.

    v_mix = (v + n · Σ π(a) q(a) / Σ π(a)) / (1 + n), sums over visited actions, n all visits of the node;
    completed Q is q where visited and v_mix elsewhere, rescaled to [0, 1] over the node's actions;
    σ(q) = (c_visit + most visits of an action) · c_scale · q
    """
    actions = len(out)
    share, weighted, most = 0.0, 0.0, 0
    for a in range(actions):
        visits = tree.visits[b, node, a]
        if visits > 0:
            # The floor keeps a visited action of no prior probability from dividing 0 by 0.
            prior = max(tree.prior[b, node, a], 1e-300)
            share += prior
            weighted += prior * tree.q[b, node, a]
            most = max(most, visits)
    mixed = tree.raw_value[b, node]
    if most > 0:
        total = tree.node_visits[b, node] - 1
        mixed = (mixed + total * (weighted / share)) / (1 + total)
    low, high = np.inf, -np.inf
    for a in range(actions):
        out[a] = tree.q[b, node, a] if tree.visits[b, node, a] > 0 else mixed
        low, high = min(low, out[a]), max(high, out[a])
    scale = (c_visit + most) * c_scale / max(high - low, LEAST_RESCALED_SPREAD)
    for a in range(actions):
        out[a] = tree.logits[b, node, a] + (out[a] - low) * scale


@numba.njit(cache=True, nogil=True)
def _best_considered(tree, b, visits, valid, gumbel, improved):  # type: ignore[no-untyped-def]
    """The valid root action with the largest gumbel + logits + σ(q) among those with this many visits."""
    best, highest = -1, -np.inf
    for a in range(len(improved)):
        if valid[b, a] and tree.visits[b, 0, a] == visits and gumbel[b, a] + improved[a] > highest:
            best, highest = a, gumbel[b, a] + improved[a]
    return best


@numba.njit(cache=True, nogil=True)
def walk_gumbel(tree, valid, max_depth, asked, gumbel, c_visit, c_scale, leaf, action):  # type: ignore[no-untyped-def]
    """From every root to an edge nobody took yet; writes where the walks ended, `leaf` and `action` [B].

    At the root: the best action among those with as many visits as sequential halving asks for, `asked` [B].
    Below: argmax π'(a) - N(a) / (1 + Σ N), π' the improved policy of the node.
    """
    actions = tree.visits.shape[2]
    improved = np.empty(actions)
    for b in range(len(leaf)):
        _improve(tree, b, 0, c_visit, c_scale, improved)
        best = _best_considered(tree, b, asked[b], valid, gumbel, improved)
        node, depth = 0, 1
        while True:
            child = tree.children[b, node, best]
            if child < 0 or depth >= max_depth:
                break
            node = child
            depth += 1
            _improve(tree, b, node, c_visit, c_scale, improved)
            _softmax(improved, improved)
            best, highest = -1, -np.inf
            for a in range(actions):
                score = improved[a] - tree.visits[b, node, a] / tree.node_visits[b, node]
                if score > highest:
                    best, highest = a, score
        leaf[b], action[b] = node, best


@numba.njit(cache=True, nogil=True)
def decide_gumbel(tree, valid, gumbel, c_visit, c_scale, weights, action):  # type: ignore[no-untyped-def]
    """After the search: the improved policy at the roots, `weights` [B, A], and the `action` [B] to take.

    That is the best of the most visited: argmax gumbel + logits + σ(q).
    """
    actions = weights.shape[1]
    improved = np.empty(actions)
    for b in range(len(action)):
        _improve(tree, b, 0, c_visit, c_scale, improved)
        action[b] = _best_considered(tree, b, tree.visits[b, 0].max(), valid, gumbel, improved)
        for a in range(actions):
            if not valid[b, a]:
                improved[a] = -np.inf
        _softmax(improved, weights[b])
