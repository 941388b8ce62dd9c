"""Trust Region Policy Optimization's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from rl_training.settings.families import AdamSettings, Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import changed, field, like


class TRPOConfig(OnPolicyConfig, Minibatches, AdamSettings):
    """Trust Region Policy Optimization, for discrete and continuous actions."""

    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}

    algo: Literal["trpo"] = "trpo"
    num_envs = 2
    num_steps = 1024
    target_kl: float = like(Surrogate, 0.01, "Radius δ of the trust region: maximum KL per update, in nats.")
    ent_coef = changed(0.0, "Coefficient of the entropy bonus in the surrogate.")
    normalize_advantages: bool = like(Surrogate, True, "Normalise advantages over the rollout.")
    cg_iterations: int = field(10, "Conjugate gradient iterations per update.", ge=1)
    cg_damping: float = field(0.1, "Damping added to the diagonal of the Fisher matrix.", ge=0)
    line_search_tries: int = field(
        10, "Maximum number of line-search steps before the update is rejected.", ge=1
    )
    line_search_shrink: float = field(0.8, "Backtracking factor of the line search.", gt=0, lt=1)
    learning_rate = changed(1e-3, "Learning rate of Adam, for the value function.")
    update_epochs: int = like(Surrogate, 10, "Number of value-function epochs per rollout.")
    num_minibatches = changed(16, "Number of minibatches per value-function epoch.")
    vf_coef = changed(1.0, "Coefficient of the value loss; matters only through gradient clipping.")
    max_grad_norm = changed(None, "Maximum gradient norm of the value function; none: no clipping.")
    precision: Literal["fp32"] = field("fp32", "Floating-point precision; second derivatives need fp32.")

    @property
    def shared_trunk(self) -> bool:
        return False  # fitting the value function must not move the policy
