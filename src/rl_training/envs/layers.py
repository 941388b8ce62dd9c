"""Construction of one environment: the environment itself and the wrappers that a config adds.

From the inside out: the environment with its own time limit (`max_episode_steps`, in its own steps), the user's
`wrappers`, `action_repeat`, `frame_stack`, `time_limit` in the policy's steps, and the action mask of `info`. Worker
processes import this module: it must not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from rl_training import parts
from rl_training.envs.interface import Broken, check_has_spaces
from rl_training.envs.wrappers import ActionRepeat, FrameStack, TupleAsDict, has_tuple
from rl_training.errors import ConfigError, one_line
from rl_training.settings.config import Config
from rl_training.types import Env


class Recipe(NamedTuple):
    """What a config says about making one environment."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    max_episode_steps: int | None = None
    wrappers: Sequence[Any] = ()
    action_repeat: int = 1
    frame_stack: int = 1
    time_limit: int | None = None

    @classmethod
    def of(cls, config: Config) -> Recipe:
        return cls(*(getattr(config, name) for name in cls._fields))

    @property
    def is_plain(self) -> bool:
        """Whether nothing is put around the environment."""
        return not self.wrappers and (self.action_repeat, self.frame_stack, self.time_limit) == (1, 1, None)


def layered(env: Env, recipe: Recipe) -> Env:
    """An environment with the layers that a config puts around it."""
    for wrapper in recipe.wrappers:
        env = parts.make(wrapper, env, key="wrappers")
        _check_wrapped(env, wrapper)
    if has_tuple(env.observation_space):
        env = TupleAsDict(env)
    if recipe.action_repeat > 1:
        env = ActionRepeat(env, recipe.action_repeat)
    if recipe.frame_stack > 1:
        try:
            env = FrameStack(env, recipe.frame_stack)
        except ValueError as error:
            raise ConfigError(one_line(error), ("frame_stack",)) from error
    return env if recipe.time_limit is None else TimeLimit(env, recipe.time_limit)


def _check_wrapped(env: object, wrapper: object) -> None:
    name = parts.split(wrapper)[0]
    if not isinstance(env, gym.Env):
        raise ConfigError(f"wrappers: {name!r} returned {env!r}, which is not an environment", ("wrappers",))
    try:
        check_has_spaces(env)
    except Broken as broken:
        raise ConfigError(
            f"wrappers: after {name!r} the environment cannot be used: {broken}", ("wrappers",)
        ) from None


def make_directly(make: Callable[..., Env], max_episode_steps: int | None, **kwargs: Any) -> Env:
    """An environment that is not made by Gymnasium, with its time limit."""
    env = make(**kwargs)
    if not isinstance(env, gym.Env):
        raise Broken(f"{getattr(make, '__name__', make)} returned {env!r}, which is not an environment")
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


@dataclass(frozen=True)
class Maker:
    """Makes equal environments, in this process or in a worker."""

    bare: Callable[..., Env]  # in which also stands what only this process has registered
    recipe: Recipe
    outermost: type[gym.Wrapper[Any, Any, Any, Any]] | None = None

    def __call__(self, **kwargs: Any) -> Env:
        """One environment; `kwargs` replace some of the arguments that it is made with."""
        env = layered(self.bare(**kwargs), self.recipe)
        return env if self.outermost is None else self.outermost(env)
