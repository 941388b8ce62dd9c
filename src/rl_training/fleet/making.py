"""The fleet that a config asks for."""

from __future__ import annotations

from importlib import import_module

from rl_training.fleet.actor import MakeColumns, Pack, Spaces
from rl_training.fleet.fleet import Fleet
from rl_training.settings.families import ActorLearnerConfig

FLEETS = {
    "local": "rl_training.fleet.local:LocalFleet",
    "ray": "rl_training.fleet.ray_fleet:RayFleet",
    "inline": "rl_training.fleet.inline:InlineFleet",
}


def make_fleet(config: ActorLearnerConfig, pack: Pack, spaces: Spaces, columns: MakeColumns) -> Fleet:
    """No actor is started before the first fragment is asked for."""
    module, _, name = FLEETS[config.fleet].partition(":")
    return getattr(import_module(module), name)(config, pack, spaces, columns)
