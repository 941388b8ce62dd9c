"""Phasic Policy Gradient's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.settings.families import AdamSettings, Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.refusals import refused


class PPGConfig(OnPolicyConfig, Minibatches, AdamSettings):
    """Phasic Policy Gradient, for discrete and continuous actions."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_steps", "policy_iterations")
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}
    switched_by: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("auxiliary_learning_rate", "beta_clone"), "auxiliary_epochs"
    )

    algo: Literal["ppg"] = "ppg"
    num_steps = 256
    learning_rate = changed(5e-4, "Learning rate of Adam.")
    auxiliary_learning_rate: float | None = knob(
        None, "Learning rate of Adam in the auxiliary phase; none: learning_rate.", aliases=("aux_lr",)
    )
    clip_coef: float = like(Surrogate)
    ent_coef = changed(0.01, "Coefficient of the entropy bonus.")
    vf_coef = changed(1.0, "Coefficient of the value loss; matters only through gradient clipping.")
    beta_clone: float = knob(1.0, "Coefficient of behaviour cloning in the auxiliary phase.")
    target_kl: float | None = like(
        Surrogate,
        None,
        "Stop the policy epochs early once the KL exceeds 1.5 times this, in nats; none: never.",
    )
    policy_iterations: int = field(32, "N_π: rollouts between auxiliary phases.", ge=1, le=1_000_000)
    policy_epochs: int = field(1, "E_π: policy epochs per rollout.", ge=1)
    value_epochs: int = field(1, "E_V: value epochs per rollout.", ge=1)
    auxiliary_epochs: int = field(
        6, "E_aux: epochs of the auxiliary phase, over all stored rollouts; 0: no such phase.", ge=0
    )
    num_minibatches = changed(8, "Number of minibatches per epoch.")
    auxiliary_minibatches: int = field(
        16, "Number of minibatches per auxiliary epoch; each holds whole environments.", ge=1
    )
    shared_trunk: bool = like(
        Surrogate,
        False,
        "Let the critic use the policy's encoder, with gradients stopped, instead of its own.",
    )
    precision: Literal["fp32"] = field("fp32", "Floating-point precision; PPG needs fp32.")

    @model_validator(mode="after")
    def _every_auxiliary_minibatch_has_a_lane(self) -> PPGConfig:
        lanes = self.num_envs * self.policy_iterations
        if self.auxiliary_epochs and self.auxiliary_minibatches > lanes:
            most = f"num_envs * policy_iterations = {lanes}"
            raise refused("auxiliary_minibatches", f"must be at most {most}")
        return self
