"""IMPALA's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import ActorLearnerConfig, OnPolicyConfig, OptimizerChoice
from rl_training.settings.fields import changed


class IMPALAConfig(ActorLearnerConfig, OnPolicyConfig, OptimizerChoice):
    """Importance Weighted Actor-Learner Architecture (IMPALA), for discrete and continuous actions."""

    algo: Literal["impala"] = "impala"
    optimizer_epsilon = changed(
        1e-5, "Denominator term ε of the optimizer; the paper's RMSprop uses 0.01, with summed losses."
    )
    learning_rate = changed(6e-4, "Learning rate of the optimizer.")
    ent_coef = 0.01
