"""Verification of an exported policy against the original, on synthetic observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK
from rl_training.data.normalization import ObservationNormalizer
from rl_training.envs.action_masks import num_choices
from rl_training.envs.spaces import ActionCodec, JointCodec, action_codec
from rl_training.errors import ExportError
from rl_training.trees import named_space_leaves, tree_leaves, tree_map
from rl_training.types import Space

LANES, STEPS = 20, 50  # 1000 observations, as episodes of 50 steps so that memories fill
TOLERANCE = 1e-5  # of 1, or of the number itself where that is larger


class Difference(NamedTuple):
    """How far apart two policies were, and the outputs they were last seen with."""

    compared: int
    largest: float
    outputs: dict[str, np.ndarray]


def compare(graph: Any, run: Callable[[list[np.ndarray]], dict[str, np.ndarray]], agent: Any) -> Difference:
    """The exported file against the same graph in torch and, where nothing is left out, against the policy that acts.

    Raises ExportError where they are further apart than the tolerance, or choose different actions that were not a tie,
    and where there was nothing to compare.
    """
    if hasattr(agent, "precision"):
        agent.precision = "fp32"  # the graph's arithmetic
    whole, codec = not type(agent).greedy_leaves_out, action_codec(graph.action_space)
    carry, largest, compared, exported = agent.initial(LANES), 0.0, 0, {}
    for step in range(STEPS):
        obs = graph.observations(LANES, seed=step)
        memory = [part.numpy() for part in agent.acting_carry(carry)]
        inputs = [part for _, part in tree_leaves(obs, "obs")] + memory + graph.noise(LANES, seed=step)
        exported, wanted = run(inputs), graph.run(inputs)
        clear = _clear_draws(graph, inputs)
        if whole:
            graph.noise(0, seed=step)  # so that it draws the same
            acted, carry = agent.act(obs, carry, explore=False)
            taken = acted["action"]
            columns = codec.columns(taken) if isinstance(codec, JointCodec) else [codec.to_env(taken)]
            wanted |= dict(zip(graph.actions.names, columns, strict=True))
            after = zip(graph.memory_names, agent.acting_carry(carry), strict=True)
            wanted |= {f"next_{name}": part.numpy() for name, part in after}
        for name, value in wanted.items():
            if exported[name].dtype != value.dtype or exported[name].shape != value.shape:
                raise ExportError(f"the exported policy returns {name} of another type than the original")
        compared += int(clear.sum())
        if not clear.any():
            continue
        wanted, found = ({name: part[clear] for name, part in each.items()} for each in (wanted, exported))
        chosen_by = _chosen_by(wanted, graph)
        apart = {name: _apart(found[name], value) for name, value in wanted.items() if name not in chosen_by}
        for name, (space, scores) in chosen_by.items():
            apart[name] = _actions_apart(found[name], wanted[name], scores, space)
        name = max(apart, key=lambda name: apart[name])
        largest = max(largest, apart[name])
        if not largest <= TOLERANCE:
            raise ExportError(
                f"the exported policy is not the original: {name} differs by {largest:.1e}, more than {TOLERANCE:g}"
            )
    if not compared:
        raise ExportError(
            "the exported policy cannot be compared: rounding decides what it draws in every observation"
        )
    return Difference(compared, largest, exported)


def _clear_draws(graph: Any, inputs: list[np.ndarray]) -> np.ndarray:
    """Rows [B] in which nothing is drawn otherwise with noise a tolerance away: in others rounding decides."""
    clear = np.ones(LANES, np.bool_)
    if not graph.noise_names:
        return clear
    *rest, noise = inputs
    near = [graph.run([*rest, np.clip(noise + sign * TOLERANCE, 0, 1)]) for sign in (-1, 1)]
    for name in graph.memory_names:
        one, other = (outputs[f"next_{name}"].reshape(LANES, -1) for outputs in near)
        clear &= (one == other).all(1)
    return clear


def _apart(exported: np.ndarray, wanted: np.ndarray, unit: Any = 1.0) -> float:
    """The largest difference, in units or in those of its row's largest number; infinite where one is no number."""
    if not np.isfinite(exported).all():
        return float("inf")
    rows = wanted.astype(np.float64).reshape(len(wanted), -1)
    unit = np.maximum(np.abs(rows).max(1, keepdims=True), np.ravel(unit))
    return float((np.abs(exported.reshape(rows.shape) - rows) / np.maximum(unit, 1.0)).max())


