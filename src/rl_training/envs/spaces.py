"""Supported spaces, and the mapping from a policy's actions to the environment's.

Policies act in model space: an index for Discrete, indices for MultiDiscrete, zeros and ones for
MultiBinary, and a flat vector for Box in which [-1, 1] spans the environment's bounds. The parts of a
Tuple or Dict action stand side by side in one vector of float32, indices among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.wrappers import is_text
from rl_training.errors import ConfigError
from rl_training.trees import space_leaves
from rl_training.types import Space

PLAIN_OBSERVATIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
NO_BOUND = 1e10  # bounds this far from 0, infinite or not, say nothing about the scale of an action
ACTIONS: tuple[type, ...] = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
JOINT: tuple[type, ...] = (spaces.Tuple, spaces.Dict)  # of several actions at once
EXACT = 2**24  # whole numbers below it are exact in float32


def check_observation_space(space: Space, where: str) -> None:
    """Refuse, in one line, an observation space that no encoder understands."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_observation_space(part, f"{where}[{key!r}]")
    elif is_text(space):
        raise ConfigError(
            f"{where} is text; write `wrappers: [rl_training.envs.wrappers:DropText]` to leave it out, or "
            "`[rl_training.envs.wrappers:EncodeText]` to encode it",
            ("wrappers",),
        )
    elif not isinstance(space, PLAIN_OBSERVATIONS):
        raise ConfigError(
            f"{where} is a {type(space).__name__} space; observations may be Box, Discrete, MultiDiscrete, "
            "MultiBinary, or a Dict or Tuple of these"
        )
    elif isinstance(space, spaces.Box) and space.dtype.kind not in "fiub":
        raise ConfigError(f"{where} is a Box of {space.dtype}; its dtype must be numeric")


def check_action_space(space: Space, where: str, allowed: tuple[type, ...] = (*ACTIONS, *JOINT)) -> None:
    """Refuse, in one line, an action space that the algorithm cannot handle."""
    if not isinstance(space, allowed):
        names = ", ".join(kind.__name__ for kind in allowed)
        raise ConfigError(f"{where} is a {type(space).__name__} space; actions must be {names}")
    if isinstance(space, JOINT):
        for leaf in space_leaves(space):
            check_action_space(leaf, f"{where}, in its {type(space).__name__},", ACTIONS)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim != 1:
        raise ConfigError(
            f"{where} is a MultiDiscrete of shape {space.nvec.shape}; only one row of choices is supported"
        )
    if isinstance(space, spaces.MultiBinary) and len(space.shape) != 1:
        raise ConfigError(
            f"{where} is a MultiBinary of shape {space.shape}; only one row of bits is supported"
        )


def action_codec(space: Space) -> ActionCodec | JointCodec:
    """How actions of a space become the environment's, and back."""
    return JointCodec(space) if isinstance(space, JOINT) else ActionCodec(space)


def refuse_unbounded(space: Space, env_id: str, algo: str) -> None:
    """Refuse continuous actions without bounds, for algorithms that squash theirs between them."""
    if isinstance(space, spaces.Box) and not ActionCodec(space).bounded.all():
        raise ConfigError(f"the action of {env_id} has no bounds; {algo} acts between bounds", ("env_id",))


class ActionCodec:
    """Turns a batch of model-space actions into what the environments are stepped with."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.start: Any = 0
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self.start = np.asarray(space.start)
        self.unchanged = isinstance(space, spaces.Discrete) and not self.start
        if isinstance(space, spaces.Box):
            # Dimensions without bounds keep their own units: nothing can be said about their scale. The largest
            # number of a type is no bound that somebody meant.
            ends = np.abs([space.low, space.high], dtype=np.float64)
            bounded = (ends < NO_BOUND).all(0)
            low = np.where(bounded, space.low, -1.0).astype(np.float64)
            high = np.where(bounded, space.high, 1.0).astype(np.float64)
            self.bounded = bounded.reshape(-1)
            self.centre = ((high + low) / 2).reshape(-1)
            self.half_width = ((high - low) / 2).reshape(-1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Model-space actions [B] or [B, D] as environment actions [B, *space.shape]."""
        if self.unchanged:
            return actions
        if not isinstance(self.space, spaces.Box):
            return (actions + self.start).astype(self.space.dtype)
        clipped = np.where(self.bounded, np.clip(actions, -1.0, 1.0), actions)
        scaled = clipped * self.half_width + self.centre
        if self.space.dtype.kind in "iu":
            scaled = np.rint(scaled)
        scaled = scaled.astype(self.space.dtype)
        # Rounding in the last bit must not leave the space.
        scaled = scaled.reshape(-1, *self.space.shape)
        return np.clip(scaled, self.space.low, self.space.high)

    def holds(self, actions: Any) -> bool:
        """Whether these are model-space actions [N] or [N, D]: emulators and compiled code look at no bounds."""
        if not isinstance(actions, np.ndarray):
            return False
        if isinstance(self.space, spaces.Box):
            flat = (self.bounded.size,)
            return actions.dtype in FLOATS and actions.shape[1:] == flat and bool(np.isfinite(actions).all())
        if isinstance(self.space, spaces.MultiBinary):
            choices: Any = np.full(self.space.shape, 2)
        else:
            choices = self.space.nvec if isinstance(self.space, spaces.MultiDiscrete) else self.space.n  # type: ignore[attr-defined]
        fits = actions.dtype == np.int64 and actions.ndim > 0 and actions.shape[1:] == np.shape(choices)
        return fits and bool(((actions >= 0) & (actions < choices)).all())

    def to_model(self, actions: np.ndarray) -> np.ndarray:
        """Environment actions [B, *space.shape] as model-space actions: what `to_env` takes back to them."""
        if not isinstance(self.space, spaces.Box):
            return (actions - self.start).astype(np.int64)
        flat = actions.reshape(len(actions), -1).astype(np.float64)
        # A dimension whose bounds meet has one action, the middle of model space.
        scaled = (flat - self.centre) / np.where(self.half_width > 0, self.half_width, 1.0)
        return np.where(self.bounded, np.clip(scaled, -1.0, 1.0), scaled).astype(np.float32)


