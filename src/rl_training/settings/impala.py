"""IMPALA's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import ActorLearnerConfig, OnPolicyConfig
from rl_training.settings.fields import changed, field


class IMPALAConfig(ActorLearnerConfig, OnPolicyConfig):
    """Importance Weighted Actor-Learner Architecture (IMPALA), for discrete and continuous actions."""

    algo: Literal["impala"] = "impala"
    optimizer: Literal["rmsprop", "adam"] = field("rmsprop", "Optimizer.")
    optimizer_epsilon: float = field(
        1e-5, "Denominator term ε of the optimizer; the paper's RMSprop uses 0.1, with summed losses.", gt=0
    )
    learning_rate = changed(6e-4, "Learning rate of the optimizer.")
    ent_coef = 0.01
