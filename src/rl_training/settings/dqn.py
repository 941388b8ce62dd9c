"""The config of Deep Q-Networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from rl_training.parts import Brought
from rl_training.settings.families import AdamSettings, OffPolicyConfig, OnPolicyConfig
from rl_training.settings.fields import Units, field, knob, like
from rl_training.settings.sac import SACConfig


class DQNConfig(OffPolicyConfig, AdamSettings):
    """Deep Q-Networks, for discrete actions; optionally double, dueling, n-step and prioritised."""

    checkpoints_apart: ClassVar[int] = 20_000  # its steps are fast, and saving would show
    obeys_action_masks: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = ("n_step", "prioritized", "network", "encoder")
    # The dense layer of the CNN, then the head.
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}
    younger: ClassVar[Mapping[str, object]] = {"dueling_sizes": []}
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
        0.1, "Exploration rate ε of the ε-greedy policy.", high=1.0, aliases=("exploration_epsilon",)
    )
    target_update_interval: int = field(10_000, "Updates between updates of the target network.", ge=1)
    tau: float = like(SACConfig, 1.0, "Polyak averaging coefficient τ of the target network; 1 copies it.")
    max_grad_norm: float | None = like(OnPolicyConfig, 10.0)
    huber_delta: float | None = knob(
        1.0,
        "Threshold δ of the Huber loss, in units of the return; none: squared error.",
        aliases=("huber_loss_delta",),
        limit=True,
    )
    double: bool = field(False, "Double DQN: the online network selects, the target network evaluates.")
    dueling: bool = field(False, "Dueling architecture: Q as value plus advantages.")
    dueling_sizes: tuple[Units, ...] | None = field(
        None, "Units in each hidden layer of both dueling streams; none: one as wide as what feeds them."
    )
    n_step: int = like(SACConfig)
    prioritized: bool = field(False, "Prioritised experience replay.")
    priority_exponent: float = knob(0.6, "Exponent α of prioritised replay; 0 samples uniformly.", high=1.0)
    importance_exponent: float = knob(
        0.4, "Exponent β of the importance-sampling correction; 1 corrects fully.", high=1.0
    )
    activation = "relu"
    network: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    encoder: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    layer_norm: bool = like(OnPolicyConfig)
