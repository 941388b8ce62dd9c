"""Search trees in flat arrays, one tree per root, and their operations between two network calls.

A tree has one node per evaluation: node 0 is the root, simulation s makes node s + 1. B is the number of roots,
N the number of nodes a tree can have, A the number of actions. A simulation ends and the next one begins in one
call, tree by tree, while the tree is in the cache. Nothing here draws random numbers, and the first of equal
scores wins, so a search is a function of its arguments.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from rl_training.compiling import njit

# [B, N]
NODE = np.dtype(
    [
        ("value", np.float64),  # mean of all that was backed up through the node, its own evaluation included
        ("raw_value", np.float64),  # its own evaluation
        ("reward", np.float64),  # on the edge into the node
        ("discount", np.float64),
        ("visits", np.int32),  # how many numbers the mean has: 1 + the visits of its edges
        ("parent", np.int32),
        ("action", np.int32),  # the edge's action at the parent
    ],
    align=True,
)
# [B, N, A]
EDGE = np.dtype(
    [
        ("q", np.float64),  # reward + discount · value(child), as the parent sees it; 0 if not visited
        ("logit", np.float32),  # of the prior policy
        ("prior", np.float32),  # its probability
        ("visits", np.int32),  # how often the edge was taken
        ("child", np.int32),  # the node it leads to, or one of the following
    ],
    align=True,
)
UNVISITED = -1
FORBIDDEN = -2  # an invalid action of a root

# A spread of Q below this counts as this much, so that noise is not blown up to the whole range.
LEAST_SPREAD = 0.01
# The same where a Gumbel search scales Q by the values of each node, as mctx does.
LEAST_SPREAD_OF_A_NODE = 1e-8

AHEAD = 3  # trees from the one that is advanced to the one whose rows are fetched
LINE_BYTES, LINES = 64, 4  # what a cache takes at a time, and how many of them of a node's edges are fetched
INDEX = ir.IntType(64)

# What lets the compiler add in any order and divide by multiplying; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}


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


@njit(borrows=True, nogil=True, fastmath=FAST)
def _make_node(nodes, edges, b, node, logits, value):  # type: ignore[no-untyped-def]
    """Fill the row of a node; False if its evaluation is not finite."""
    finite = math.isfinite(value)
    row = edges[b, node]
    top, total = logits[0], 0.0
    for a in range(len(logits)):
        finite &= math.isfinite(logits[a])
        top = max(top, logits[a])
    for a in range(len(logits)):
        share = math.exp(logits[a] - top)
        total += share
        edge = row[a]
        edge.q = 0.0
        edge.logit = logits[a]
        edge.prior = share
        edge.visits = 0
        edge.child = UNVISITED
    for a in range(len(logits)):
        row[a].prior /= total
    here = nodes[b, node]
    here.value = value
    here.raw_value = value
    here.visits = 1
    return finite


@njit(borrows=True, nogil=True)
def plant(nodes, edges, seen, logits, value, valid):  # type: ignore[no-untyped-def]
    """Make the roots; priors are over the valid actions. `seen` [B, 2]: smallest and largest Q so far."""
    for b in range(len(value)):
        _make_node(nodes, edges, b, 0, logits[b], value[b])
        nodes[b, 0].parent = -1
        seen[b, 0], seen[b, 1] = np.inf, -np.inf
        top, total = -np.inf, 0.0
        for a in range(len(logits[b])):
            if valid[b, a]:
                top = max(top, logits[b, a])
        for a in range(len(logits[b])):
            if valid[b, a]:
                edges[b, 0, a].prior = math.exp(logits[b, a] - top)
                total += edges[b, 0, a].prior
            else:  # never taken; what the network gives it says whether there is such an action at all
                edges[b, 0, a].child = FORBIDDEN
        for a in range(len(logits[b])):
            if valid[b, a]:
                edges[b, 0, a].prior /= total


@intrinsic
def _fetch_row(typing: Any, rows: types.Array, b: types.Integer, node: types.Integer) -> Any:
    """Begin to bring rows[b, node], or the first of it, into the cache; what follows does not wait for it."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        view = context.make_array(rows)(context, builder, values[0])
        start = builder.ptrtoint(view.data, INDEX)
        for number, stride in zip(values[1:], cgutils.unpack_tuple(builder, view.strides)[:2], strict=True):
            start = builder.add(start, builder.mul(number, stride))
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for line in range(LINES if rows.ndim > 2 else 1):
            place = builder.inttoptr(builder.add(start, INDEX(LINE_BYTES * line)), byte)
            builder.call(prefetch, [place, whole(0), whole(3), whole(1)])  # to read; into all caches; data
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.int64), generate


_fetch: Any = _fetch_row


