"""Phasic Policy Gradient: its config, its iteration, and `train_ppg`."""

from __future__ import annotations

from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from rl_training.algorithms.ppg import joint_loss
from rl_training.algorithms.ppo import fit_loss, normalize_advantage, surrogate_loss
from rl_training.data.batch import lane_groups, take_lanes
from rl_training.data.kept_rollouts import Kept, check_rollouts, read_rollouts, write_rollouts
from rl_training.networks.actor_critic import PhasicActorCritic
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyTrainer
from rl_training.runtime.optim import adam_of, rate, share_parameters
from rl_training.runtime.part_updates import fastest_fit, fastest_phasic_policy
from rl_training.runtime.phasic_updates import fastest_distillation
from rl_training.runtime.ppo_trainer import optimize_surrogate
from rl_training.runtime.workflows import Result, train
from rl_training.settings.ppg import PPGConfig
from rl_training.state.leaves import is_whole, require
from rl_training.state.segments import SegmentStore
from rl_training.trees import Tensors, tree_map

# Rows of kept rollouts [N, ...], normalised, and the parameters of π_old there.
PhasicBatch = TypedDict("PhasicBatch", {"obs": Tensors, "return": Tensor, "parameters": Tensor})


class PhasicPolicy(ActorCriticPolicy):
    """An actor-critic with a value head on the policy's trunk; it acts like any other."""

    network_class = PhasicActorCritic


