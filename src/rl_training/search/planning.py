"""MuZero's search and Gumbel MuZero's over many roots, with a learned model given as one function.

J. Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model".
I. Danihelka et al. 2022, "Policy improvement by planning with Gumbel".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from rl_training.kernels.small_model import SmallModel
from rl_training.kernels.tree import (
    EDGE,
    NODE,
    advance_gumbel,
    advance_puct,
    decide_gumbel,
    exploration_weights,
    halving_table,
    plant,
)
from rl_training.kernels.whole_search import search_gumbel, search_puct

Latent: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
Array: TypeAlias = torch.Tensor | np.ndarray
# (latent [B, ...], action [B]) → reward [B], discount [B], prior logits [B, A], value [B], latent [B, ...]
Recurrent: TypeAlias = Callable[
    [Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Latent]
]


OUTPUTS = ("reward", "discount", "prior_logits", "value")


class Small(NamedTuple):
    """What a `recurrent` may have as its attribute `small`: its model, if compiled functions can ask it directly.

    Latents are then a float32 tensor [B, L] on the CPU.
    """

    model: SmallModel
    discount: torch.Tensor  # [B], float32, of every step


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
    trees = _Trees(root, num_simulations, invalid_actions, max_depth)
    if root_noise is not None:
        trees.mix_noise(root_noise, root_exploration_fraction)
    bounds = (0.0, 0.0) if value_bounds is None else (float(value_bounds[0]), float(value_bounds[1]))
    if value_bounds is not None and not (math.isfinite(bounds[1] - bounds[0]) and bounds[0] < bounds[1]):
        raise ValueError(f"value_bounds must be two finite numbers, min < max; got {value_bounds}")
    weights = exploration_weights(num_simulations + 1, pb_c_init, pb_c_base)
    trees.search(recurrent, advance_puct, search_puct, weights, bounds)
    visits = trees.at_roots("visits", torch.int64)
    return SearchResult(
        action_weights=visits / num_simulations,
        visit_counts=visits,
        q_values=trees.at_roots("q", torch.float32),
        value=trees.root_values(),
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
    rescale_by: str = "tree",
    invalid_actions: Array | None = None,
    max_depth: int | None = None,
) -> GumbelSearchResult:
    """Gumbel-top-k and sequential halving at the root, the improved policy below it.

    The root considers the m = min(max_considered_actions, valid actions) with the largest gumbel + logits; the
    simulations are shared among them by sequential halving, and the survivor with the largest
    gumbel + logits + σ(completed Q) is the action to take. Below the root the visits follow the improved policy
    π' = softmax(logits + σ(completed Q)), which is also what the root returns as `action_weights`.

    gumbel:          [B, A], Gumbel(0) noise of this search, times its temperature; zeros search without noise
    rescale_by:      what scales Q to [0, 1]: "tree", all Q met in the tree, a spread below 0.01 counting as 0.01
                     (EfficientZero V2), or "node", the completed Q of a node's own actions (mctx)
    invalid_actions: [B, A], nonzero where an action is not allowed at the root
    max_depth:       no walk is longer than this many actions; None for no limit
    """
    trees = _Trees(root, num_simulations, invalid_actions, max_depth)
    noise = _checked("gumbel", gumbel, trees.valid.shape)
    if max_considered_actions < 1:
        raise ValueError(f"max_considered_actions must be at least 1, not {max_considered_actions}")
    if rescale_by not in ("tree", "node"):
        raise ValueError(f"rescale_by must be tree or node, not {rescale_by!r}")
    sigma = float(c_visit), float(c_scale), rescale_by == "node"
    most = min(max_considered_actions, trees.valid.shape[1])
    considered = np.minimum(most, trees.valid.sum(1))
    asked = np.ascontiguousarray(halving_table(most, num_simulations)[considered].T)
    improved = np.empty(noise.shape[1])
    trees.search(recurrent, advance_gumbel, search_gumbel, asked, noise, *sigma, improved)
    weights, action = np.empty(noise.shape, np.float32), np.empty(len(noise), np.int64)
    decide_gumbel(trees.nodes, trees.edges, trees.seen, noise, *sigma, weights, action)
    device = root.prior_logits.device
    return GumbelSearchResult(
        action_weights=torch.from_numpy(weights).to(device),
        visit_counts=trees.at_roots("visits", torch.int64),
        q_values=trees.at_roots("q", torch.float32),
        value=trees.root_values(),
        action=torch.from_numpy(action).to(device),
    )


class _Trees:
    """The trees of one search, and the latents of their nodes."""

    def __init__(
        self, root: Root, num_simulations: int, invalid_actions: Array | None, max_depth: int | None
    ) -> None:
        if num_simulations < 1:
            raise ValueError(f"num_simulations must be at least 1, not {num_simulations}")
        if max_depth is not None and max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        if root.prior_logits.ndim != 2 or 0 in root.prior_logits.shape:
            raise ValueError(f"prior_logits must be [B, A], not {list(root.prior_logits.shape)}")
        roots, actions = shape = tuple(root.prior_logits.shape)
        logits = _checked("prior_logits", root.prior_logits, shape)
        value = _checked("value", root.value, (roots,))
        if invalid_actions is None:
            self.valid = np.ones(shape, np.bool_)
        else:
            self.valid = _checked("invalid_actions", invalid_actions, shape) == 0
            if not self.valid.any(1).all():
                raise ValueError(f"root {int(self.valid.any(1).argmin())} has no valid action")
        self.device = root.prior_logits.device
        self.latents = _Latents(root.latent, roots, num_simulations)
        self.num_simulations, self.max_depth = num_simulations, max_depth or num_simulations
        self.nodes = np.empty((roots, num_simulations + 1), NODE)
        self.edges = np.empty((roots, num_simulations + 1, actions), EDGE)
        self.seen = np.empty((roots, 2))
        plant(self.nodes, self.edges, self.seen, logits, value, self.valid)

    def mix_noise(self, noise: Array, fraction: float) -> None:
        """P ← (1 - ε) P + ε noise over the roots' valid actions."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"root_exploration_fraction must be in [0, 1], not {fraction}")
        prior = self.edges["prior"][:, 0]
        mixed = (1 - fraction) * prior + fraction * _checked("root_noise", noise, self.valid.shape)
        mixed *= self.valid
        prior[:] = mixed / mixed.sum(1, keepdims=True)

    def search(
        self, recurrent: Recurrent, advance: Callable[..., bool], whole: Callable[..., int], *more: object
    ) -> None:
        """Walk, evaluate the ends of all walks in one call of the model, grow the trees, `num_simulations` times.

        Where the model is a small network, all of it is one call of `whole`.
        """
        roots, actions = self.valid.shape
        # A row per simulation, so that a model may keep what it is given.
        ends = torch.empty(2, self.num_simulations, roots, dtype=torch.int64)
        places, taken = ends.numpy()
        shapes = [torch.Size(shape) for shape in ((roots,), (roots,), (roots, actions), (roots,))]
        received = [np.zeros(shape, np.float32) for shape in shapes]
        state, on_cpu = (self.nodes, self.edges, self.seen), self.device.type == "cpu"
        small: Small | None = getattr(recurrent, "small", None)
        if small is not None:
            received[1] = small.discount.numpy()
            latents = self.latents.stored["latent"].numpy()
            made = whole(
                *state, tuple(received), places, taken, self.max_depth, more, latents, small.model.current()
            )
            if made:
                _refuse_what_is_not_finite(received, made)
            return
        advance(*state, 0, *received, places, taken, self.max_depth, *more)
        for made, (place, action) in enumerate(zip(*ends.unbind(), strict=True), start=1):
            if not on_cpu:
                place, action = place.to(self.device), action.to(self.device)
            answer = recurrent(self.latents.read(place), action)
            if not isinstance(answer, tuple) or len(answer) != 5:
                what = f"{len(answer)} things" if isinstance(answer, tuple) else type(answer).__name__
                raise ValueError(
                    f"recurrent must return the tuple ({', '.join(OUTPUTS)}, latent), not {what}"
                )
            *outputs, latent = answer
            received = [_received(*each) for each in zip(OUTPUTS, outputs, shapes, strict=True)]
            self.latents.write(made, latent)
            if not advance(*state, made, *received, places, taken, self.max_depth, *more):
                _refuse_what_is_not_finite(received, made)

    def at_roots(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.edges[name][:, 0].copy()).to(self.device, dtype)

    def root_values(self) -> torch.Tensor:
        return torch.from_numpy(self.nodes["value"][:, 0].copy()).to(self.device, torch.float32)


