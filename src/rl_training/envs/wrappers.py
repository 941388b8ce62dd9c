"""Shipped wrappers, for `wrappers:` in a config and for `frame_stack` and `action_repeat`.

    wrappers: [rl_training.envs.wrappers:DropText]

They hold no chance and no state that outlives a reset, so an episode played again gives the same. Worker processes
import this module: it must not load torch.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.types import Space

MASK = "action_mask"  # of which only the newest counts
Env = gym.Env[Any, Any]


class _Observed(gym.Wrapper[Any, Any, Any, Any]):
    """Shows another observation than its environment."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.observation_space = self.shown_space(env.observation_space)

    def shown_space(self, space: Space) -> Space:
        raise NotImplementedError

    def shown(self, obs: Any) -> Any:
        raise NotImplementedError

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        return (self.shown(result[0]), *result[1:])  # a wrong count is told later

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        return (self.shown(result[0]), *result[1:])


class TupleAsDict(_Observed):
    """A Tuple observation as a Dict with the keys "0", "1" and so on, however deep."""

    def shown_space(self, space: Space) -> Space:
        if isinstance(space, spaces.Tuple):
            return spaces.Dict({str(i): self.shown_space(part) for i, part in enumerate(space.spaces)})
        if isinstance(space, spaces.Dict):
            return spaces.Dict({key: self.shown_space(part) for key, part in space.spaces.items()})
        return space

    def shown(self, obs: Any) -> Any:
        return as_dict(obs)


def as_dict(obs: object) -> Any:
    """What `TupleAsDict` shows of an observation."""
    if isinstance(obs, tuple):
        return {str(i): as_dict(part) for i, part in enumerate(obs)}
    if isinstance(obs, dict):
        return {key: as_dict(part) for key, part in obs.items()}
    return obs


def has_tuple(space: Space) -> bool:
    """Whether there is a Tuple in a space."""
    inner = space.spaces.values() if isinstance(space, spaces.Dict) else ()
    return isinstance(space, spaces.Tuple) or any(map(has_tuple, inner))


def is_text(space: Space) -> bool:
    """Whether a space holds text: Gymnasium's own, and those like it."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind in "US")


class DropText(_Observed):
    """Leaves out the text of Dict observations, such as MiniGrid's `mission`; what remains alone is shown bare."""

    def shown_space(self, space: Space) -> Space:
        if not isinstance(space, spaces.Dict):
            raise ValueError(f"DropText needs a Dict observation, not {space}")
        self.kept = [key for key, part in space.spaces.items() if not is_text(part)]
        if not self.kept:
            raise ValueError("DropText: the observation is nothing but text")
        if len(self.kept) == 1:
            return space[self.kept[0]]
        return spaces.Dict({key: space[key] for key in self.kept})

    def shown(self, obs: Any) -> Any:
        return obs[self.kept[0]] if len(self.kept) == 1 else {key: obs[key] for key in self.kept}