@njit(borrows=True, nogil=True)
def _fetch_tree(nodes, edges, b, made, places):  # type: ignore[no-untyped-def]
    """Fetch what will be read of tree b first: the end of the walk, the new node's row and the root."""
    roots = len(nodes)
    if b < roots:
        for node in (places[made - 1, b] // roots, made, 0):
            _fetch(nodes, b, node)
            _fetch(edges, b, node)


@njit(borrows=True, nogil=True, fastmath=FAST)
def _grow(nodes, edges, seen, b, new, leaf, action, reward, discount, logits, value):  # type: ignore[no-untyped-def]
    """Put node `new` at the end of the walk in tree b and back its value up to the root.

    From the leaf upwards G ← reward + discount · G; each node's value becomes the mean of all such G. A walk that
    ended because it was deep enough may end at a node that is there already: then its value is backed up again.
    Returns False if a number is not finite.
    """
    finite = math.isfinite(reward) and math.isfinite(discount)
    node = edges[b, leaf, action].child
    if node == UNVISITED:
        node = np.int32(new)
        finite &= _make_node(nodes, edges, b, node, logits, value)
        edges[b, leaf, action].child = node
        nodes[b, node].parent = leaf
        nodes[b, node].action = action
        nodes[b, node].reward = reward
        nodes[b, node].discount = discount
    else:
        nodes[b, node].visits += 1
    here = nodes[b, node]
    gain = here.raw_value
    low, high = seen[b, 0], seen[b, 1]
    while node != 0:
        edge = edges[b, here.parent, here.action]
        q = here.reward + here.discount * here.value
        edge.q = q
        edge.visits += 1
        low, high = min(low, q), max(high, q)
        gain = here.reward + here.discount * gain
        node = here.parent
        here = nodes[b, node]
        here.visits += 1
        here.value += (gain - here.value) / here.visits
    seen[b, 0], seen[b, 1] = low, high
    return finite


@njit(borrows=True, nogil=True, fastmath=FAST)
def advance_puct(  # type: ignore[no-untyped-def]
    nodes, edges, seen, made, reward, discount, logits, value, places, actions, max_depth, weights, bounds
):
    """End a simulation in every tree, if one is under way, and begin the next, if there is one more, by pUCT.

    made:     how many nodes a tree has beside its root; the evaluations become the next one
    places:   [N - 1, B], for each simulation where its walks ended: node · B + tree
    actions:  [N - 1, B], and with which actions
    bounds:   the smallest and the largest Q that scale all others; if both are 0, those that a tree has seen
    Returns False if an evaluation is not finite.
    """
    roots, simulations = len(nodes), len(places)
    finite = True
    for b in range(roots):
        if made > 0:
            _fetch_tree(nodes, edges, b + AHEAD, made, places)
            leaf = places[made - 1, b] // roots
            finite &= _grow(
                nodes,
                edges,
                seen,
                b,
                made,
                leaf,
                actions[made - 1, b],
                reward[b],
                discount[b],
                logits[b],
                value[b],
            )
        if made == simulations:
            continue
        follows = bounds[0] == bounds[1]
        low, spread = bounds[0], bounds[1] - bounds[0]
        if follows:
            low, spread = seen[b, 0], max(seen[b, 1] - seen[b, 0], LEAST_SPREAD)
        scale = 1.0 / spread
        node, depth = 0, 1
        while True:
            unvisited = 0.0
            if follows and made > 0:
                unvisited = min(max((nodes[b, node].value - low) * scale, 0.0), 1.0)
            weight = weights[nodes[b, node].visits]
            row = edges[b, node]
            best, highest = 0, -np.inf
            for a in range(len(row)):
                edge = row[a]
                # No branches: which way they go cannot be foretold.
                scaled = (edge.q - low) * scale
                score = unvisited if edge.visits == 0 else scaled
                score += weight * edge.prior / (edge.visits + 1)
                score = -np.inf if edge.child == FORBIDDEN else score
                best = a if score > highest else best
                highest = score if score > highest else highest
            child = row[best].child
            if child < 0 or depth >= max_depth:
                break
            node = child
            depth += 1
        places[made, b] = node * roots + b
        actions[made, b] = best
    return finite


@njit(borrows=True, nogil=True, fastmath=FAST)
def _improve(here, row, seen, c_visit, c_scale, by_node, out):  # type: ignore[no-untyped-def]
    """logits + σ(completed Q) of a node's actions; returns the largest of them.

    v_mix = (v + n · Σ π(a) q(a) / Σ π(a)) / (1 + n), sums over visited actions, n all visits of the node;
    completed Q is q where visited and v_mix elsewhere, scaled to [0, 1] by the smallest and largest Q that the tree
    has `seen`, or `by_node` by those of the node's own actions; an action without prior probability is none of them
    σ(q) = (c_visit + most visits of an action) · c_scale · q
    """
    share, weighted, most = 0.0, 0.0, 0
    low, high = np.inf, -np.inf
    missing = False
    for a in range(len(row)):
        edge = row[a]
        if edge.visits > 0:
            # The floor keeps a visited action of no prior probability from dividing 0 by 0.
            prior = max(np.float64(edge.prior), 1e-40)
            share += prior
            weighted += prior * edge.q
            most = max(most, edge.visits)
            low, high = min(low, edge.q), max(high, edge.q)
        elif edge.prior > 0:  # also one that is forbidden at the root, as in mctx
            missing = True
    total = here.visits - 1
    mixed = here.raw_value
    if total > 0:
        mixed = (mixed + total * (weighted / share)) / (1 + total)
    if by_node:
        if missing:
            low, high = min(low, mixed), max(high, mixed)
        spread = max(high - low, LEAST_SPREAD_OF_A_NODE)
    else:
        low, spread = seen[0], max(seen[1] - seen[0], LEAST_SPREAD)
    scale, gain = 1.0 / spread, (c_visit + most) * c_scale
    top = -np.inf
    for a in range(len(row)):
        edge = row[a]
        out[a] = edge.logit
        if total > 0:  # before that all values are one
            completed = edge.q if edge.visits > 0 else mixed
            # v_mix may lie outside: a network's own value is no Q that was seen.
            out[a] += gain * min(max((completed - low) * scale, 0.0), 1.0)
        top = max(top, out[a])
    return top


@njit(borrows=True, nogil=True, fastmath=FAST)
def _best_considered(row, visits, gumbel, improved):  # type: ignore[no-untyped-def]
    """The valid root action with the largest gumbel + logits + σ(q) among those with this many visits."""
    best, highest = 0, -np.inf
    for a in range(len(row)):
        score = gumbel[a] + improved[a]
        if row[a].visits == visits and row[a].child != FORBIDDEN and score > highest:
            best, highest = a, score
    return best


@njit(borrows=True, nogil=True, fastmath=FAST)
def _follow_improved(here, row, seen, c_visit, c_scale, by_node, improved):  # type: ignore[no-untyped-def]
    """argmax π'(a) - N(a) / (1 + Σ N), π' the improved policy of the node."""
    best, highest = 0, -np.inf
    if here.visits == 1:  # nothing is visited: π' is the prior
        for a in range(len(row)):
            if row[a].logit > highest:
                best, highest = a, row[a].logit
        return best
    top = _improve(here, row, seen, c_visit, c_scale, by_node, improved)
    total = 0.0
    for a in range(len(row)):
        improved[a] = math.exp(improved[a] - top)
        total += improved[a]
    # Both sides times the sum of the exponentials.
    per_visit = total / here.visits
    for a in range(len(row)):
        score = improved[a] - row[a].visits * per_visit
        if score > highest:
            best, highest = a, score
    return best


@njit(borrows=True, nogil=True, fastmath=FAST)
def advance_gumbel(  # type: ignore[no-untyped-def]
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
    """End a simulation in every tree, if one is under way, and begin the next, if there is one more.

    At the root the walk takes the best action among those with as many visits as sequential halving asks for,
    `asked` [N - 1, B]; below it follows the improved policies, [A] numbers that are put into `improved`. See
    `advance_puct` for the rest.
    """
    roots, simulations = len(nodes), len(places)
    finite = True
    for b in range(roots):
        if made > 0:
            _fetch_tree(nodes, edges, b + AHEAD, made, places)
            leaf = places[made - 1, b] // roots
            finite &= _grow(
                nodes,
                edges,
                seen,
                b,
                made,
                leaf,
                actions[made - 1, b],
                reward[b],
                discount[b],
                logits[b],
                value[b],
            )
        if made == simulations:
            continue
        _improve(nodes[b, 0], edges[b, 0], seen[b], c_visit, c_scale, by_node, improved)
        best = _best_considered(edges[b, 0], asked[made, b], gumbel[b], improved)
        node, depth = 0, 1
        while True:
            child = edges[b, node, best].child
            if child < 0 or depth >= max_depth:
                break
            node = child
            depth += 1
            best = _follow_improved(
                nodes[b, node], edges[b, node], seen[b], c_visit, c_scale, by_node, improved
            )
        places[made, b] = node * roots + b
        actions[made, b] = best
    return finite


@njit(nogil=True)
def decide_gumbel(nodes, edges, seen, gumbel, c_visit, c_scale, by_node, weights, action):  # type: ignore[no-untyped-def]
    """After the search: the improved policy at the roots, `weights` [B, A], and the `action` [B] to take.

    That is the best of the most visited: argmax gumbel + logits + σ(q).
    """
    improved = np.empty(edges.shape[2])
    for b in range(len(nodes)):
        row = edges[b, 0]
        _improve(nodes[b, 0], row, seen[b], c_visit, c_scale, by_node, improved)
        most, top, total = 0, -np.inf, 0.0
        for a in range(len(row)):
            most = max(most, row[a].visits)
            if row[a].child != FORBIDDEN:
                top = max(top, improved[a])
        action[b] = _best_considered(row, most, gumbel[b], improved)
        for a in range(len(row)):
            weights[b, a] = math.exp(improved[a] - top) if row[a].child != FORBIDDEN else 0.0
            total += weights[b, a]
        for a in range(len(row)):
            weights[b, a] /= total
