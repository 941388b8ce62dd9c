"""Gumbel MuZero's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import GumbelSearch, OffPolicyConfig, Planning
from rl_training.settings.fields import changed, like
from rl_training.settings.sac import SACConfig


class GumbelMuZeroConfig(GumbelSearch, Planning, OffPolicyConfig):
    """Gumbel MuZero, for discrete and continuous actions: MuZero that improves its policy with few simulations."""

    algo: Literal["gumbel_muzero"] = "gumbel_muzero"
    learning_rate = 1e-3
    gamma = 0.997
    buffer_size = changed(100_000, "Capacity of the replay buffer in observations, over all environments.")
    batch_size = changed(128, "Batch size in positions.")
    learning_starts = changed(1_000, "Steps before the first update.")
    replay_ratio: float = like(SACConfig, 0.25)
    activation = "relu"
    num_simulations = 16
    temperature = changed(1.0, "Scale of the Gumbel noise at the root; 0 acts greedily.")
    root_exploration_fraction = 0.0