class JointCodec:
    """The same for Tuple and Dict actions: the codecs of their leaves side by side, in rows [B, K] of float32."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.leaves = [ActionCodec(leaf) for leaf in space_leaves(space)]
        # A Discrete's model actions are [B], all others are rows.
        self.single = [isinstance(leaf.space, spaces.Discrete) for leaf in self.leaves]
        self.ends = np.cumsum([int(np.prod(leaf.space.shape or ())) for leaf in self.leaves]).tolist()

    def to_env(self, actions: np.ndarray) -> list[Any]:
        """Rows of numbers [B, K] as B actions of the environment."""
        return [_assembled(self.space, iter(row)) for row in zip(*self.columns(actions), strict=True)]

    def columns(self, actions: np.ndarray) -> list[np.ndarray]:
        """The same leaf by leaf, [B, ...] each."""
        return [leaf.to_env(part) for leaf, part in zip(self.leaves, self._parts(actions), strict=True)]

    def holds(self, actions: Any) -> bool:
        """Whether these are model-space actions [N, K]."""
        fits = isinstance(actions, np.ndarray) and actions.dtype == np.float32 and actions.ndim == 2
        if not fits or actions.shape[1] != self.ends[-1] or not (np.abs(actions) < EXACT).all():
            return False
        whole = [self._columns(actions, index) for index in range(len(self.leaves))]
        return all(
            leaf.holds(part) and (isinstance(leaf.space, spaces.Box) or np.array_equal(part, columns))
            for leaf, part, columns in zip(self.leaves, self._parts(actions), whole, strict=True)
        )

    def _columns(self, actions: np.ndarray, index: int) -> np.ndarray:
        first = self.ends[index - 1] if index else 0
        return actions[:, first] if self.single[index] else actions[:, first : self.ends[index]]

    def _parts(self, actions: np.ndarray) -> list[np.ndarray]:
        """The model-space actions of each leaf, in its own type."""
        parts = [self._columns(actions, index) for index in range(len(self.leaves))]
        return [
            part if isinstance(leaf.space, spaces.Box) else part.astype(np.int64)
            for leaf, part in zip(self.leaves, parts, strict=True)
        ]


def _assembled(space: Space, leaves: Iterator[Any]) -> Any:
    """The action of a nested space from those of its leaves."""
    if isinstance(space, spaces.Tuple):
        return tuple(_assembled(part, leaves) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: _assembled(part, leaves) for key, part in space.spaces.items()}
    return next(leaves)


def same_layout(one: Space, other: Space) -> bool:
    """Whether a network for one space takes what is in the other: bounds and precision may differ."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        same = one.spaces.keys() == other.spaces.keys()
        return same and all(same_layout(part, other[key]) for key, part in one.spaces.items())
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        pairs = zip(one.spaces, other.spaces, strict=False)
        return len(one.spaces) == len(other.spaces) and all(same_layout(*pair) for pair in pairs)
    if type(one) is not type(other) or one.shape != other.shape:
        return False
    if isinstance(one, spaces.Box):
        return np.dtype(one.dtype).kind == np.dtype(other.dtype).kind
    return all(np.array_equal(getattr(one, n, 0), getattr(other, n, 0)) for n in ("n", "nvec", "start"))


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as plain values, so that a policy can be rebuilt from a checkpoint without its environment."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": int(space.shape[0])}
    assert isinstance(space, spaces.Box)
    return {"type": "Box", "low": space.low, "high": space.high, "dtype": str(space.dtype)}


def space_from_json(description: Mapping[str, Any]) -> spaces.Space[Any]:
    """The inverse of `space_to_json`."""
    return _BUILDERS[description["type"]](description)


_BUILDERS = {
    "Dict": lambda d: spaces.Dict({key: space_from_json(part) for key, part in d["spaces"].items()}),
    "Tuple": lambda d: spaces.Tuple([space_from_json(part) for part in d["spaces"]]),
    "Discrete": lambda d: spaces.Discrete(d["n"], start=d["start"]),
    "MultiDiscrete": lambda d: spaces.MultiDiscrete(np.array(d["nvec"]), start=np.array(d["start"])),
    "MultiBinary": lambda d: spaces.MultiBinary(d["n"]),
    "Box": lambda d: spaces.Box(d["low"], d["high"], dtype=np.dtype(d["dtype"]).type),
}
