"""Defaults that depend on the observation: what a plain config means where an environment shows pictures."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from rl_training.config import Config
from rl_training.config_text import to_yaml
from rl_training.envs.atari import is_atari
from rl_training.envs.making import make_env
from rl_training.networks.encoders import is_image, is_small_image
from rl_training.runtime.controls import SCHEDULE


def with_picture_defaults(config: Config) -> Config:
    """The config, with its class's defaults for pictures in the fields that nobody wrote, if it is to see pictures.

    Resolved before a run begins: all that is saved of it holds the values themselves.
    """
    changes = unwritten(config)
    if not changes or not sees_pictures(config):
        return config
    written = {name: getattr(config, name) for name in config.model_fields_set}
    return type(config)(**written | changes)


def unwritten(config: Config) -> dict[str, Any]:
    """The defaults for pictures of fields that the user left alone, that would change something."""
    written = config.model_fields_set
    return {
        name: value
        for name, value in type(config).for_pictures.items()
        if name not in written and name + SCHEDULE not in written and getattr(config, name) != value
    }


def sees_pictures(config: Config) -> bool:
    """Whether the observation is a picture as the Nature CNN was made for."""
    if is_atari(config.env_id):
        return True
    env = make_env(config.env_id, config.env_kwargs, config.max_episode_steps)
    try:
        space: spaces.Space[Any] = env.observation_space
        return is_image(space) and not is_small_image(space)
    finally:
        env.close()


def difference(config: Config, resolved: Config) -> str:
    """What was resolved, in words."""
    changed = [
        f"{name}: {to_yaml(getattr(resolved, name))}"
        for name in type(config).for_pictures
        if getattr(config, name) != getattr(resolved, name)
    ]
    return f"defaults for pictures: {', '.join(changed)}" if changed else ""
