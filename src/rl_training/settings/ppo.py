"""Proximal Policy Optimization's config."""

from __future__ import annotations

from typing import Literal

from rl_training.settings.families import Minibatches, OnPolicyConfig, Surrogate


class PPOConfig(OnPolicyConfig, Minibatches, Surrogate):
    """Proximal Policy Optimization, for discrete and continuous actions."""

    algo: Literal["ppo"] = "ppo"
