"""Trust Region Policy Optimization's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from rl_training.settings.families import Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import changed, field, like


class TRPOConfig(OnPolicyConfig, Minibatches):
    """Trust Region Policy Optimization, for discrete and continuous actions."""

    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}

    algo: Literal["trpo"] = "trpo"
    num_envs = 2
    num_steps = 1024
    target_kl: float = like(
        Surrogate, 0.01, "Radius δ of the trust region: the most an update may move, in nats."
    )
    ent_coef = changed(0.0, "Weight of the entropy bonus in the surrogate.")
    cg_iterations: int = field(10, "Conjugate gradient iterations per update.", ge=1)
    cg_damping: float = field(0.1, "Share of the identity added to the Fisher matrix.", ge=0)
    line_search_tries: int = field(10, "Step lengths tried before an update is given up.", ge=1)
    line_search_shrink: float = field(0.8, "Each tried step as a share of the one before.", gt=0, lt=1)
    learning_rate = changed(1e-3, "Adam's step size, for the value function.")
    update_epochs: int = like(Surrogate, 10, "Passes over each rollout in fitting the value function.")
    num_minibatches = changed(16, "Parts into which each of these passes cuts the rollout.")
    vf_coef = changed(1.0, "Weight of the value loss, which counts through the limit of its gradient.")
    max_grad_norm = changed(None, "Norm of the value function's gradient; none: no limit.")
    precision: Literal["fp32"] = field(
        "fp32", "How networks compute; second derivatives need single precision."
    )

    @property
    def shared_trunk(self) -> bool:
        return False  # fitting the value function must not move the policy
