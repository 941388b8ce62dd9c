"""Soft Actor-Critic's config."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import model_validator

from rl_training.runtime.controls import AUTO
from rl_training.settings.families import OffPolicyConfig, OnPolicyConfig
from rl_training.settings.fields import knob, like
from rl_training.settings.refusals import refused


class SACConfig(OffPolicyConfig):
    """Soft Actor-Critic, for continuous actions."""

    algo: Literal["sac"] = "sac"
    replay_ratio: float = knob(1.0, "Updates per environment step, on average.")
    tau: float = knob(0.005, "Share of the critics in their targets with each update.", high=1.0)
    ent_coef: float | Literal["auto"] | None = like(
        OnPolicyConfig,
        "auto",
        "Weight α of the entropy: auto learns it, a number fixes it; none: its schedule has it.",
    )
    target_entropy: float | None = knob(
        None, "Entropy that a learned α keeps, in nats; none: minus the action's dimensions.", low=-math.inf
    )
    hidden_sizes = (256, 256)
    activation = "relu"

    @model_validator(mode="before")
    @classmethod
    def _a_schedule_alone_fixes_the_entropy_coefficient(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("ent_coef_schedule") is not None and "ent_coef" not in data:
            return data | {"ent_coef": None}
        return data

    @model_validator(mode="after")
    def _entropy_coefficient_is_learned_or_given(self) -> SACConfig:
        scheduled = getattr(self, "ent_coef_schedule", None) is not None
        if self.ent_coef is None and not scheduled:
            raise refused("ent_coef", "must be auto or a number, or have a schedule")
        given = self.target_entropy is not None or getattr(self, "target_entropy_schedule", None) is not None
        if self.ent_coef != AUTO and given:
            raise refused("target_entropy", "would have no effect, because ent_coef is not auto")
        return self
