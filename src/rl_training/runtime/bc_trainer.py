"""Behavioural cloning: its config, its iteration, and `train_bc`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.bc import BC_SLOPES, bc_loss
from rl_training.data.batch import minibatches
from rl_training.data.imitation import Epochs, PairBatch, at_rows, expert_pairs
from rl_training.envs.making import make_environments
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import policy_settings
from rl_training.runtime.optim import Optimizer, adam_of
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.updates import Fastest
from rl_training.runtime.workflows import Result, train
from rl_training.settings.bc import BCConfig
from rl_training.trees import tree_map


class BCTrainer(Trainer[BCConfig]):
    """Behavioural cloning (Pomerleau 1991): an actor-critic's actor learns the actions of an expert.

    A step of a run is a pair of an observation and an action that was learned from. Nothing is played but evaluations.
    """

    transient = ("update",)
    experience = ("draw",)
    config_class = BCConfig
    agent: ActorCriticPolicy

    def __init__(self, config: BCConfig) -> None:
        with closing(make_environments(config, 1, config.seed, "spaces")) as environments:
            super().__init__(config, environments.lanes.observation_space, environments.lanes.action_space)
        self.expert = expert_pairs(config, self.observation_space, self.action_space)
        self.agent.observe(self.expert.pairs["obs"])
        self.epochs = Epochs(len(self.expert.pairs["action"]), config.seed)
        self.optimizer = adam_of(config, self.agent.network)
        self.update = Fastest(bc_loss, BC_SLOPES, self)

    @classmethod
    def make_agent(
        cls, config: BCConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> ActorCriticPolicy:
        return ActorCriticPolicy(observation_space, action_space, **policy_settings(config))

    def seed_normalizer(self) -> None:
        """Its statistics are those of the expert's observations, not of random play."""

    def draw(self) -> Any:
        """The next pairs of the expert, as a batch; an epoch has each of them once."""
        rows = self.epochs.take(self.config.steps_per_iteration)
        return rows_of(self.agent, at_rows(self.expert.pairs, rows))

    def iterate(self, knobs: Knobs) -> Metrics:
        batch = self.draw()
        metrics = Metrics(self.config.steps_per_iteration, [])
        # Maximise E_expert[log π(a|s)], minibatch by minibatch.
        update = self.update()
        parts = update.parts(batch, 1, self.config.num_minibatches)
        metrics.extend(update.descend(parts, knobs.after(metrics.steps)))
        return metrics


def clone(
    agent: ActorCriticPolicy,
    pairs: PairBatch,
    epochs: int,
    batch_size: int,
    optimizer: Optimizer,
    learning_rate: float,
    max_grad_norm: float | None,
) -> dict[str, Tensor]:
    """Maximise E_expert[log π(a|s)] as a part of another algorithm; the loss of the last minibatch."""
    rows, count = rows_of(agent, pairs), -(-len(pairs["action"]) // batch_size)
    for minibatch in minibatches(rows, epochs, count):
        loss, numbers = bc_loss(*agent.evaluate(minibatch["obs"], minibatch["action"]), ent_coef=0.0)
        optimizer.step(loss, learning_rate, max_grad_norm)
    return {"cloning_loss": numbers["cloning_loss"]}


def rows_of(agent: ActorCriticPolicy, pairs: PairBatch) -> Any:
    """Pairs as the columns `obs`, normalised, and `action` of a batch, on the agent's device."""
    batch = {"obs": agent.inputs(pairs["obs"]), "action": torch.as_tensor(pairs["action"])}
    return tree_map(lambda column: column.to(agent.device), batch)


def train_bc(config: BCConfig, **options: Any) -> Result:
    """Train behavioural cloning from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
