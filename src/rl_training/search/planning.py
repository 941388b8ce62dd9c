"""MuZero's search and Gumbel MuZero's over many roots, with a learned model given as one function.

J. Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model".
I. Danihelka et al. 2022, "Policy improvement by planning with Gumbel".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from rl_training.search.tree import (
    Tree,
    decide_gumbel,
    empty_tree,
    exploration_weights,
    grow,
    halving_table,
    plant,
    walk_gumbel,
    walk_puct,
)

Latent: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
Array: TypeAlias = torch.Tensor | np.ndarray
# (latent [B, ...], action [B]) → reward [B], discount [B], prior logits [B, A], value [B], latent [B, ...]
Recurrent: TypeAlias = Callable[
    [Latent, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Latent]
]


class Root(NamedTuple):
    """What the network says of the B states to plan from."""

    prior_logits: torch.Tensor  # [B, A]
    value: torch.Tensor  # [B]
    latent: Latent  # a tensor or a dict of tensors, each [B, ...]


@dataclass(frozen=True)
class SearchResult:
    """What a search found at its roots, on the device of the roots' logits."""

    action_weights: torch.Tensor  # [B, A], the policy to learn: visit shares, or the improved policy
    visit_counts: torch.Tensor  # [B, A], they sum to the number of simulations
    q_values: torch.Tensor  # [B, A], 0 where an action was not visited
    value: torch.Tensor  # [B], mean of all simulations and the network's own value


@dataclass(frozen=True)
class GumbelSearchResult(SearchResult):
    action: torch.Tensor  # [B], the action to take


@torch.no_grad()
def muzero_search(
    root: Root,
    recurrent: Recurrent,
    *,
    num_simulations: int,
    root_noise: Array | None = None,
    root_exploration_fraction: float = 0.25,
    pb_c_init: float = 1.25,
    pb_c_base: float = 19652,
    value_bounds: tuple[float, float] | None = None,
    invalid_actions: Array | None = None,
    max_depth: int | None = None,
) -> SearchResult:
    """Every walk maximises Q̂(s, a) + P(s, a) · √n / (1 + N(s, a)) · (c₁ + log((n + c₂ + 1) / c₂)), n = 1 + Σ N(s, ·).

    Q̂ is Q = reward + discount · value(child), scaled to [0, 1] by the smallest and largest Q met in the tree, and an
    unvisited action has its node's value, scaled alike. With `value_bounds` (min, max) these scale Q instead, and
    an unvisited action scores 0.

    root_noise:      [B, A], mixed into the root's prior: (1 - ε) P + ε noise, ε = `root_exploration_fraction`
    invalid_actions: [B, A], nonzero where an action is not allowed at the root
    max_depth:       no walk is longer than this many actions; None for no limit
    """
    tree, valid = _planted(root, num_simulations, invalid_actions, max_depth)
    if root_noise is not None:
        _mix_noise(tree, valid, _checked("root_noise", root_noise, valid.shape), root_exploration_fraction)
    if value_bounds is not None:
        low, high = map(float, value_bounds)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"value_bounds must be two finite numbers, min < max; got {value_bounds}")
        value_bounds = low, high
    weights = exploration_weights(num_simulations + 1, pb_c_init, pb_c_base)
    depth = max_depth or num_simulations

    def walk(simulation: int, leaf: np.ndarray, action: np.ndarray) -> None:
        walk_puct(tree, valid, depth, weights, value_bounds, leaf, action)

    _simulate(root, recurrent, tree, walk, num_simulations)
    device = root.prior_logits.device
    visits = torch.from_numpy(tree.visits[:, 0].astype(np.int64)).to(device)
    return SearchResult(
        action_weights=visits / num_simulations,
        visit_counts=visits,
        q_values=torch.from_numpy(tree.q[:, 0].astype(np.float32)).to(device),
        value=torch.from_numpy(tree.value[:, 0].astype(np.float32)).to(device),
    )


