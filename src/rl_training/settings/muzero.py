"""MuZero's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import PUCT, OffPolicyConfig, Planning
from rl_training.settings.fields import changed, like
from rl_training.settings.sac import SACConfig


class MuZeroConfig(PUCT, Planning, OffPolicyConfig):
    """MuZero, for discrete and continuous actions: tree search with a learned model."""

    algo: Literal["muzero"] = "muzero"
    learning_rate = 1e-3
    gamma = 0.997
    buffer_size = changed(100_000, "Capacity of the replay buffer in observations, over all environments.")
    batch_size = changed(128, "Batch size in positions.")
    learning_starts = changed(1_000, "Steps before the first update.")
    replay_ratio: float = like(SACConfig, 0.25)
    activation = "relu"
