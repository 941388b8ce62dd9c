"""Checks that the return values of an environment conform to Gymnasium's API.

Each raises `Broken` with what is wrong as a sentence. `check-env` runs them over whole episodes, `train` over the first
steps, and lanes once something an environment returned could not be used.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.trees import tree_leaves, tree_map
from rl_training.types import Space

FAR = 0.1  # of a Box's width: farther outside than this is more than rounding


class Broken(Exception):
    """What is wrong with an environment, as a sentence."""


def check_has_spaces(env: object) -> None:
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gym.Space):
            raise Broken(f"it has no {name}; set self.{name} to a space of gymnasium.spaces in __init__")


def check_reset_result(result: object) -> None:
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Broken("reset must return (observation, info)")
    if not isinstance(result[1], dict):
        raise Broken(f"the info of reset must be a dict, not {type(result[1]).__name__}")


def check_step_result(result: object) -> None:
    if not (isinstance(result, tuple) and len(result) == 5):
        count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise Broken(f"step must return (observation, reward, terminated, truncated, info), not {count}")
    _, reward, terminated, truncated, info = result
    if np.ndim(reward) or not isinstance(reward, (int, float, np.number, np.ndarray)):
        shape = f" of shape {np.shape(reward)}" if np.ndim(reward) else ""
        raise Broken(f"the reward must be a number, not {type(reward).__name__}{shape}")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise Broken(f"{name} must be True or False, not {type(flag).__name__} {flag!r}")
    if not isinstance(info, dict):
        raise Broken(f"the info of step must be a dict, not {type(info).__name__}")


def check_shape(space: Space, obs: Any) -> None:
    """The observation has the structure and the shapes of its space."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            raise Broken(f"the observation must be a dict with the keys {', '.join(space.spaces)}")
        for key, part in space.spaces.items():
            check_shape(part, obs[key])
        return
    try:
        shape = np.shape(obs)
    except ValueError:  # a ragged list
        raise Broken(f"an observation is not an array; its space has shape {space.shape}") from None
    if shape != space.shape:
        raise Broken(f"an observation has shape {shape}, its space says {space.shape}")


def check_in_space(space: Space, obs: Any) -> str:
    """Raise unless the observation is in its space; return what deserves a warning, or ""."""
    check_shape(space, obs)
    if isinstance(space, gym.spaces.Dict):
        problems = (check_in_space(part, obs[key]) for key, part in space.spaces.items())
        return next(filter(None, problems), "")
    array = np.asarray(obs)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Broken("an observation is not finite")
    if isinstance(space, gym.spaces.Box) and not ((array >= space.low) & (array <= space.high)).all():
        raise Broken("an observation is outside the bounds of its space")
    if array.dtype != space.dtype and isinstance(space, gym.spaces.Box):
        return f"observations are {array.dtype}, their space says {space.dtype}; they will be converted"
    if not space.contains(obs):
        raise Broken(f"an observation is not in its space {short(space)}")
    return ""


def loose(space: Space, obs: Any) -> str:
    """What training can live with and its user should know: a Box that says little about what is shown, or nothing."""
    if isinstance(space, gym.spaces.Dict):
        return next(filter(None, (loose(part, obs[key]) for key, part in space.spaces.items())), "")
    if not isinstance(space, gym.spaces.Box):
        return ""
    array = np.asarray(obs)
    if array.dtype != space.dtype:
        return f"observations are {array.dtype}, their space says {space.dtype}; they are converted"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        slack = np.nan_to_num(FAR * (high - low), nan=0.0, posinf=0.0)  # none where a side is open
        far = (array < low - slack) | (array > high + slack)
    if not far.any():
        return ""
    where = tuple(np.argwhere(far)[0])
    return (
        f"an observation of {array[where]:g} lies far outside the bounds of its Box "
        f"[{space.low[where]:g}, {space.high[where]:g}]"
    )


def copied(tree: object) -> Any:
    return tree_map(np.array, tree)


def same(left: object, right: object) -> bool:
    """Equal in structure, shape, type and every bit."""
    pairs = [*tree_leaves(left, "")], [*tree_leaves(right, "")]
    if [name for name, _ in pairs[0]] != [name for name, _ in pairs[1]]:
        return False
    arrays = [[np.asarray(leaf) for _, leaf in leaves] for leaves in pairs]
    return all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(*arrays, strict=True)
    )


def short(space: Space) -> str:
    """`Box(4)`, `Discrete(2)`: long bounds are of no use here."""
    if isinstance(space, gym.spaces.Box):
        return f"Box({', '.join(map(str, space.shape))})"
    if isinstance(space, gym.spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {short(part)}" for key, part in space.spaces.items()) + ")"
    return str(space)
