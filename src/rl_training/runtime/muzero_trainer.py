"""MuZero: its config, its iteration, and `train_muzero`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.masking import MASK, mask_logits
from rl_training.algorithms.muzero import (
    Targets,
    Unrolled,
    mean_entropy,
    policy_loss,
    spread,
    state_loss,
    unrolled_loss,
    unrolled_losses,
)
from rl_training.algorithms.sampled_muzero import gaussian, sampled_policy_loss
from rl_training.data.batch import PositionBatch
from rl_training.envs.spaces import refuse_unbounded
from rl_training.networks.muzero import by_the_batch
from rl_training.policies.search import SearchPolicy, planner_settings, search_settings
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import Adam, renew, target_of
from rl_training.runtime.positions import MuZeroT
from rl_training.runtime.reanalysis import ReanalysingTrainer
from rl_training.runtime.workflows import Result, train
from rl_training.settings.families import OffPolicyConfig
from rl_training.settings.muzero import MuZeroConfig
from rl_training.trees import Arrays


class MuZeroTrainer(ReanalysingTrainer[MuZeroT]):
    """MuZero (Schrittwieser et al. 2020), with reanalysis (Schrittwieser et al. 2021).

    Where actions are vectors, Sampled MuZero (Hubert et al. 2021).
    """

    config_class: ClassVar[type[OffPolicyConfig]] = MuZeroConfig
    policy_class: ClassVar[type[SearchPolicy]] = SearchPolicy
    action_spaces = (spaces.Discrete, spaces.Box)
    revision = 2  # the gradient is halved behind each transition

    def __init__(self, config: MuZeroT) -> None:
        super().__init__(config)
        self.target, _ = target_of(self.agent.network)
        self.optimizer = Adam([self.agent.network])
        self.updates = 0

    @classmethod
    def make_agent(
        cls, config: MuZeroT, observation_space: spaces.Space, action_space: spaces.Space
    ) -> SearchPolicy:
        assert isinstance(action_space, spaces.Discrete | spaces.Box)
        refuse_unbounded(action_space, config.env_id, config.algo_name)
        return cls.policy_of(config)(observation_space, action_space, **cls.agent_settings(config))

    @classmethod
    def policy_of(cls, config: MuZeroT) -> type[SearchPolicy]:
        return cls.policy_class

    @classmethod
    def agent_settings(cls, config: MuZeroT) -> dict[str, Any]:
        more = (
            "two_players",
            "residual_blocks",
            "batch_norm",
            "board_tower",
            "shared_tower",
            "value_transform",
        )
        return planner_settings(config, *more, "sampled_actions")

    def choose(self, obs: Arrays, knobs: Knobs, taken: int) -> dict[str, np.ndarray]:
        """Plan with the knobs as they stand at this step."""
        moves = self.config.temperature_moves
        greedy = None if moves is None else self.environments.lengths >= moves
        plan = self.agent.plan(obs, greedy=greedy, **search_settings(knobs.after(taken)))
        acted = {"action": plan.action, "policy": plan.policy}
        return acted if plan.samples is None else acted | {"samples": plan.samples}

    def iterate(self, knobs: Knobs) -> Metrics:
        # Act by search, and store what happened and the policies that the searches found.
        metrics = self.gather(knobs)
        now = knobs.after(metrics.steps)
        self.agent.settings = search_settings(now)  # for evaluations and for loaded policies
        for _ in range(self.updates_due(now.replay_ratio)):
            metrics.add(self.update(now))
        return metrics

    def update(self, now: Now) -> dict[str, Any]:
        """One gradient step on one batch, and a copy to the target network when it is due."""
        # Draw positions and the K steps after them, with probabilities in proportion to pᵢ^α.
        batch = self.draw(now)
        # zₜ = rₜ + γ rₜ₊₁ + … + γⁿ vₜ₊ₙ, with v of the target network, or of a new search with it.
        targets = self.targets(batch, now)
        batch, targets = self.varied(batch, targets)
        with by_the_batch(self.agent.network):
            # Unroll the model from the first observation with the actions that were taken.
            predictions = self.agent.network.unroll(
                self.seen(batch["places"][0], batch.get("turn")), batch["action"]
            )
            # l = lᵖ + c lᵛ + lʳ, of the root in full and of the K steps after it 1/K each.
            losses = self.losses(predictions, targets, batch)
            loss = self.weighed(losses, now)
            if now.state_coef:
                losses["state_loss"] = self.state_loss(predictions.states[1:], batch)
                loss = loss + now.state_coef * losses["state_loss"]
        if now.ent_coef:
            entropy = self.entropy(predictions.policy, batch).view_as(batch["acted"])
            loss = loss - now.ent_coef * unrolled_loss(entropy, batch["acted"], batch["weight"])
            losses["entropy"] = (entropy * batch["acted"]).sum() / batch["acted"].sum()
        step = self.optimizer.step(loss, now.learning_rate, now.max_grad_norm)
        # pᵢ = |v - z| of the root, more where a reward is among those that are unrolled.
        value = self.agent.network.decode(predictions.value[: self.config.batch_size].detach())
        error = (value - targets.value[0]).cpu().numpy()
        rewarded = batch["reward"].any(0).cpu().numpy()
        factor = np.where(rewarded, now.reward_priority, 1.0)
        self.replay.set_priorities(batch["index"], error, now.priority_exponent, factor)
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            renew(self.target, self.agent.network)
        means = {name: part.item() for name, part in losses.items()}
        means |= {
            "loss": loss.item(),
            "value": value.mean().item(),
            "value_error": float(np.abs(error).mean()),
            "latent_spread": spread(predictions.states[0].detach()),
        }
        return step | means | {"visit_entropy": mean_entropy(targets.policy, batch["acted"])}

    def losses(self, predictions: Unrolled, targets: Targets, batch: PositionBatch) -> dict[str, Tensor]:
        known: dict[str, Any] = {name: batch[name] for name in ("acted", "known", "weight")}
        known["compressed"] = self.config.value_transform
        if targets.samples is None:
            return unrolled_losses(predictions, targets, self.policy_loss, **known)
        of_samples = partial(sampled_policy_loss, samples=targets.samples.flatten(0, 1))
        return unrolled_losses(predictions, targets, of_samples, **known)

    def state_loss(self, imagined: Tensor, batch: PositionBatch) -> Tensor:
        """How far the unrolled states [K, B, ...] are from those of what was seen there."""
        there, true = self.true_states(batch)
        losses = torch.zeros_like(batch["acted"])
        losses[1:][there] = state_loss(imagined[there], true)
        return unrolled_loss(losses, torch.ones_like(losses), batch["weight"])

    def weighed(self, losses: dict[str, Tensor], now: Now) -> Tensor:
        return losses["policy_loss"] + now.vf_coef * losses["value_loss"] + losses["reward_loss"]

    def policy_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return policy_loss(logits, target)

    def entropy(self, outputs: Tensor, batch: PositionBatch) -> Tensor:
        """Of the policies that the head says [(K + 1) · B, ...] → [(K + 1) · B], in nats; of allowed actions alone."""
        if self.agent.num_samples is not None:
            outputs = gaussian(outputs)
        elif self.has_masks:
            outputs = mask_logits(outputs, {MASK: self.masks(batch).flatten(0, 1)})
        return self.agent.family.entropy(outputs)


def train_muzero(config: MuZeroConfig, **options: Any) -> Result:
    """Train MuZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
