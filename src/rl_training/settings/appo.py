"""Asynchronous PPO's config."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from rl_training.runtime.controls import SCHEDULE
from rl_training.settings.families import (
    ActorLearnerConfig,
    AdamSettings,
    Minibatches,
    OnPolicyConfig,
    Surrogate,
)
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.refusals import refused
from rl_training.settings.sac import SACConfig


class APPOConfig(ActorLearnerConfig, OnPolicyConfig, Minibatches, Surrogate, AdamSettings):
    """Asynchronous PPO with V-trace and a target network, for discrete and continuous actions."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("buffer_batches", "batch_uses")

    algo: Literal["appo"] = "appo"
    optimizer_epsilon = 1e-5
    update_epochs = changed(4, "Number of epochs per batch.")
    learning_rate = 5e-4
    kl_coef: float = knob(0.0, "Coefficient of the KL penalty to the target network's policy.")
    kl_coef_target: float | None = knob(
        None,
        "KL towards which the coefficient of its penalty adapts, in nats; none: it does not.",
        limit=True,
    )
    tau: float = like(SACConfig, 1.0, "Polyak averaging coefficient τ of the target network; 1 copies it.")
    target_update_interval: int = field(
        1, "Batches learned from between updates of the target network.", ge=1
    )
    buffer_batches: int = field(1, "Batches in the circular buffer.", ge=1, le=1000)
    batch_uses: int = field(1, "How often each batch of the circular buffer is used at most.", ge=1, le=1000)

    @property
    def adapts_kl_coef(self) -> bool:
        """Whether the coefficient of the KL penalty follows the KL."""
        return self.kl_coef_target is not None or getattr(self, "kl_coef_target" + SCHEDULE) is not None

    @model_validator(mode="after")
    def _no_switch_is_idle(self) -> APPOConfig:
        if self.adapts_kl_coef and not self.kl_coef and getattr(self, "kl_coef" + SCHEDULE) is None:
            raise refused("kl_coef_target", "needs a kl_coef above 0, which it scales")
        if self.buffer_batches > 1 and self.batch_uses == 1:
            raise refused("buffer_batches", "needs batch_uses above 1: else each batch is used when it comes")
        return self

    @model_validator(mode="after")
    def _every_minibatch_has_a_lane(self) -> APPOConfig:
        lanes = self.lanes_per_update
        if self.cell is not None and self.num_minibatches > lanes:
            raise refused("num_minibatches", f"must be at most the {lanes} environments of a batch")
        whole, kind = (self.steps_per_iteration, "steps") if self.cell is None else (lanes, "environments")
        if self.num_learners > 1 and whole % (self.num_minibatches * self.num_learners):
            shares = f"{self.num_minibatches} minibatches of {self.num_learners} equal shares"
            raise refused("num_learners", f"must divide every minibatch: {whole} {kind} are not {shares}")
        return self
