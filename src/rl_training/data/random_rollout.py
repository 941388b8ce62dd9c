"""A short rollout with random actions, which initialises the observation normaliser before a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK, mask_of, pick_allowed
from rl_training.envs.action_masks import num_choices
from rl_training.envs.making import make_environments
from rl_training.settings.config import Config
from rl_training.state.seeding import fold
from rl_training.trees import Arrays, space_leaves, tree_leaves, tree_map

STEPS = 256


def random_observations(config: Config, steps: int = STEPS) -> Any:
    """Observations [T, ...] of a config's environment under random actions, those that are finite.

    One environment beside those of the run, with seeds and draws of its own: the run's own randomness is not touched,
    and neither num_envs nor vectorization matters.
    """
    alone = config.model_copy(update={"vectorization": "sync"})
    environments = make_environments(alone, 1, config.seed, "normalize")
    chance = np.random.default_rng(fold(config.seed, "normalize"))
    seen = []
    try:
        for _ in range(steps):
            seen.append(tree_map(lambda column: np.array(column[0]), environments.obs))
            rows = [
                tree_map(lambda part, i=i: part[i : i + 1], environments.obs)
                for i in range(environments.count)
            ]
            drawn = [random_action(environments.lanes.action_space, row, chance) for row in rows]
            environments.step(np.concatenate(drawn))
    finally:
        environments.close()
    rows = tree_map(lambda *parts: np.stack(parts), *seen)
    finite = np.ones(steps, np.bool_)
    for _, column in tree_leaves(rows, "obs"):
        finite &= np.isfinite(column).reshape(steps, -1).all(1)
    return tree_map(lambda column: column[finite], rows)


def random_action(space: spaces.Space, obs: Arrays, chance: np.random.Generator) -> np.ndarray:
    """A model-space action [1, ...]: uniform among allowed choices, or in [-1, 1] in every dimension of a Box."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return _random_joint_action(space, obs, chance)
    if isinstance(space, spaces.Box):
        return chance.uniform(-1.0, 1.0, (1, int(np.prod(space.shape)))).astype(np.float32)
    if isinstance(space, spaces.MultiBinary):
        return chance.integers(2, size=(1, *space.shape)).astype(np.int8)
    counts = num_choices(space)
    mask = mask_of(obs)
    allowed = np.ones((1, sum(counts))) if mask is None else np.asarray(mask)
    parts = np.split(allowed, np.cumsum(counts)[:-1], 1)
    chosen = np.stack([pick_allowed(chance.random(1), part) for part in parts], 1)
    return chosen[:, 0] if isinstance(space, spaces.Discrete) else chosen


def _random_joint_action(space: spaces.Space[Any], obs: Any, chance: np.random.Generator) -> np.ndarray:
    """The same for all parts of a Tuple or Dict action, each with its own piece of the mask, side by side."""
    mask, first, drawn = mask_of(obs), 0, []
    for leaf in space_leaves(space):
        last = first + sum(num_choices(leaf))
        own = {} if mask is None or last == first else {MASK: mask[:, first:last]}
        drawn.append(random_action(leaf, own, chance).reshape(1, -1).astype(np.float32))
        first = last
    return np.concatenate(drawn, 1)
