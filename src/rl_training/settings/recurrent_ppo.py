"""The config of PPO with a memory."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rl_training.settings.families import Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import Units, changed, field
from rl_training.settings.refusals import refused


class RecurrentPPOConfig(OnPolicyConfig, Minibatches, Surrogate):
    """Proximal Policy Optimization with an LSTM or GRU, for tasks where one observation does not tell all."""

    algo: Literal["recurrent_ppo"] = "recurrent_ppo"
    num_envs = 8
    num_minibatches = changed(4, "Groups of whole environments into which each epoch cuts a rollout.")
    shared_trunk = changed(False, "Whether actor and critic share their encoder and their memory.")
    cell: Literal["lstm", "gru"] = field("lstm", "The kind of memory.")
    recurrent_size: Units = field(64, "Units of the memory.")
    hidden_sizes = changed((64,), "Units in each layer before the memory.")
    precision: Literal["fp32"] = field(
        "fp32", "How networks compute; the memory knows single precision only."
    )

    @model_validator(mode="after")
    def _every_minibatch_has_an_environment(self) -> RecurrentPPOConfig:
        if self.num_minibatches > self.num_envs:
            raise refused("num_minibatches", f"must be at most num_envs = {self.num_envs}")
        return self
