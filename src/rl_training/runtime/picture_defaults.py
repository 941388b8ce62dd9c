"""Defaults that depend on the observation: what a plain config means where an environment shows pictures."""

from __future__ import annotations

from typing import Any

from rl_training.runtime.controls import SCHEDULE
from rl_training.settings.config import ATARI, Config
from rl_training.settings.yaml import to_yaml


def with_picture_defaults(config: Config, *, by_id_alone: bool = False) -> Config:
    """The config, with its class's defaults for pictures in the fields that nobody wrote, if it is to see pictures.

    Resolved before a run begins: all that is saved of it holds the values themselves. With `by_id_alone` no environment
    is made, and only those are known whose id says it.
    """
    changes = unwritten(config)
    named = config.env_id.startswith(ATARI)
    if not changes or not (named or (not by_id_alone and sees_pictures(config))):
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
    # Only here, so that `schedule` draws a config without Gymnasium and torch.
    from rl_training.envs.making import make_env
    from rl_training.networks.encoders import is_image, is_small_image

    env = make_env(config.env_id, config.env_kwargs, config.max_episode_steps)
    try:
        return is_image(env.observation_space) and not is_small_image(env.observation_space)
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
