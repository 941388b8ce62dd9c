"""The config of Deep Q-Networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from rl_training.settings.families import OffPolicyConfig, OnPolicyConfig
from rl_training.settings.fields import field, knob, like
from rl_training.settings.sac import SACConfig


class DQNConfig(OffPolicyConfig):
    """Deep Q-Networks, for discrete actions; double, dueling, n-step and prioritised if you like."""

    obeys_action_masks: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = ("n_step", "prioritized")
    # The dense layer of the CNN, then the head.
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}
    switched_by: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("priority_exponent", "importance_exponent"), "prioritized"
    )

    algo: Literal["dqn"] = "dqn"
    learning_rate = 1e-4
    batch_size = 32
    learning_starts = 50_000
    train_frequency = 4
    replay_ratio: float = like(SACConfig, 0.25)
    epsilon: float = knob(
        0.1, "Share of random actions in training.", high=1.0, aliases=("exploration_epsilon",)
    )
    target_update_interval: int = field(10_000, "Updates of the network between two of its target.", ge=1)
    tau: float = like(
        SACConfig, 1.0, "Share of the network in its target with each update of that; 1 copies it."
    )
    max_grad_norm: float | None = like(OnPolicyConfig, 10.0)
    double: bool = field(
        False, "Whether the online network chooses the action that the target network values."
    )
    dueling: bool = field(False, "Whether Q is the sum of a value and of advantages.")
    n_step: int = field(1, "Rewards summed before the target bootstraps.", ge=1, le=1000)
    prioritized: bool = field(False, "Whether transitions with large errors are drawn more often.")
    priority_exponent: float = knob(0.6, "How strongly errors shape what is drawn: 0 is uniform.", high=1.0)
    importance_exponent: float = knob(
        0.4, "How strongly that is corrected in the loss: 1 is fully.", high=1.0
    )
    activation = "relu"
