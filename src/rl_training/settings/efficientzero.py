"""EfficientZero's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from rl_training.settings.families import PUCT, OffPolicyConfig, Planning
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.sac import SACConfig


class EfficientZeroConfig(PUCT, Planning, OffPolicyConfig):
    """EfficientZero, for discrete actions: MuZero that learns from little data."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("prefix_horizon",)
    switched_by: ClassVar[Mapping[str, str]] = {
        "consistency_coef": "consistency",
        "horizon_tau": "off_policy_correction",
    }

    algo: Literal["efficientzero"] = "efficientzero"
    learning_rate = 1e-3
    gamma = 0.997
    buffer_size = changed(100_000, "Observations the replay holds, in all.")
    batch_size = changed(128, "Positions per update.")
    learning_starts = changed(1_000, "Steps before the first update.")
    replay_ratio: float = like(SACConfig, 0.25)
    activation = "relu"
    value_prefix: bool = field(True, "Predict what was earned since the last reset in place of rewards.")
    prefix_horizon: int = field(5, "Steps after which the prefix and its memory begin anew.", ge=1)
    prefix_size: int = field(128, "Units of the LSTM that is its memory.", ge=1)
    consistency: bool = field(True, "Whether imagined states learn to be like those of true observations.")
    projection_size: int = field(128, "Units of the projections in which they are compared.", ge=1)
    off_policy_correction: bool = field(True, "Whether old data is bootstrapped from sooner.")
    horizon_tau: float = knob(
        0.3, "Share of the run after which data loses one of its `td_steps`.", low=1e-6, high=1000
    )
    reanalyse_ratio = changed(0.99, "Share of positions whose policy is searched anew.")
    reanalyse_values: bool = field(True, "Whether values bootstrapped from are those of new searches.")
    augmentation: bool = field(True, "Whether frames are shifted and brightened at random.")
    priority_exponent = 0.6
    importance_exponent = 0.4
    policy_coef: float = knob(1.0, "Weight of the policy loss.")
    reward_coef: float = knob(
        1.0, "Weight of the loss of the value prefix, or of the reward.", aliases=("value_prefix_coef",)
    )
    consistency_coef: float = knob(2.0, "Weight of the consistency loss.", aliases=("ssl_coef",))
