"""IMPALA's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import ActorLearnerConfig, OnPolicyConfig
from rl_training.settings.fields import changed, field


class IMPALAConfig(ActorLearnerConfig, OnPolicyConfig):
    """IMPALA: importance weighted actor-learner architecture, for discrete and continuous actions."""

    algo: Literal["impala"] = "impala"
    optimizer: Literal["rmsprop", "adam"] = field("rmsprop", "What turns gradients into steps.")
    optimizer_epsilon: float = field(1e-5, "Its ε; the paper's RMSprop has 0.1 for sums.", gt=0)
    learning_rate = changed(6e-4, "The optimizer's step size.")
    ent_coef = 0.01
