"""Generative Adversarial Imitation Learning: its config, its iteration, and `train_gail`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.gail import (
    REWARDS,
    discriminator_answers,
    discriminator_loss,
    end_reward,
    gradient_penalty,
    interpolate,
)
from rl_training.data.batch import Rollout
from rl_training.data.imitation import (
    PairBatch,
    Pairs,
    agent_pairs,
    check_pairs,
    draw,
    expert_pairs,
    join,
    joined,
    time_after_ends,
)
from rl_training.data.normalization import RewardScaler
from rl_training.envs.spaces import ACTIONS, ActionCodec
from rl_training.errors import ConfigError
from rl_training.networks.discriminator import Discriminator
from rl_training.networks.encoders import Own
from rl_training.runtime.bc_trainer import clone
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.discriminator_updates import fastest_judgement
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import Adam
from rl_training.runtime.ppo_trainer import PPOTrainer
from rl_training.runtime.workflows import Result, train
from rl_training.settings.gail import GAILConfig
from rl_training.state.leaves import require
from rl_training.trees import tree_map


class GAILTrainer(PPOTrainer[GAILConfig]):
    """Generative Adversarial Imitation Learning (Ho & Ermon 2016), Algorithm 1, with PPO instead of TRPO."""

    transient = ("codec", "judgement")
    config_class = GAILConfig
    action_spaces = ACTIONS

    def __init__(self, config: GAILConfig) -> None:
        super().__init__(config)
        if config.reward_scale_rollouts is not None:
            memory = config.reward_scale_rollouts * config.steps_per_iteration
            self.reward_scaler = RewardScaler(config.num_envs, memory)
        codec = self.collector.environments.codec
        assert isinstance(codec, ActionCodec)  # that of any of `action_spaces`
        self.codec = codec
        try:
            self.expert = expert_pairs(config, self.observation_space, self.action_space)
        except ConfigError:
            self.close()  # worker processes, where environments have some
            raise
        self.agent.observe(self.expert.pairs["obs"])  # one normaliser for the policy and both sides of D
        self.discriminator = Discriminator(
            self.observation_space,
            self.action_space,
            hidden_sizes=config.discriminator_hidden_sizes,
            image_encoder=config.image_encoder,
            spectral_norm=config.spectral_norm,
            own=Own(config.discriminator_network, config.discriminator_encoder),
        ).to(self.agent.device)
        self.discriminator_optimizer = Adam([self.discriminator])
        self.judgement = fastest_judgement(self, discriminator_loss, gradient_penalty)
        self.recent: list[Pairs] = []  # of the rollouts before this one
        self.cloned = config.bc_epochs == 0

    def check_state(self) -> None:
        require(len(self.recent) < self.config.discriminator_rollouts, "recent: more rollouts than are kept")
        for pairs in self.recent:
            check_pairs(pairs, self.expert.pairs["obs"], self.codec, "recent")

    def seed_normalizer(self) -> None:
        """Its statistics begin with the expert's observations, not with random play."""

    def iterate(self, knobs: Knobs) -> Metrics:
        cloning = {} if self.cloned else self.clone(knobs.after(0))
        # Sample trajectories of the current policy.
        rollout, metrics = self.collect()
        metrics.add(cloning)
        now = knobs.after(metrics.steps)
        # Update the discriminator by the gradient of E_expert[log D] + E_π[log(1 - D)].
        pairs = agent_pairs(rollout, ActionCodec(self.action_space))
        self.improve_discriminator(self.remember(pairs), now, metrics)
        # Take a policy step with the discriminator's reward, which takes the place of the environment's.
        reward = self.imitation_reward(pairs, rollout["terminated"], now)
        metrics.add({"imitation_reward": reward.mean()})
        imitating: Rollout = {**rollout, "reward": reward}
        self.improve_policy(imitating, now, metrics)
        return metrics

    def clone(self, now: Now) -> dict[str, Tensor]:
        """Behavioural cloning, a warm start.

        At the learning rate that is written in the config: schedules and warm-up belong to the steps that follow.
        """
        config, self.cloned = self.config, True
        optimizer = self.optimizer.beside()  # its moments are of no use to the policy's own loss
        rates = (config.learning_rate, now.max_grad_norm)
        size = config.discriminator_batch_size
        return clone(self.agent, self.expert.pairs, config.bc_epochs, size, optimizer, *rates)

    def remember(self, pairs: Pairs) -> Pairs:
        """The pairs of the newest rollouts, this one among them."""
        pool, keep = join([*self.recent, pairs]), self.config.discriminator_rollouts - 1
        if keep:  # copied, because the collector writes over its rollouts
            copied: Pairs = {**pairs, "obs": tree_map(np.copy, pairs["obs"])}
            self.recent = [*self.recent, copied][-keep:]
        return pool

    def improve_discriminator(self, pool: Pairs, now: Now, metrics: Metrics) -> None:
        config, sides = self.config, (self.expert.pairs, pool)
        # A termination is followed by the discount's horizon in the absorbing state.
        lasting = 1 / (1 - now.gamma) if config.absorbing_states else 0.0
        expert_share, agent_share = (time_after_ends(side, lasting) for side in sides)
        answers = []
        drawn = [
            joined([draw(side, config.discriminator_batch_size) for side in sides])
            for _ in range(config.discriminator_updates)
        ]
        update = self.judgement.taken() or self
        for rows in self.encoded(drawn):
            answer, numbers = update.judge(rows, expert_share, agent_share, now)
            answers.append(answer.chunk(2))
            metrics.add(numbers)
        if answers:
            metrics.add(discriminator_answers(*map(torch.cat, zip(*answers, strict=True))))

    def judge(
        self, rows: Tensor, expert_share: float, agent_share: float, now: Now
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A step of the discriminator on rows of the expert and as many of the agent; their logits before it."""
        logits = self.discriminator.for_loss(torch.cat([rows, self.discriminator.absorbing()]))
        expert, agent, absorbing = logits.tensor_split([len(rows) // 2, len(rows)])
        loss = discriminator_loss(expert, agent, absorbing, expert_share, agent_share)
        numbers = {}
        if now.gradient_penalty_coef:
            slope = self.discriminator.slope(self.penalized(rows))
            penalty = gradient_penalty(slope, target=float(self.between))
            numbers["gradient_penalty"] = penalty.detach()
            loss = loss + now.gradient_penalty_coef * penalty
        self.discriminator_optimizer.step(loss, now.discriminator_learning_rate, None)
        return logits[:-1].detach(), numbers

    @property
    def between(self) -> bool:
        """Whether slopes are penalised between expert and agent, and not at the expert's pairs."""
        return self.config.gradient_penalty == "interpolated"

    def penalized(self, rows: Tensor) -> Tensor:
        """The inputs at which slopes are penalised."""
        at, others = rows.detach().chunk(2)
        return interpolate(at, others) if self.between else at

    def encoded(self, drawn: list[PairBatch]) -> Iterator[Tensor]:
        """The discriminator's inputs for each batch; for all of them at once where nothing in that is learned."""
        if self.discriminator.learns_inputs or not drawn:
            yield from map(self.inputs, drawn)
        else:
            yield from self.inputs(joined(drawn)).chunk(len(drawn))

    def inputs(self, pairs: PairBatch) -> Tensor:
        """Pairs as the discriminator sees them, through the policy's normaliser."""
        action = torch.as_tensor(pairs["action"], device=self.agent.device)
        return self.discriminator.inputs(self.agent.inputs(pairs["obs"]), action)

    def imitation_reward(self, pairs: PairBatch, terminated: Tensor, now: Now) -> Tensor:
        """The rewards [T, B] of a rollout's pairs, and with the last of an episode what its end is worth."""
        form = REWARDS[self.config.reward_form]
        with torch.no_grad():
            reward = form(self.discriminator(self.inputs(pairs))).cpu().reshape(terminated.shape)
            if self.config.absorbing_states:
                absorbing = form(self.discriminator(self.discriminator.absorbing())).item()
                reward = reward + end_reward(absorbing, now.gamma) * terminated
        return reward


def train_gail(config: GAILConfig, **options: Any) -> Result:
    """Train GAIL from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
