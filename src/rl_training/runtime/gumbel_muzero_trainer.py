"""Gumbel MuZero: its config, what it replaces in MuZero, and `train_gumbel_muzero`."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rl_training.algorithms.gumbel_muzero import improved_policy_loss
from rl_training.policies.search import GumbelSearchPolicy, SearchPolicy
from rl_training.runtime.muzero_trainer import MuZeroTrainer
from rl_training.runtime.workflows import Result, train
from rl_training.settings.families import OffPolicyConfig
from rl_training.settings.gumbel_muzero import GumbelMuZeroConfig


class GumbelMuZeroTrainer(MuZeroTrainer[GumbelMuZeroConfig]):
    """Gumbel MuZero (Danihelka et al. 2022): policy improvement by planning with Gumbel noise."""

    config_class: ClassVar[type[OffPolicyConfig]] = GumbelMuZeroConfig
    policy_class: ClassVar[type[SearchPolicy]] = GumbelSearchPolicy

    @classmethod
    def agent_settings(cls, config: GumbelMuZeroConfig) -> dict[str, Any]:
        return super().agent_settings(config) | {"rescale_by": config.rescale_by}

    def policy_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return improved_policy_loss(logits, target)


def train_gumbel_muzero(config: GumbelMuZeroConfig, **options: Any) -> Result:
    """Train Gumbel MuZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
