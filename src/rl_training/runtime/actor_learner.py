"""Base of the actor-learner family: fragments of a fleet as one batch, and the learner's view of it."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.returns import Estimates
from rl_training.algorithms.vtrace import ratio_statistics, vtrace
from rl_training.data.batch import FragmentBatch, even_parts
from rl_training.data.normalization import RewardScaler
from rl_training.data.sequences import append_bootstraps, cut_sequences
from rl_training.envs.environments import Arguments
from rl_training.envs.making import make_environments
from rl_training.envs.spaces import ACTIONS, JOINT
from rl_training.fleet.actor import make_columns
from rl_training.fleet.learners import Learners
from rl_training.fleet.making import make_fleet
from rl_training.fleet.weights import pack
from rl_training.networks.encoders import laid_out
from rl_training.networks.recurrent import Sequences
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.recurrent import RecurrentPolicy
from rl_training.runtime.controls import Now
from rl_training.runtime.metrics import Metrics, returns_by_agent
from rl_training.runtime.on_policy import policy_settings
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.updates import CompiledUpdate
from rl_training.settings.families import ActorLearnerConfig
from rl_training.trees import tree_map


class View(NamedTuple):
    """A batch as a network sees it, rows [T·L, ...] each, `next_value` [T, L] without a gradient."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    next_value: Tensor
    parameters: Tensor  # of the action distribution


ActorLearnerT = TypeVar("ActorLearnerT", bound=ActorLearnerConfig)