def _chosen_by(outputs: dict[str, np.ndarray], graph: Any) -> dict[str, tuple[Space, np.ndarray]]:
    """Of each part of the action its space, and the scores [B, C] by which it was chosen.

    The scores of all parts are the first output that is no action; log standard deviations stand behind them.
    """
    leaves = dict(named_space_leaves(graph.action_space, "action"))
    scores = next(value for name, value in outputs.items() if name not in leaves)
    ends = np.cumsum([sum(num_choices(leaf)) or int(np.prod(leaf.shape)) for leaf in leaves.values()])
    columns = np.split(scores, ends, axis=-1)[: len(leaves)]
    return {name: (leaf, own) for (name, leaf), own in zip(leaves.items(), columns, strict=True)}


def _actions_apart(exported: np.ndarray, wanted: np.ndarray, scores: np.ndarray, space: Space) -> float:
    """The same of actions: in half widths of their bounds; of choices 1, where another one is no tie."""
    if isinstance(space, spaces.Box):
        return _apart(exported, wanted, ActionCodec(space).half_width)
    differs = (exported != wanted).reshape(len(exported), -1).any(1)
    return float((differs & ~tied(scores, space)).any())


def tied(scores: np.ndarray, space: Space) -> np.ndarray:
    """Rows [B] in which two choices are so near each other that rounding decides."""
    if isinstance(space, spaces.MultiBinary):
        return (np.abs(scores) <= TOLERANCE).any(-1)
    rows = np.zeros(len(scores), np.bool_)
    for part in np.split(scores, np.cumsum(num_choices(space))[:-1], axis=-1):
        if part.shape[-1] > 1:
            second, first = np.sort(part, -1)[:, -2:].T
            rows |= first - second <= 2 * TOLERANCE * np.maximum(1.0, np.abs(first))
    return rows


def example_observations(
    agent: object,
    observation_space: Space,
    action_space: Space,
    *,
    count: int,
    seed: int,
) -> Any:
    """Observations [count, ...] such as the policy may meet, without its environment.

    Around the normaliser's mean where there is one; else within the bounds, or around 0 where there are none.
    Every mask allows something.
    """
    random = np.random.default_rng(seed)

    def draw(space: Space, normalizer: ObservationNormalizer | None, name: str) -> Any:
        if isinstance(space, spaces.Dict):
            parts = normalizer.parts if normalizer is not None else {}
            return {key: draw(part, parts.get(key), key) for key, part in space.spaces.items()}
        if name == MASK and num_choices(action_space):
            return _masks(random, count, num_choices(action_space)).astype(space.dtype)
        if not isinstance(space, spaces.Box):
            space.seed(int(random.integers(2**31)))
            return np.array([space.sample() for _ in range(count)], space.dtype)
        if space.dtype.kind in "iub":
            low, high = (np.clip(bound.astype(np.float64), -1000, 1000) for bound in (space.low, space.high))
            return random.integers(
                low.astype(np.int64), high.astype(np.int64) + 1, (count, *space.shape)
            ).astype(space.dtype)
        normal = random.standard_normal((count, *space.shape))
        if normalizer is not None and normalizer.moments is not None:
            normal = normalizer.moments.mean + 2 * np.sqrt(normalizer.moments.variance) * normal
        else:
            low, high = (np.clip(bound, -100.0, 100.0) for bound in (space.low, space.high))
            narrow = (low == space.low) & (high == space.high)
            normal = np.where(narrow, (low + high) / 2 + (high - low) / 4 * normal, 3 * normal)
        return np.clip(normal, space.low, space.high).astype(space.dtype)

    drawn = draw(observation_space, getattr(agent, "normalizer", None), "")
    return tree_map(np.ascontiguousarray, drawn)


def _masks(random: np.random.Generator, count: int, choices: tuple[int, ...]) -> np.ndarray:
    parts = []
    for number in choices:
        part = random.random((count, number)) < 0.5
        part[np.arange(count), random.integers(number, size=count)] = True
        parts.append(part)
    return np.concatenate(parts, -1)
