"""DreamerV3: its config, its iteration, and `train_dreamer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.dreamer import (
    actor_loss,
    continue_loss,
    imagined_weights,
    lambda_returns,
    latent_losses,
    move_range,
)
from rl_training.algorithms.one_hot import unimix
from rl_training.algorithms.sac import polyak
from rl_training.data.batch import SequenceBatch, on_device
from rl_training.data.collector import fresh_where_ended
from rl_training.data.streams import StreamReplay, ended, going_on
from rl_training.envs.environments import Step
from rl_training.networks.rssm import State
from rl_training.policies.dreamer import DreamerPolicy, stored
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.dreamer_updates import LOSSES, compiled_update, fastest_networks, fastest_pictures
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.off_policy import OffPolicyTrainer
from rl_training.runtime.optim import LaProp, target_of
from rl_training.runtime.workflows import Result, train
from rl_training.settings.dreamer import DreamerConfig
from rl_training.trees import Arrays, tree_map

Losses = dict[str, Tensor]


class DreamerTrainer(OffPolicyTrainer[DreamerConfig]):
    """DreamerV3 (Hafner et al. 2025): world model, critic and actor trained by one optimizer."""

    config_class = DreamerConfig
    agent: DreamerPolicy
    replay: StreamReplay
    transient = ("slow_weights", "critic_weights", "fast_networks", "fast_pictures")

    def __init__(self, config: DreamerConfig) -> None:
        super().__init__(config)
        self.carry = self.agent.initial(config.num_envs)
        self.reward = np.zeros(config.num_envs, np.float32)  # that came with what is acted on next
        self.first = np.ones(config.num_envs, np.bool_)  # whether an episode begins with it
        self.slow_critic, self.slow_weights = target_of(self.agent.network.critic)
        self.optimizer = LaProp([self.agent.network])
        self.critic_weights = list(self.agent.network.critic.parameters())
        self.return_low, self.return_high = (torch.zeros((), device=self.agent.device) for _ in range(2))
        if config.compile:
            self.agent.network.rssm.compile()
        self.fast_networks = fastest_networks(self)
        self.fast_pictures = fastest_pictures(self)

    @classmethod
    def make_agent(
        cls, config: DreamerConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> DreamerPolicy:
        normal, device, sizes = config.normalize_observations, config.device, config.network
        return DreamerPolicy(
            observation_space, action_space, normalize_observations=normal, device=device, **sizes
        )

    def make_replay(self, obs: Arrays, **settings: Any) -> Any:
        config, count = self.config, self.config.num_envs
        acted, _ = self.agent.act(obs, self.agent.initial(count), explore=True)
        row = going_on(obs, np.zeros(count, np.float32), np.zeros(count, np.bool_), acted)
        sizes = {"length": config.batch_length, "num_classes": config.network["num_classes"]}
        return StreamReplay(config.buffer_size, row, **sizes, refresh=config.refresh_latents)

    def step(self, knobs: Knobs, taken: int) -> Step:
        """Act once in every environment, and remember it with the latents that were acted on."""
        count, obs = self.config.num_envs, self.environments.obs
        acted, self.carry = self.agent.act(obs, self.carry, explore=True)
        self.replay.add(np.arange(count), going_on(obs, self.reward, self.first, acted))
        step = self.environments.step(acted["action"])
        self.reward, self.first = step.reward.astype(np.float32), step.terminated | step.truncated
        if step.ended:
            lanes = np.array(step.ended)
            ends = (step.next_obs, self.reward, step.terminated, acted)
            self.replay.add(lanes, ended(*(tree_map(lambda column: column[lanes], part) for part in ends)))
            self.reward[lanes] = 0.0
            self.carry = fresh_where_ended(self.agent, self.carry, step.ended)
        return step

    def iterate(self, knobs: Knobs) -> Metrics:
        # Act with the world model's state, and add the steps to the replay.
        metrics = self.gather(knobs)
        now = knobs.after(metrics.steps)
        # Then as many updates as these steps pay for: each replays B · T steps.
        replayed = self.config.batch_size * self.config.batch_length
        for _ in range(self.updates_due(now.train_ratio / replayed)):
            metrics.add(self.update(now))
        return metrics

    def update(self, now: Now) -> dict[str, Any]:
        """One gradient step of everything, on one batch of sequences."""
        batch, fast = self.draw(), compiled_update(self)
        state, numbers = self.descend(batch, now) if fast is None else fast.descend(self, batch, now)
        # The slow critic follows.
        critic = torch.cat([weight.detach().flatten() for weight in self.critic_weights])
        polyak(self.slow_weights, critic, now.slow_critic_rate)
        if self.config.refresh_latents:
            self.replay.put_latents(batch["lane"], batch["row"], **stored(self.agent.network, state))
        return numbers

    def descend(self, batch: SequenceBatch, now: Now) -> tuple[State, dict[str, float]]:
        """A step down the gradient of all losses by torch: the posterior states, and what is worth logging."""
        # World model: follow the sequences, and learn to tell and to foresee what they hold.
        state, losses = self.world_model_losses(batch, now)
        # Imagine from every state of theirs; actor and critic learn from what is imagined.
        imagined, returns = self.imagination_losses(state, now)
        # The critic also learns from the rewards that were really earned.
        losses |= imagined | {"replay_value_loss": self.replay_value_loss(state, batch, returns, now)}
        loss = torch.stack([getattr(now, f"{of}_scale") * losses[f"{of}_loss"] for of in LOSSES]).sum()
        step = self.optimizer.step(loss, now.learning_rate, None)
        return state, step | {name: part.item() for name, part in losses.items()} | {"loss": loss.item()}

    def draw(self) -> SequenceBatch:
        """Sequences on the networks' device, as they read them."""
        batch = self.replay.sample(self.config.batch_size)
        sent = on_device(batch, self.agent.device)
        return {
            **sent,
            "obs": self.agent.inputs(batch["obs"]),
            "action": self.agent.network.encode_action(sent["action"]),
            "first": sent["first"].float(),
            "last": sent["last"].float(),
            "terminal": sent["terminal"].float(),
        }

    def world_model_losses(self, batch: SequenceBatch, now: Now) -> tuple[State, Losses]:
        """The posterior states [T, B, ...], and the means of the five losses."""
        network = self.agent.network
        tokens = network.reconstruction.encode(batch["obs"])
        start = State(batch["deter"], batch["stoch"])
        state, posterior = network.rssm.observe(start, tokens, batch["action"], batch["first"])
        prior = unimix(network.rssm.prior(state.deter))
        dynamics, representation = latent_losses(posterior, prior, self.config.free_nats)
        features = state.features
        live = (1 - batch["terminal"]) * now.gamma
        losses = {
            "reconstruction_loss": network.reconstruction.loss(features, batch["obs"]),
            "reward_loss": network.bins_loss(network.reward(features), [batch["reward"]]),
            "continue_loss": continue_loss(network.going_on(features).squeeze(-1), live),
            "dynamics_loss": dynamics,
            "representation_loss": representation,
        }
        return state, {name: loss.mean() for name, loss in losses.items()}

    def imagination_losses(self, state: State, now: Now) -> tuple[Losses, Tensor]:
        """The losses of actor and critic in imagination, and the returns [T, B] of the states it began with."""
        network, slow_critic = self.agent.network, self.slow_critic
        starts = State(*(part.detach().flatten(0, 1) for part in state))
        features, action = network.imagine(starts, int(now.imagination_horizon))
        logits = network.critic(features[:-1])
        with torch.no_grad():
            value = torch.cat([network.decoded(logits), network.says(network.critic, features[-1:])])
            live = network.live(features)
            returns = lambda_returns(network.says(network.reward, features), live, value, now.return_lambda)
            weight = imagined_weights(live)[:-1]
            # Returns are scaled to a range of 1 between their 5th and 95th percentiles, but never up.
            move_range(self.return_low, self.return_high, returns, now.return_rate)
            scale = (self.return_high - self.return_low).clamp_min(1.0)
            advantage = (returns - value[:-1]) / scale
            slow = network.says(slow_critic, features[:-1])
        log_prob, entropy = network.family.log_prob_and_entropy(network.policy(features[:-1]), action)
        losses = {
            "policy_loss": actor_loss(log_prob, entropy, advantage, weight, now.entropy_coef),
            "value_loss": (weight * network.bins_loss(logits, [returns, slow])).mean(),
            "entropy": entropy.detach().mean(),
            "imagined_return": returns.mean(),
            "return_scale": scale,
        }
        return losses, returns[0].view(state.deter.shape[:2])

    def replay_value_loss(self, state: State, batch: SequenceBatch, returns: Tensor, now: Now) -> Tensor:
        """The critic on the replayed states, bootstrapped from the returns [T, B] that were imagined there."""
        network, slow_critic = self.agent.network, self.slow_critic
        features = state.features[:-1]
        live = (1 - batch["terminal"]) * now.gamma
        target = lambda_returns(batch["reward"], live, returns, now.return_lambda, batch["last"])
        slow = network.says(slow_critic, features)
        loss = network.bins_loss(network.critic(features), [target, slow])
        # What follows an episode's last observation is another episode.
        return ((1 - batch["last"][:-1]) * loss).mean()


def train_dreamer(config: DreamerConfig, **options: Any) -> Result:
    """Train DreamerV3 from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
