"""Soft Actor-Critic's config."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.parts import Brought
from rl_training.runtime.controls import AUTO
from rl_training.settings.families import AdamSettings, OffPolicyConfig, OnPolicyConfig
from rl_training.settings.fields import Units, field, knob, like
from rl_training.settings.refusals import refused


class SACConfig(OffPolicyConfig, AdamSettings):
    """Soft Actor-Critic, for continuous actions."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("n_step", "network", "encoder")

    algo: Literal["sac"] = "sac"
    replay_ratio: float = knob(1.0, "Replay ratio: average number of updates per environment step.")
    tau: float = knob(0.005, "Polyak averaging coefficient τ of the target critics.", high=1.0)
    ent_coef: float | Literal["auto"] | None = like(
        OnPolicyConfig,
        "auto",
        "Entropy coefficient α: auto learns it, a number fixes it; none: set by its schedule.",
    )
    target_entropy: float | None = knob(
        None,
        "Target entropy for the learned α, in nats; none: minus the number of action dimensions.",
        low=-math.inf,
    )
    ent_coef_init: float = field(1.0, "Initial value of the learned α.", gt=0)
    actor_learning_rate: float | None = knob(
        None, "Learning rate of the actor; none: learning_rate.", aliases=("actor_lr",)
    )
    critic_learning_rate: float | None = knob(
        None, "Learning rate of the critics; none: learning_rate.", aliases=("critic_lr",)
    )
    ent_coef_learning_rate: float | None = knob(
        None, "Learning rate of log α; none: learning_rate.", aliases=("ent_coef_lr",)
    )
    policy_delay: int = field(1, "Critic updates per update of the actor and of α.", ge=1)
    n_step: int = field(1, "Number of steps n of the n-step returns.", ge=1, le=1000)
    hidden_sizes = (256, 256)
    network: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    encoder: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    layer_norm: bool = like(OnPolicyConfig)
    actor_sizes: tuple[Units, ...] | None = like(OnPolicyConfig)
    critic_sizes: tuple[Units, ...] | None = like(OnPolicyConfig)
    activation = "relu"

    @model_validator(mode="before")
    @classmethod
    def _a_schedule_alone_fixes_the_entropy_coefficient(cls, data: object) -> Any:
        if isinstance(data, dict) and data.get("ent_coef_schedule") is not None and "ent_coef" not in data:
            return data | {"ent_coef": None}
        return data

    @model_validator(mode="after")
    def _entropy_coefficient_is_learned_or_given(self) -> SACConfig:
        scheduled = getattr(self, "ent_coef_schedule", None) is not None
        if self.ent_coef is None and not scheduled:
            raise refused("ent_coef", "must be auto or a number, or have a schedule")
        given = self.target_entropy is not None or getattr(self, "target_entropy_schedule", None) is not None
        learns = {
            "target_entropy": given,
            "ent_coef_init": self.ent_coef_init != 1.0,
            "ent_coef_learning_rate": self.ent_coef_learning_rate is not None,
        }
        for name in (name for name, stands in learns.items() if stands and self.ent_coef != AUTO):
            raise refused(name, "would have no effect, because ent_coef is not auto")
        return self
