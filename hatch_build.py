"""Ships the repository's configs/ folder inside the wheel, as rl_training/configs.

An editable install gets no copy: there the package finds the repository's own folder, so that an edited
config is the config that is trained.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShipConfigs(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["configs"] = "rl_training/configs"