class _Latents:
    """The latents of all nodes, [N · B, ...] with the nodes of one simulation side by side."""

    def __init__(self, latent: Latent, roots: int, num_simulations: int) -> None:
        self.is_dict = isinstance(latent, dict)
        self.parts = _parts(latent)
        for name, part in self.parts.items():
            if part.ndim == 0 or len(part) != roots:
                raise ValueError(f"{name} must have {roots} rows, one per root, not {list(part.shape)}")
        # Frames stay as they lie in memory: to turn them around takes longer than to copy them.
        self.channels_last = {name for name, part in self.parts.items() if _has_channels_last(part)}
        # The last node's latent is never read.
        self.stored = {
            name: part.new_empty((num_simulations, *self._stored(name, part).shape))
            for name, part in self.parts.items()
        }
        self.flat = {name: part.flatten(0, 1) for name, part in self.stored.items()}
        self.rows = {
            name: tuple(self._as_given(name, row) for row in part) for name, part in self.stored.items()
        }
        self.write(0, latent)

    def read(self, place: torch.Tensor) -> Latent:
        if self.is_dict:
            return {name: self._chosen(name, place) for name in self.flat}
        return self._chosen("latent", place)

    def _chosen(self, name: str, place: torch.Tensor) -> torch.Tensor:
        return self._as_given(name, self.flat[name].index_select(0, place))

    def _stored(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return part.permute(0, 2, 3, 1) if name in self.channels_last else part

    def _as_given(self, name: str, stored: torch.Tensor) -> torch.Tensor:
        return stored.permute(0, 3, 1, 2) if name in self.channels_last else stored

    def write(self, node: int, latent: Latent) -> None:
        parts = _parts(latent)
        if parts.keys() != self.parts.keys():
            raise ValueError(
                f"recurrent's latent has the parts {sorted(parts)}, the root's has {sorted(self.parts)}"
            )
        for name, part in parts.items():
            expected = self.parts[name].shape
            if part.shape != expected:
                raise ValueError(
                    f"recurrent's {name} must have the shape of the root's, {list(expected)}, not {list(part.shape)}"
                )
            rows = self.rows[name]
            if node < len(rows):
                rows[node].copy_(part)


def _has_channels_last(part: torch.Tensor) -> bool:
    last = part.ndim == 4 and part.is_contiguous(memory_format=torch.channels_last)
    return last and not part.is_contiguous()


def _parts(latent: Latent) -> dict[str, torch.Tensor]:
    parts = latent if isinstance(latent, dict) else {"latent": latent}
    for name, part in parts.items():
        if not isinstance(part, torch.Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(part).__name__}")
    return parts


def _refuse_what_is_not_finite(received: list[np.ndarray], made: int) -> None:
    wrong = next(name for name, array in zip(OUTPUTS, received, strict=True) if not np.isfinite(array).all())
    raise ValueError(f"recurrent's {wrong} is not finite in simulation {made}")


def _received(name: str, output: object, shape: torch.Size) -> np.ndarray:
    if not isinstance(output, torch.Tensor):
        raise ValueError(f"recurrent's {name} must be a tensor, not {type(output).__name__}")
    if output.shape != shape:
        raise ValueError(f"recurrent's {name} must have the shape {list(shape)}, not {list(output.shape)}")
    array = output.numpy(force=True)
    as_it_is = output.dtype is torch.float32 and output.is_contiguous()
    return array if as_it_is else np.ascontiguousarray(array, np.float32)


def _checked(name: str, array: Array, shape: tuple[int, ...]) -> np.ndarray:
    """As finite float64 of this shape."""
    values = array.numpy(force=True) if isinstance(array, torch.Tensor) else array
    if values.shape != shape:
        raise ValueError(f"{name} must have the shape {list(shape)}, not {list(values.shape)}")
    values = np.ascontiguousarray(values, np.float64)
    if not np.isfinite(values).all():
        hint = ": forbid actions with invalid_actions" if name == "prior_logits" else ""
        raise ValueError(f"{name} is not finite{hint}")
    return values
