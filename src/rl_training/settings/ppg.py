"""Phasic Policy Gradient's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.settings.families import Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.refusals import refused


class PPGConfig(OnPolicyConfig, Minibatches):
    """Phasic Policy Gradient, for discrete and continuous actions."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_steps", "policy_iterations")
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}

    algo: Literal["ppg"] = "ppg"
    num_steps = 256
    learning_rate = changed(5e-4, "Adam's step size, in both phases.")
    clip_coef: float = like(Surrogate)
    ent_coef = changed(0.01, "Weight of the entropy bonus in the policy's loss.")
    vf_coef = changed(1.0, "Weight of the critic's loss, which counts through the limit of its gradient.")
    beta_clone: float = knob(1.0, "Weight of staying with the old policy in an auxiliary phase.")
    target_kl: float | None = like(
        Surrogate, None, "The policy's epochs end once 1.5 times this KL, in nats, is passed; none: never."
    )
    policy_iterations: int = field(32, "N_pi: rollouts between two auxiliary phases.", ge=1, le=1_000_000)
    policy_epochs: int = field(1, "E_pi: passes over each rollout for the policy.", ge=1)
    value_epochs: int = field(1, "E_V: passes over each rollout for the critic.", ge=1)
    auxiliary_epochs: int = field(6, "E_aux: passes over all kept rollouts in an auxiliary phase.", ge=1)
    num_minibatches = changed(8, "Parts into which each pass over a rollout cuts it.")
    auxiliary_minibatches: int = field(16, "Groups of whole lanes an auxiliary pass cuts them into.", ge=1)
    shared_trunk: bool = like(
        Surrogate,
        False,
        "Whether the critic reads the policy's encoder, without a gradient into it, instead of its own.",
    )
    precision: Literal["fp32"] = field(
        "fp32", "How networks compute; its phases compare outputs in single precision."
    )

    @model_validator(mode="after")
    def _every_auxiliary_minibatch_has_a_lane(self) -> PPGConfig:
        lanes = self.num_envs * self.policy_iterations
        if self.auxiliary_minibatches > lanes:
            most = f"num_envs * policy_iterations = {lanes}"
            raise refused("auxiliary_minibatches", f"must be at most {most}")
        return self
