"""Action masks: which of the discrete actions an environment allows right now.

An environment may give them as the key `action_mask` of a Dict observation, or in `info`. Policies read them from
the observation, so masks in `info` are put there: what an environment showed as `obs` becomes
{"observation": obs, "action_mask": mask}, or gets one key more if it was a dict already.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK, mask_of
from rl_training.errors import ConfigError, RunError
from rl_training.trees import space_leaves
from rl_training.types import Env, Space

OBSERVATION = "observation"


def num_choices(space: Space) -> tuple[int, ...]:
    """How many choices each part of a discrete action has; () for all other actions."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return tuple(count for leaf in space_leaves(space) for count in num_choices(leaf))
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    return tuple(space.nvec.tolist()) if isinstance(space, spaces.MultiDiscrete) else ()


def gives_masks_in_info(env: Env) -> bool:
    """Whether an environment of discrete actions has a mask in its info; this resets it once to look."""
    if not num_choices(env.action_space):
        return False
    result = env.reset(seed=0)
    return isinstance(result, tuple) and len(result) == 2 and MASK in result[1]


class MaskInObservation(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Puts the mask of `info` into the observation."""

    def __init__(self, env: Env) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        inner = env.observation_space
        inner_spaces = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {OBSERVATION: inner}
        self.num_choices = sum(num_choices(env.action_space))
        self.observation_space = spaces.Dict(inner_spaces | {MASK: spaces.MultiBinary(self.num_choices)})

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self._with_mask(obs, info, over=False), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, terminated or truncated), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any], over: bool) -> dict[str, Any]:
        # After an episode no action is taken, and some environments give no mask then.
        mask = info.get(MASK, np.ones(self.num_choices, np.int8) if over else None)
        if mask is None:
            raise RunError(
                f"info held an {MASK} at the first reset but not later; it must hold one at every step"
            )
        flat = np.concatenate([np.ravel(part) for part in _parts(mask, self.action_space)]).astype(np.int8)
        return (obs if isinstance(obs, dict) else {OBSERVATION: obs}) | {MASK: flat}


def _parts(mask: Any, space: Space) -> list[Any]:
    """A mask in parts: one for each choice of a MultiDiscrete, and for each part of a Tuple or Dict with choices."""
    if isinstance(mask, dict) and isinstance(space, spaces.Dict):
        named = [(mask[key], part) for key, part in space.spaces.items() if key in mask]
        return [piece for part, inner in named for piece in _parts(part, inner)]
    if isinstance(mask, tuple | list):
        inner = space.spaces if isinstance(space, spaces.Tuple) else [space] * len(mask)
        masked = [part for part in inner if num_choices(part)] if isinstance(space, spaces.Tuple) else inner
        return [piece for part, own in zip(mask, masked, strict=True) for piece in _parts(part, own)]
    return [mask]


def check_mask_space(env_id: str, observation: Space, action: Space) -> None:
    """Refuse, in one line, a mask in a Dict observation that does not fit the actions."""
    if not isinstance(observation, spaces.Dict) or MASK not in observation.spaces:
        return
    space, total = observation.spaces[MASK], sum(num_choices(action))
    fits = isinstance(space, spaces.MultiBinary) or (
        isinstance(space, spaces.Box) and space.dtype.kind in "biu"
    )
    if not fits or space.shape != (total,):
        raise ConfigError(
            f"env_id {env_id!r}: its {MASK} is {space}; it must be a MultiBinary or a Box of whole numbers with an "
            f"entry for each of the {total} discrete choices"
        )
    if len(observation.spaces) == 1:
        raise ConfigError(f"env_id {env_id!r}: its observation contains only an {MASK}")


def refuse_empty_masks(obs: object, choices: tuple[int, ...]) -> None:
    """Raise RunError where a mask [B, P] leaves no action, which no policy can obey."""
    mask = mask_of(obs)
    if mask is None:
        return
    for part in np.split(np.asarray(mask), np.cumsum(choices)[:-1], axis=-1):
        empty = np.flatnonzero(~part.any(-1))
        if len(empty):
            raise RunError(f"environment {empty[0]} gives an {MASK} that allows no action")
