"""The config of PPO with a memory."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rl_training.settings.families import AdamSettings, Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import Units, changed, field
from rl_training.settings.refusals import refused


class RecurrentPPOConfig(OnPolicyConfig, Minibatches, Surrogate, AdamSettings):
    """Proximal Policy Optimization with an LSTM or GRU, for partially observable tasks."""

    algo: Literal["recurrent_ppo"] = "recurrent_ppo"
    optimizer_epsilon = 1e-5
    num_envs = 8
    num_minibatches = changed(4, "Number of minibatches per epoch; each holds whole environments.")
    shared_trunk = changed(False, "Share the encoder and the memory between actor and critic.")
    cell: Literal["lstm", "gru"] = field("lstm", "Recurrent cell.")
    recurrent_size: Units = field(64, "Hidden units of the recurrent cell.")
    recurrent_layers: int = field(1, "Recurrent cells on top of each other.", ge=1, le=16)
    critic_memory: bool = field(
        True, "Give the critic a memory of its own; false: it sees single observations."
    )
    hidden_sizes = changed((64,), "Units in each hidden layer before the recurrent cell.")
    precision: Literal["fp32"] = field("fp32", "Floating-point precision; recurrent cells need fp32.")

    @model_validator(mode="after")
    def _fits_together(self) -> RecurrentPPOConfig:
        if self.num_minibatches > self.num_envs:
            raise refused("num_minibatches", f"must be at most num_envs = {self.num_envs}")
        if self.shared_trunk and not self.critic_memory:
            raise refused("critic_memory", "must be true with shared_trunk, where actor and critic share one")
        return self
