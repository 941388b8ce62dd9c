"""The fleet that a config asks for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np

from rl_training.data.batch import Batch
from rl_training.fleet.actor import Spaces
from rl_training.fleet.fleet import Fleet
from rl_training.settings.families import ActorLearnerConfig

FLEETS = {
    "local": "rl_training.fleet.local:LocalFleet",
    "ray": "rl_training.fleet.ray_fleet:RayFleet",
    "inline": "rl_training.fleet.inline:InlineFleet",
}


def make_fleet(
    config: ActorLearnerConfig, pack: Callable[[], np.ndarray], spaces: Spaces, columns: Callable[..., Batch]
) -> Fleet:
    """No actor is started before the first fragment is asked for."""
    module, _, name = FLEETS[config.fleet].partition(":")
    return getattr(import_module(module), name)(config, pack, spaces, columns)