@torch.no_grad()
def gumbel_muzero_search(
    root: Root,
    recurrent: Recurrent,
    *,
    num_simulations: int,
    gumbel: Array,
    max_considered_actions: int = 16,
    c_visit: float = 50,
    c_scale: float = 0.1,
    invalid_actions: Array | None = None,
    max_depth: int | None = None,
) -> GumbelSearchResult:
    """Gumbel-top-k and sequential halving at the root, the improved policy below it.

    The root considers the m = min(max_considered_actions, valid actions) with the largest gumbel + logits; the
    simulations are shared among them by sequential halving, and the survivor with the largest
    gumbel + logits + σ(completed Q) is the action to take. Below the root the visits follow the improved policy
    π' = softmax(logits + σ(completed Q)), which is also what the root returns as `action_weights`.

    gumbel:          [B, A], Gumbel(0) noise of this search, times its temperature; zeros search without noise
    invalid_actions: [B, A], nonzero where an action is not allowed at the root
    max_depth:       no walk is longer than this many actions; None for no limit
    """
    tree, valid = _planted(root, num_simulations, invalid_actions, max_depth)
    noise = _checked("gumbel", gumbel, valid.shape)
    if max_considered_actions < 1:
        raise ValueError(f"max_considered_actions must be at least 1, not {max_considered_actions}")
    c_visit, c_scale = float(c_visit), float(c_scale)
    most = min(max_considered_actions, valid.shape[1])
    asked = halving_table(most, num_simulations)[np.minimum(most, valid.sum(1))].T.copy()
    depth = max_depth or num_simulations

    def walk(simulation: int, leaf: np.ndarray, action: np.ndarray) -> None:
        walk_gumbel(tree, valid, depth, asked[simulation], noise, c_visit, c_scale, leaf, action)

    _simulate(root, recurrent, tree, walk, num_simulations)
    action, weights = np.empty(len(valid), np.int64), np.empty(valid.shape, np.float32)
    decide_gumbel(tree, valid, noise, c_visit, c_scale, weights, action)
    device = root.prior_logits.device
    return GumbelSearchResult(
        action_weights=torch.from_numpy(weights).to(device),
        visit_counts=torch.from_numpy(tree.visits[:, 0].astype(np.int64)).to(device),
        q_values=torch.from_numpy(tree.q[:, 0].astype(np.float32)).to(device),
        value=torch.from_numpy(tree.value[:, 0].astype(np.float32)).to(device),
        action=torch.from_numpy(action).to(device),
    )


def _simulate(
    root: Root,
    recurrent: Recurrent,
    tree: Tree,
    walk: Callable[[int, np.ndarray, np.ndarray], None],
    num_simulations: int,
) -> None:
    """Walk, evaluate all walks' ends in one call of the model, grow the trees; `num_simulations` times."""
    roots, _, actions = tree.visits.shape
    latents = _Latents(root.latent, num_simulations)
    leaf, action = np.empty(roots, np.int64), np.empty(roots, np.int64)
    action_tensor, row = torch.from_numpy(action), np.arange(roots)
    device = root.prior_logits.device
    shapes = {"reward": (roots,), "discount": (roots,), "prior_logits": (roots, actions), "value": (roots,)}
    received = [np.empty(shape) for shape in shapes.values()]
    for simulation in range(num_simulations):
        walk(simulation, leaf, action)
        *outputs, latent = recurrent(latents.read(leaf * roots + row), action_tensor.clone().to(device))
        for (name, shape), output, buffer in zip(shapes.items(), outputs, received, strict=True):
            if output.shape != shape:
                raise ValueError(
                    f"recurrent's {name} must have the shape {list(shape)}, not {list(output.shape)}"
                )
            np.copyto(buffer, output.detach().cpu().numpy(), casting="same_kind")
        if not grow(tree, simulation + 1, leaf, action, *received):
            name = next(
                (name for name, found in zip(shapes, received, strict=True) if not np.isfinite(found).all())
            )
            raise ValueError(f"recurrent's {name} is not finite in simulation {simulation + 1}")
        latents.write(simulation + 1, latent)


