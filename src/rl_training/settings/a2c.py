"""Advantage actor-critic's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import OnPolicyConfig, Surrogate
from rl_training.settings.fields import changed, like


class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic, for discrete and continuous actions."""

    algo: Literal["a2c"] = "a2c"
    num_envs = 8
    num_steps = changed(5, "Steps in each environment per update.")
    learning_rate = changed(7e-4, "RMSprop's step size.")
    gae_lambda = changed(
        1.0, "Decay per step of the advantage estimate: 1 gives the paper's n-step returns, less gives GAE."
    )
    normalize_advantages: bool = like(
        Surrogate, False, "Whether advantages get mean 0 and deviation 1 in each update."
    )
    shared_trunk: bool = like(Surrogate)
