"""EfficientZero's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from rl_training.runtime.controls import SCHEDULE
from rl_training.settings.families import PUCT, GumbelSearch, OffPolicyConfig, Planning
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.refusals import refused
from rl_training.settings.sac import SACConfig


class EfficientZeroConfig(PUCT, Planning, OffPolicyConfig):
    """EfficientZero, for discrete and continuous actions: sample-efficient MuZero."""

    younger: ClassVar[Mapping[str, object]] = {"max_considered_actions": 16}
    laid_out_by: ClassVar[tuple[str, ...]] = ("prefix_horizon",)
    switched_by: ClassVar[Mapping[str, str]] = {
        "consistency_coef": "consistency",
        "horizon_tau": "off_policy_correction",
        "max_considered_actions": "gumbel_search",
    }

    algo: Literal["efficientzero"] = "efficientzero"
    learning_rate = 1e-3
    gamma = 0.997
    buffer_size = changed(100_000, "Capacity of the replay buffer in observations, over all environments.")
    batch_size = changed(128, "Batch size in positions.")
    learning_starts = changed(1_000, "Steps before the first update.")
    replay_ratio: float = like(SACConfig, 0.25)
    activation = "relu"
    value_prefix: bool = field(True, "Predict the value prefix (sum of rewards) instead of single rewards.")
    prefix_horizon: int = field(5, "Steps after which the value prefix and its LSTM state are reset.", ge=1)
    prefix_size: int = field(128, "Hidden units of the value-prefix LSTM.", ge=1)
    consistency: bool = field(True, "Self-supervised consistency loss between imagined and encoded states.")
    projection_size: int = field(128, "Units of the projection heads of the consistency loss.", ge=1)
    off_policy_correction: bool = field(
        True, "Off-policy correction: shorter bootstrap horizons for older data."
    )
    horizon_tau: float = knob(
        0.3, "Age, as a fraction of the run, at which data loses one of its `td_steps`.", low=1e-6, high=1000
    )
    reanalyse_ratio = changed(
        0.99, "Fraction of sampled positions whose policy targets come from a new search."
    )
    reanalyse_values: bool = field(
        False, "Bootstrap from root values of new searches, not from the target network."
    )
    mixed_values: bool = field(
        False, "Value targets of older data are root values of new searches (EfficientZero V2)."
    )
    gumbel_search: bool = field(
        False, "Plan by Gumbel search instead of PUCT (EfficientZero V2); 16 simulations do."
    )
    max_considered_actions: int = like(
        GumbelSearch, 4, "Actions considered at the root of a Gumbel search, fewer than its simulations."
    )
    target_update_interval = 200
    augmentation: bool = field(True, "Random shift and intensity augmentation of images.")
    priority_exponent = 0.6
    importance_exponent = 0.4
    policy_coef: float = knob(1.0, "Coefficient of the policy loss.")
    reward_coef: float = knob(
        1.0, "Coefficient of the value-prefix loss, or of the reward loss.", aliases=("value_prefix_coef",)
    )
    consistency_coef: float = knob(2.0, "Coefficient of the consistency loss.", aliases=("ssl_coef",))

    @model_validator(mode="after")
    def _switches_have_an_effect(self) -> EfficientZeroConfig:
        if self.mixed_values and not self._is_set("reanalyse_ratio", other_than=0.0):
            raise refused(
                "mixed_values", "needs a reanalyse_ratio above 0: its values are those of new searches"
            )
        unread = ("pb_c_init", "pb_c_base", "root_exploration_fraction", "dirichlet_alpha")
        for name in unread if self.gumbel_search else ():
            if self._is_set(name, other_than=type(self).model_fields[name].default):
                raise refused(name, "would have no effect, because gumbel_search is true")
        return self

    def _is_set(self, name: str, other_than: float) -> bool:
        return getattr(self, name) != other_than or getattr(self, name + SCHEDULE) is not None