class PPGTrainer(OnPolicyTrainer[PPGConfig]):
    """Phasic Policy Gradient (Cobbe et al. 2021), Algorithm 1. An iteration is one of the policy phase; the
    auxiliary phase follows every N_pi-th."""

    config_class = PPGConfig
    policy_class = PhasicPolicy
    transient = ("surrogate", "value_fit", "distillation", "kept", "store")

    def __init__(self, config: PPGConfig) -> None:
        super().__init__(config)
        network = self.agent.network
        critic: list[nn.Module] = [network.critic_head]
        if network.critic_encoder is not None:
            critic.append(network.critic_encoder)
        self.policy_optimizer = adam_of(
            config, network.actor_encoder, network.actor_head, network.auxiliary_head
        )
        self.auxiliary_optimizer = self.policy_optimizer.beside()
        self.critic_optimizer = adam_of(config, *critic)
        self.surrogate = fastest_phasic_policy(surrogate_loss, self, "policy_optimizer")
        self.value_fit = fastest_fit(fit_loss, self, "critic_optimizer")
        self.distillation = fastest_distillation(joint_loss, self)
        self.kept: list[Kept] = []  # of this phase's rollouts so far
        self.rollouts = 0  # kept since the start of the run
        self.store: SegmentStore | None = None

    def keep_segments_in(self, store: SegmentStore) -> None:
        self.store = store

    def state_dict(self) -> dict[str, Any]:
        """Kept rollouts do not change: each is written to the store once, and a checkpoint says how many there are."""
        state = super().state_dict()
        if self.store is None:
            return state | {"kept": list(self.kept)}
        write_rollouts(self.store, self.kept, self.rollouts)
        return state | {"kept": len(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = state["kept"]
        rest = {name: part for name, part in state.items() if name != "kept"}
        if isinstance(kept, list):  # in the checkpoint itself, as all were before there were segments
            self.kept = list(kept)
            super().load_state_dict({"rollouts": len(kept)} | rest)
            return
        require(is_whole(kept) and is_whole(rest["rollouts"]), "kept: no number of rollouts")
        require(kept < self.config.policy_iterations, "kept: more rollouts than a phase has")
        require(kept <= rest["rollouts"], "kept: more rollouts than there were")
        self.kept = read_rollouts(self.store, kept, rest["rollouts"], self.collector.environments.obs)
        super().load_state_dict(rest)

    def check_state(self) -> None:
        lanes = (self.config.num_steps, self.config.num_envs)
        require(len(self.kept) < self.config.policy_iterations, "kept: more rollouts than a phase has")
        check_rollouts(self.kept, lanes, self.collector.environments.obs)

    def iterate(self, knobs: Knobs) -> Metrics:
        config = self.config
        share_parameters(
            self.agent.network.actor_head.output.weight, self.policy_optimizer, self.auxiliary_optimizer
        )
        # Perform rollouts under the current policy and compute value targets.
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        estimates = self.estimate_advantages(rollout, now, metrics)
        batch = self.flat_batch(rollout, estimates)
        batch = {**batch, "advantage": normalize_advantage(batch["advantage"])}
        # for E_pi epochs: optimise L^CLIP + c_e H by the policy.
        update = self.surrogate()
        parts = update.parts(batch, config.policy_epochs, config.num_minibatches)
        optimize_surrogate(update, parts, now, metrics)
        # for E_V epochs: optimise L^value by the critic.
        update = self.value_fit()
        fitted = update.descend(update.parts(batch, config.value_epochs, config.num_minibatches), now)
        del fitted["grad_norm"]  # which is the policy's
        metrics.extend(fitted)
        # Add all (s_t, V_targ) to the buffer; after N_pi iterations follows the auxiliary phase.
        if config.auxiliary_epochs:
            kept: Kept = {"obs": rollout["obs"], "return": estimates["return"]}
            self.kept.append(tree_map(torch.clone, kept))  # the collector writes over its rollouts
            self.rollouts += 1
        self.agent.observe(rollout["obs"])
        if len(self.kept) == config.policy_iterations:
            self.auxiliary_phase(now, metrics)
            self.kept.clear()
        return metrics

    def auxiliary_phase(self, now: Now, metrics: Metrics) -> None:
        """Distil the values of the phase's rollouts into the policy's trunk, holding the policy by its KL."""
        config, agent = self.config, self.agent
        now = Now(vars(now) | {"learning_rate": rate(now, "auxiliary")})
        batch: Kept = tree_map(lambda *parts: torch.cat(parts, 1), *self.kept)
        lanes = batch["return"].shape[1]
        # Compute π_old for all states in the buffer, once, before anything moves.
        update = self.distillation.taken() or self
        every = [take_lanes(batch["obs"], group) for group in torch.arange(lanes).split(config.num_envs)]
        parts = [update.anchors(agent.inputs(obs)).unflatten(0, (config.num_steps, -1)) for obs in every]
        old = torch.cat(parts, 1)
        for group in lane_groups(lanes, config.auxiliary_epochs, config.auxiliary_minibatches):
            rows = take_lanes(batch, group)
            minibatch: PhasicBatch = {
                "obs": agent.inputs(rows["obs"]),
                "return": rows["return"].to(agent.device),
                "parameters": take_lanes(old, group),
            }
            # Optimise L^joint by the policy's network, and L^value by the critic.
            metrics.add(update.distil(minibatch, now))

    def anchors(self, inputs: Tensors) -> Tensor:
        """The parameters [N, P] of the policy as it is now."""
        with torch.no_grad():
            return self.agent.network.policy(inputs)

    def distil(self, minibatch: PhasicBatch, now: Now) -> dict[str, Tensor]:
        """A step of the policy's network, and one of the critic towards the value targets."""
        target, agent = minibatch["return"], self.agent
        parameters, auxiliary_value, value = agent.network.auxiliary(minibatch["obs"])
        distance = agent.family.kl(minibatch["parameters"], parameters)
        joint, terms = joint_loss(auxiliary_value, target, distance, now.beta_clone)
        fit, fitted = fit_loss(value, target, vf_coef=now.vf_coef)
        self.auxiliary_optimizer.step(joint, now.learning_rate, now.max_grad_norm)
        self.critic_optimizer.step(fit, now.learning_rate, now.max_grad_norm)
        return terms | fitted


def train_ppg(config: PPGConfig, **options: Any) -> Result:
    """Train PPG from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
