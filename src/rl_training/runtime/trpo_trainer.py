"""Trust Region Policy Optimization: its config, its iteration, and `train_trpo`."""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.ppo import fit_loss, normalize_advantage
from rl_training.algorithms.trpo import (
    conjugate_gradient,
    fisher_vector_product,
    flat_gradient,
    line_search,
    step_length,
    surrogate,
)
from rl_training.data.batch import RolloutBatch
from rl_training.errors import NonFiniteError
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.optim import adam_of, flatten_parameters
from rl_training.runtime.part_updates import fastest_fit
from rl_training.runtime.workflows import Result, train
from rl_training.settings.trpo import TRPOConfig


class TRPOTrainer(OnPolicyTrainer[TRPOConfig]):
    """Trust Region Policy Optimization (Schulman et al. 2015), with GAE and a separately fitted value function."""

    config_class = TRPOConfig
    transient = ("policy", "theta", "value_fit")

    def __init__(self, config: TRPOConfig) -> None:
        super().__init__(config)
        network = self.agent.network
        assert network.critic_encoder is not None
        self.policy = [*network.actor_encoder.parameters(), *network.actor_head.parameters()]
        self.theta, _ = flatten_parameters(self.policy)
        self.optimizer = adam_of(config, network.critic_encoder, network.critic_head)
        self.value_fit = fastest_fit(fit_loss, self, "optimizer")

    def iterate(self, knobs: Knobs) -> Metrics:
        # Collect state-action pairs and estimate their advantages.
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        estimates = self.estimate_advantages(rollout, now, metrics)
        batch = self.flat_batch(rollout, estimates)
        if self.config.normalize_advantages:
            batch = {**batch, "advantage": normalize_advantage(batch["advantage"])}
        # Maximise the surrogate within the trust region.
        metrics.add(self.improve_policy(batch, now))
        # Fit the value function to the returns.
        update = self.value_fit()
        parts = update.parts(batch, now.update_epochs, self.config.num_minibatches)
        metrics.extend(update.descend(parts, now))
        self.agent.observe(rollout["obs"])
        return metrics

    def improve_policy(self, batch: RolloutBatch, now: Now) -> dict[str, float]:
        """One step θ ← θ + β x along x = F⁻¹ g, shortened until KL ≤ δ holds and the surrogate improves."""
        config, network, family = self.config, self.agent.network, self.agent.family

        def objective(parameters: torch.Tensor) -> torch.Tensor:
            log_prob, entropy = family.log_prob_and_entropy(parameters, batch["action"])
            return surrogate(log_prob, batch["log_prob"], batch["advantage"], entropy, now.ent_coef)

        # g = ∇L and x ≈ F⁻¹ g, from products with F alone.
        new = network.policy(batch["obs"])
        old = new.detach()
        before = objective(new)
        gradient = flat_gradient(before, self.policy)
        if not gradient.isfinite().all():
            raise NonFiniteError("gradient of the surrogate")
        kl_gradient = flat_gradient(family.kl(old, new).mean(), self.policy, differentiable=True)

        def fisher(vector: torch.Tensor) -> torch.Tensor:
            return fisher_vector_product(kl_gradient, self.policy, vector, config.cg_damping)

        direction = conjugate_gradient(fisher, gradient, config.cg_iterations)
        # β = √(2 δ / xᵀF x), then a backtracking line search.
        full_step = direction * step_length(direction, fisher(direction), now.target_kl)
        start = self.theta.clone()

        @torch.no_grad()
        def measure(fraction: float) -> tuple[float, float]:
            self.theta.copy_(start).add_(full_step, alpha=fraction)
            moved = network.policy(batch["obs"])
            return (objective(moved) - before).item(), family.kl(old, moved).mean().item()

        fraction, improvement, kl = line_search(
            measure, now.target_kl, config.line_search_shrink, config.line_search_tries
        )
        if not fraction:
            self.theta.copy_(start)
        return {
            "policy_loss": -before.item(),
            "surrogate_improvement": improvement,
            "kl": kl,
            "step_fraction": fraction,
            "entropy": family.entropy(old).mean().item(),
            "policy_grad_norm": gradient.norm().item(),
        }


def train_trpo(config: TRPOConfig, **options: Any) -> Result:
    """Train TRPO from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
