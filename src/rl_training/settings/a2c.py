"""Advantage actor-critic's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import OnPolicyConfig, OptimizerChoice, Surrogate
from rl_training.settings.fields import changed, like


class A2CConfig(OnPolicyConfig, OptimizerChoice):
    """Advantage Actor-Critic (A2C), for discrete and continuous actions."""

    algo: Literal["a2c"] = "a2c"
    num_envs = 8
    num_steps = changed(5, "Rollout length: steps per environment and update.")
    learning_rate = changed(7e-4, "Learning rate of the optimizer.")
    gae_lambda = changed(1.0, "GAE λ; 1 gives the n-step returns of the paper.")
    normalize_advantages: bool = like(Surrogate, False, "Normalise advantages per update.")
    shared_trunk: bool = like(Surrogate)
