"""Ships the repository's configs, rows of results and trained policies inside the wheel.

An editable install gets no copy: there the package finds the repository's own folders, so that an edited
config is the config that is trained.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Folder of the repository -> where the package finds it.
SHIPPED = {"configs": "rl_training/configs", "results/rows": "rl_training/rows", "zoo": "rl_training/zoo"}


class ShipConfigs(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= SHIPPED