class ActorLearnerTrainer(Trainer[ActorLearnerT]):
    """An actor-critic and the fragments of its fleet; what is learned from them is the algorithm's own `iterate`."""

    transient: tuple[str, ...] = ("columns", "learners", "agents")
    agent: ActorCriticPolicy
    action_spaces = (*ACTIONS, *JOINT)
    experience = ("collect",)

    def __init__(self, config: ActorLearnerT) -> None:
        environments = make_environments(config, 1, config.seed, "train")
        super().__init__(config, environments.lanes.observation_space, environments.lanes.action_space)
        acted, _ = self.agent.act(environments.obs, self.agent.initial(environments.count), explore=False)
        row = environments.obs, acted, config.num_steps
        self.agents = environments.agents
        environments.close()
        self.fleet = make_fleet(
            config,
            lambda: pack(self.agent),
            (self.observation_space, self.action_space),
            lambda make=np.empty: make_columns(*row, config.num_envs, make),
        )
        self.columns = make_columns(*row, config.lanes_per_update)
        self.learners = Learners(self)
        lanes = config.num_actors * config.num_envs
        self.reward_scaler = RewardScaler(lanes) if config.normalize_rewards else None

    @classmethod
    def make_agent(
        cls, config: ActorLearnerT, observation_space: spaces.Space, action_space: spaces.Space
    ) -> ActorCriticPolicy:
        settings = policy_settings(config)
        if config.cell is None:
            return ActorCriticPolicy(observation_space, action_space, **settings)
        settings |= {"cell": config.cell, "recurrent_size": config.recurrent_size}
        return RecurrentPolicy(observation_space, action_space, **settings)

    def collect(self, now: Now) -> tuple[FragmentBatch, Metrics]:
        """Fragments side by side, [T, L, ...], and the iteration's metrics with the episodes that ended.

        An actor goes on as soon as its fragment is taken, with the weights as they stand. `obs` has a row more, what
        follows the last step, and `cut` holds what was seen where time limits ended episodes: (t, lane, obs).
        """
        config = self.config
        episodes, lags, carries, cut = [], [], [], []
        for place in range(config.fragments_per_update):
            fragment = self.fleet.take()
            first, first_of_stream = place * config.num_envs, fragment.stream * config.num_envs
            lanes = slice(first, first + config.num_envs)
            for name, column in fragment.columns.items():
                tree_map(lambda mine, new, lanes=lanes: _put(mine, lanes, new), self.columns[name], column)
            if self.reward_scaler is not None:
                done = fragment.columns["terminated"] | fragment.columns["truncated"]
                whose = slice(first_of_stream, first_of_stream + config.num_envs)
                scaled = self.reward_scaler(fragment.columns["reward"], done, now.gamma, whose)
                self.columns["reward"][:, lanes] = scaled
            for t, ended, obs, _ in fragment.cut:
                for i, lane in enumerate(ended.tolist()):
                    cut.append((t, first + lane, tree_map(lambda part, i=i: part[i], obs)))
            episodes += [(first_of_stream + lane, *rest) for lane, *rest in fragment.episodes]
            lags.append(self.fleet.lag(fragment))
            carries.append(fragment.carry)
            self.fleet.send(fragment)
        batch: Any = {name: tree_map(torch.from_numpy, column) for name, column in self.columns.items()}
        batch["cut"] = cut
        batch["carry"] = tuple(
            torch.from_numpy(np.concatenate(parts)).to(self.agent.device)
            for parts in zip(*carries, strict=True)
        )
        metrics = Metrics(config.steps_per_iteration, episodes)
        metrics.add(returns_by_agent(self.agents, episodes))
        p95 = float(np.percentile(lags, 95))
        metrics.add(
            {"policy_lag_mean": float(np.mean(lags)), "policy_lag_p95": p95, "policy_lag_max": max(lags)}
        )
        return batch, metrics

    def view(self, agent: ActorCriticPolicy, batch: FragmentBatch) -> View:
        """What `agent` thinks of a batch: its log-probabilities and values, and the values of where actions led."""
        after = self._after(batch)
        action = batch["action"].flatten(0, 1).to(agent.device)
        if isinstance(agent, RecurrentPolicy):
            inputs = tree_map(lambda *parts: torch.cat(parts), self.inputs(batch), agent.inputs(after))
            parameters, every = agent.network(inputs, self._sequences(batch), batch["carry"])
            parameters, value, following = (
                parameters[: len(action)],
                every[: len(action)],
                every[len(action) :],
            )
        else:
            parameters, value = agent.outputs_for_loss(self.inputs(batch))
            following = torch.from_numpy(agent.value(tree_map(Tensor.numpy, after), ()))
        log_prob, entropy = agent.family.log_prob_and_entropy(parameters, action)
        return View(log_prob, entropy, value, self._led_to(value, following, batch), parameters)

    def compiled_view(self, update: CompiledUpdate, batch: FragmentBatch) -> View:
        """The same of the network that an update moves, without gradients and without torch."""
        said, parameters = update.evaluate(self.inputs(batch), batch["action"].flatten(0, 1))
        after = self.agent.value(tree_map(Tensor.numpy, self._after(batch)), ())
        log_prob, entropy, value = said.unbind(-1)
        next_value = self._led_to(value, torch.from_numpy(after), batch)
        return View(log_prob, entropy, value, next_value, parameters)

    def _led_to(self, value: Tensor, following: Tensor, batch: FragmentBatch) -> Tensor:
        """The values [T, L] of where actions led: of the next row, and of what follows the last ones and cut ones."""
        steps, lanes = batch["reward"].shape
        next_value = torch.cat([value.detach()[lanes:].cpu(), following.detach()[:lanes].cpu()]).view(
            steps, lanes
        )
        for number, (t, lane, _) in enumerate(batch["cut"]):
            next_value[t, lane] = following[lanes + number].detach()
        return next_value

    def inputs(self, batch: FragmentBatch) -> Any:
        """The observations that were acted on, as rows [T·L, ...] for the network."""
        rows = tree_map(lambda column: column[:-1].flatten(0, 1), batch["obs"])
        return tree_map(laid_out, self.agent.inputs(rows))

    def targets(self, view: View, batch: FragmentBatch, now: Now) -> tuple[Estimates, dict[str, Tensor]]:
        """V-trace's `return` and `advantage` as rows [T·L] for the policy of `view`, and what is worth logging."""
        shape = batch["reward"].shape
        log_ratio = view.log_prob.detach().cpu().view(shape) - batch["log_prob"]
        columns = (batch["reward"], view.value.detach().cpu().view(shape), view.next_value)
        targets = vtrace(
            log_ratio,
            *columns,
            batch["terminated"],
            batch["truncated"],
            gamma=now.gamma,
            rho_bar=now.rho_bar,
            c_bar=now.c_bar,
            trace_decay=now.gae_lambda,
            policy_rho_bar=now.policy_rho_bar,
        )
        rows: Estimates = tree_map(lambda column: column.flatten().to(self.agent.device), targets)
        return rows, ratio_statistics(log_ratio, now.rho_bar)

    def shares(self, batch: FragmentBatch) -> list[FragmentBatch]:
        """A batch's lanes, an equal number for each learner."""
        if self.config.num_learners == 1:
            return [batch]
        shares = []
        for start, end in even_parts(self.config.lanes_per_update, self.config.num_learners):
            share: Any = {
                name: tree_map(lambda column, lanes=slice(start, end): column[:, lanes], column)
                for name, column in batch.items()
                if name not in ("cut", "carry")
            }
            share["cut"] = [(t, lane - start, obs) for t, lane, obs in batch["cut"] if start <= lane < end]
            share["carry"] = tuple(part[start:end] for part in batch["carry"])
            shares.append(share)
        return shares

    def finish(self, batch: FragmentBatch) -> None:
        """The weights have moved: so do the normaliser's statistics, and actors get both from here on."""
        self.agent.observe(tree_map(lambda column: column[:-1], batch["obs"]))
        self.fleet.advance()

    def _after(self, batch: FragmentBatch) -> Any:
        """What is seen after the last step, and at time limits: rows [L + K, ...]."""
        last = tree_map(lambda column: column[-1], batch["obs"])
        if not batch["cut"]:
            return last
        seen = [obs for _, _, obs in batch["cut"]]
        return tree_map(lambda rows, *more: torch.cat([rows, torch.from_numpy(np.stack(more))]), last, *seen)

    def _sequences(self, batch: FragmentBatch) -> Sequences:
        ended = (batch["terminated"] | batch["truncated"]).numpy()
        places = [(t, lane) for t, lane, _ in batch["cut"]]
        sequences = append_bootstraps(cut_sequences(ended), ended, places)
        return Sequences(*(part.to(self.agent.device) for part in sequences))

    def timing(self) -> dict[str, float]:
        return self.fleet.timing()

    def largest_reward(self) -> float | None:
        return float(abs(self.columns["reward"]).max())

    def begin_with(self, arguments: Arguments) -> None:
        self.fleet.arguments = dict(arguments(0))  # actors run ahead: a fragment's come with its request

    def close(self) -> None:
        self.fleet.close()
        self.learners.close()


def _put(mine: np.ndarray, lanes: slice, new: np.ndarray) -> None:
    mine[:, lanes] = new
