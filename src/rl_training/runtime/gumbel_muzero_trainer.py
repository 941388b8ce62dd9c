"""Gumbel MuZero: its config, what it replaces in MuZero, and `train_gumbel_muzero`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from rl_training.algorithms.gumbel_muzero import improved_policy_loss
from rl_training.config import field, schedulable
from rl_training.runtime.muzero_trainer import MuZeroConfig, MuZeroTrainer
from rl_training.runtime.search_policy import GumbelSearchPolicy, SearchPolicy
from rl_training.runtime.workflows import Result, train


@schedulable
class GumbelMuZeroConfig(MuZeroConfig):
    """Gumbel MuZero, for discrete actions: MuZero that improves its policy with few simulations."""

    algo: Literal["gumbel_muzero"] = field("gumbel_muzero", "The algorithm.")  # type: ignore[assignment]
    num_simulations: int = field(16, "Simulations per search.")
    temperature: float = field(1.0, "Loudness of the root's Gumbel noise; 0: the best action found.")
    root_exploration_fraction: float = field(0.0, "Share of Dirichlet noise in the root's prior.")
    max_considered_actions: int = field(16, "Actions that a root's simulations are shared among.", ge=1)
    c_visit: float = field(50.0, "How far values move the improved policy before anything was visited.", ge=0)
    c_scale: float = field(0.1, "How far values move the improved policy from the prior.", ge=0)


class GumbelMuZeroTrainer(MuZeroTrainer):
    """Policy improvement by planning with Gumbel (Danihelka et al. 2022)."""

    config_class: ClassVar[type[MuZeroConfig]] = GumbelMuZeroConfig
    policy_class: ClassVar[type[SearchPolicy]] = GumbelSearchPolicy

    @classmethod
    def agent_settings(cls, config: Any) -> dict[str, Any]:
        own = {name: getattr(config, name) for name in ("max_considered_actions", "c_visit", "c_scale")}
        return super().agent_settings(config) | own

    def policy_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return improved_policy_loss(logits, target)


def train_gumbel_muzero(config: GumbelMuZeroConfig, **options: Any) -> Result:
    """Train Gumbel MuZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