class EncodeText(_Observed):
    """Text as a bag of words: how often a word falls into each of `size` hash buckets."""

    def __init__(self, env: Env, size: int = 64) -> None:
        self.size = size
        super().__init__(env)

    def shown_space(self, space: Space) -> Space:
        if isinstance(space, spaces.Dict):
            return spaces.Dict({key: self.shown_space(part) for key, part in space.spaces.items()})
        return spaces.Box(0.0, np.inf, (self.size,), np.float32) if is_text(space) else space

    def shown(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: self.shown(part) for key, part in obs.items()}
        return self.encoded(obs) if isinstance(obs, str) else obs

    def encoded(self, text: str) -> np.ndarray:
        counts = np.zeros(self.size, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            # Python's own hash differs between processes.
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            counts[int.from_bytes(digest, "little") % self.size] += 1
        return counts


class PreviousActionAndReward(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the action and the reward before each observation, as two parts of a Dict; zeros where an episode begins.

    The action is flat: choices are one-hot.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        inner = env.observation_space
        parts = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"observation": inner}
        size = (spaces.flatdim(env.action_space),)
        self.nothing = {
            "previous_action": np.zeros(size, np.float32),
            "previous_reward": np.zeros(1, np.float32),
        }
        more = {
            name: spaces.Box(-np.inf, np.inf, part.shape, np.float32) for name, part in self.nothing.items()
        }
        if taken := sorted(parts.keys() & more.keys()):
            raise ValueError(f"PreviousActionAndReward: the observation already has {', '.join(taken)}")
        self.observation_space = spaces.Dict(parts | more)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        return (self._with(result[0], self.nothing), *result[1:])  # a wrong count is told later

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        flat = spaces.flatten(self.env.action_space, action)  # before the environment may write into it
        result = self.env.step(action)
        before = {
            "previous_action": np.asarray(flat, np.float32),
            "previous_reward": np.array([result[1]], np.float32),
        }
        return (self._with(result[0], before), *result[1:])

    def _with(self, obs: Any, before: dict[str, np.ndarray]) -> dict[str, Any]:
        return (obs if isinstance(obs, dict) else {"observation": obs}) | before


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Takes each action `times` times, or until the episode ends, and adds up the rewards."""

    def __init__(self, env: Env, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Pixels(_Observed):
    """Shows what the environment renders in place of its observation: an RGB picture of `size` × `size` bytes.

    The environment renders that size itself. Where a picture takes long, `ActionRepeat` goes before it in `wrappers`:
    what happens between two decisions is then not rendered.
    """

    def __init__(self, env: Env, size: int = 64) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError("Pixels needs env_kwargs: {render_mode: rgb_array}")
        self.size = size
        super().__init__(env)

    def shown_space(self, space: Space) -> Space:
        return spaces.Box(0, 255, (self.size, self.size, 3), np.uint8)

    def shown(self, obs: Any) -> Any:
        try:
            picture = np.asarray(self.env.render())
        except Exception as error:
            raise RuntimeError(
                f"Pixels: it cannot render ({error}); without a screen, MUJOCO_GL=egl or MUJOCO_GL=osmesa in the "
                "environment of the process helps MuJoCo"
            ) from error
        if picture.shape != self.observation_space.shape:
            raise ValueError(
                f"Pixels: it renders {picture.shape}, not {self.observation_space.shape}; set the size in env_kwargs"
            )
        return picture.copy()  # renderers may write the next one into the same memory


class FrameStack(_Observed):
    """Shows the last `count` observations: pictures along their channels, vectors one after the other.

    An episode begins with `count` copies of its first observation. Choices become choices side by side, and of an
    action mask only the newest is shown.
    """

    def __init__(self, env: Env, count: int) -> None:
        self.count = count
        self.axes: dict[str, int] = {}  # along which each part is joined
        super().__init__(env)
        self.frames: deque[Any] = deque(maxlen=count)

    def shown_space(self, space: Space, name: str = "") -> Space:
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
            return spaces.Dict({key: self.shown_space(part, f"{name}/{key}") for key, part in parts})
        if name.rpartition("/")[2] == MASK:
            return space
        if isinstance(space, spaces.Discrete):
            return spaces.MultiDiscrete([space.n] * self.count, start=[space.start] * self.count)
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return spaces.MultiDiscrete(
                np.tile(space.nvec, self.count), start=np.tile(space.start, self.count)
            )
        if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            return spaces.MultiBinary(self.count * space.shape[0])
        if not isinstance(space, spaces.Box):
            raise ValueError(f"frame_stack: {space} cannot be stacked")
        axis = self.axes[name] = _axis(space)
        low, high = (self._joined([bound] * self.count, axis) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.frames.clear()
        return super().reset(**options)

    def shown(self, obs: Any) -> Any:
        self.frames.extend([obs] * (1 if self.frames else self.count))
        return self._stacked(list(self.frames), self.env.observation_space, "")

    def _stacked(self, frames: list[Any], space: Space, name: str) -> Any:
        if isinstance(space, spaces.Dict):
            return {
                key: self._stacked([frame[key] for frame in frames], part, f"{name}/{key}")
                for key, part in space.spaces.items()
            }
        if name.rpartition("/")[2] == MASK:
            return frames[-1]
        return self._joined([np.asarray(frame) for frame in frames], self.axes.get(name, 0))

    def _joined(self, frames: list[np.ndarray], axis: int) -> np.ndarray:
        """One after the other; numbers and grey pictures without channels get a dimension for it first."""
        return np.stack(frames) if frames[0].ndim in (0, 2) else np.concatenate(frames, axis)


def _axis(space: spaces.Box) -> int:
    """The channels of a picture; 0 for everything else."""
    if len(space.shape) != 3:
        return 0
    from rl_training.networks.encoders import has_channels_last, is_image  # torch, for pictures alone

    return 2 if is_image(space) and has_channels_last(space) else 0
