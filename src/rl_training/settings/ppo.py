"""Proximal Policy Optimization's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import AdamSettings, Minibatches, OnPolicyConfig, Surrogate


class PPOConfig(OnPolicyConfig, Minibatches, Surrogate, AdamSettings):
    """Proximal Policy Optimization, for discrete and continuous actions."""

    algo: Literal["ppo"] = "ppo"
    optimizer_epsilon = 1e-5
