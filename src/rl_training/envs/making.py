"""Making environments from what a config says, with errors that tell the user what to do."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym

from rl_training.config import Config
from rl_training.envs.atari import AtariSettings, is_atari, make_atari_lanes
from rl_training.envs.environments import Environments
from rl_training.envs.lanes import Lanes, LocalLanes, VectorLanes
from rl_training.envs.spaces import check_observation_space
from rl_training.errors import ConfigError


def make_environments(config: Config, count: int, seed: int, stream: str) -> Environments:
    """`count` of a config's environments, their episodes seeded by `seed` and `stream` ("train" or another)."""
    wanted = (config.env_id, config.env_kwargs, config.max_episode_steps, count)
    if is_atari(config.env_id):
        if config.vectorization != "sync":
            raise ConfigError("vectorization: Atari games run in threads of their own; leave it at sync")
        return Environments(make_atari_lanes(*wanted, training=stream == "train"), seed, stream)
    lanes = make_lanes(*wanted, config.vectorization)
    # Before the first reset, which stacks observations: a space nobody understands may not even stack.
    check_observation_space(lanes.observation_space, f"the observation of {config.env_id}")
    if not lanes.has_time_limit:
        warnings.warn(
            f"{config.env_id} has no time limit that Gymnasium knows of: an episode that never ends is never "
            "evaluated, and resuming plays it again from its start; max_episode_steps sets one",
            stacklevel=2,
        )
    return Environments(lanes, seed, stream)


def environment_protocol(config: Config) -> dict[str, Any]:
    """What of an environment's making is worth a line in the manifest, defaults included."""
    return dataclasses.asdict(AtariSettings.of(config.env_kwargs)) if is_atari(config.env_id) else {}


def make_env(env_id: str, env_kwargs: Mapping[str, Any], max_episode_steps: int | None) -> gym.Env[Any, Any]:
    """One environment: any registered Gymnasium id, or `module:EnvId`, which imports the module first."""
    try:
        # The passive checker costs a third of CartPole's step; `rl-training check-env` does its work once.
        return gym.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"env_id {env_id!r} needs a package that is not installed: {_one_line(error)}"
        ) from error
    except (gym.error.UnregisteredEnv, gym.error.Error, ModuleNotFoundError) as error:
        known = difflib.get_close_matches(env_id, list(gym.registry), n=1, cutoff=0.5)
        hint = f"; did you mean {known[0]!r}?" if known else ""
        raise ConfigError(f"env_id {env_id!r} cannot be made: {_one_line(error)}{hint}") from error
    except TypeError as error:
        raise ConfigError(
            f"env_id {env_id!r} refuses env_kwargs {dict(env_kwargs)}: {_one_line(error)}"
        ) from error


def make_lanes(
    env_id: str, env_kwargs: Mapping[str, Any], max_episode_steps: int | None, count: int, vectorization: str
) -> Lanes:
    """`count` equal environments, stepped in this process ("sync") or in a process each ("async").

    A native vector environment enters here: anything with the methods of `Lanes`.
    """
    if vectorization == "sync":
        return LocalLanes([make_env(env_id, env_kwargs, max_episode_steps) for _ in range(count)])
    # Made once here, so that a wrong id is an error in one line; the workers make theirs from its spec, which
    # also holds what only this process has registered, and they need not import this package.
    env = make_env(env_id, env_kwargs, max_episode_steps)
    assert env.spec is not None
    makers = [partial(gym.make, env.spec)] * count
    env.close()
    disabled = gym.vector.AutoresetMode.DISABLED
    return VectorLanes(gym.vector.AsyncVectorEnv(makers, autoreset_mode=disabled, context="forkserver"))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