class _Latents:
    """The latents of all nodes, [N · B, ...] with the nodes of one simulation side by side."""

    def __init__(self, root: Latent, num_simulations: int) -> None:
        self.is_dict = isinstance(root, dict)
        self.parts = root if isinstance(root, dict) else {"latent": root}
        self.roots = len(next(iter(self.parts.values())))
        # The last node's latent is never read.
        self.stored = {
            name: part.new_empty((num_simulations * self.roots, *part.shape[1:]))
            for name, part in self.parts.items()
        }
        self.nodes = num_simulations
        self.write(0, root)

    def read(self, places: np.ndarray) -> Latent:
        index = torch.from_numpy(places)
        found = {
            name: part.index_select(0, index.to(part.device, non_blocking=True))
            for name, part in self.stored.items()
        }
        return found if self.is_dict else found["latent"]

    def write(self, node: int, latent: Latent) -> None:
        if node == self.nodes:
            return
        parts = latent if isinstance(latent, dict) else {"latent": latent}
        if parts.keys() != self.stored.keys():
            raise ValueError(
                f"recurrent's latent has the parts {sorted(parts)}, the root's has {sorted(self.stored)}"
            )
        place = slice(node * self.roots, (node + 1) * self.roots)
        for name, part in parts.items():
            expected = self.parts[name]
            if part.shape != expected.shape:
                raise ValueError(
                    f"recurrent's {name} must have the shape of the root's, {list(expected.shape)}, "
                    f"not {list(part.shape)}"
                )
            self.stored[name][place] = part


def _planted(
    root: Root, num_simulations: int, invalid_actions: Array | None, max_depth: int | None
) -> tuple[Tree, np.ndarray]:
    """Trees with their roots, and which actions are valid there [B, A]."""
    if num_simulations < 1:
        raise ValueError(f"num_simulations must be at least 1, not {num_simulations}")
    if max_depth is not None and max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, not {max_depth}")
    if root.prior_logits.ndim != 2 or 0 in root.prior_logits.shape:
        raise ValueError(f"prior_logits must be [B, A], not {list(root.prior_logits.shape)}")
    roots, actions = root.prior_logits.shape
    parts = root.latent if isinstance(root.latent, dict) else {"latent": root.latent}
    for name, part in parts.items():
        if part.ndim == 0 or len(part) != roots:
            raise ValueError(f"{name} must have {roots} rows, one per root, not {list(part.shape)}")
    logits = _checked("prior_logits", root.prior_logits, (roots, actions))
    value = _checked("value", root.value, (roots,))
    valid = np.ones((roots, actions), bool)
    tree = empty_tree(roots, num_simulations + 1, actions)
    plant(tree, logits, value)
    if invalid_actions is not None:
        valid = _checked("invalid_actions", invalid_actions, (roots, actions)) == 0
        if not valid.any(1).all():
            raise ValueError(f"root {int(valid.any(1).argmin())} has no valid action")
        # From here on the root's prior knows only valid actions.
        prior = np.where(valid, np.exp(logits - np.where(valid, logits, -np.inf).max(1, keepdims=True)), 0.0)
        tree.prior[:, 0] = prior / prior.sum(1, keepdims=True)
    return tree, valid


def _mix_noise(tree: Tree, valid: np.ndarray, noise: np.ndarray, fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"root_exploration_fraction must be in [0, 1], not {fraction}")
    mixed = np.where(valid, (1 - fraction) * tree.prior[:, 0] + fraction * noise, 0.0)
    tree.prior[:, 0] = mixed / mixed.sum(1, keepdims=True)


def _checked(name: str, array: Array, shape: tuple[int, ...]) -> np.ndarray:
    """As finite float64 of this shape."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().numpy()
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {list(shape)}, not {list(array.shape)}")
    array = np.ascontiguousarray(array, np.float64)
    if not np.isfinite(array).all():
        hint = ": forbid actions with invalid_actions" if name == "prior_logits" else ""
        raise ValueError(f"{name} is not finite{hint}")
    return array
