"""Asynchronous PPO: its config, its iteration, and `train_appo`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.appo import APPO_SLOPES, SCALES, adapt_scale, anchor_log_prob, appo_loss
from rl_training.algorithms.ppo import normalize_advantage
from rl_training.algorithms.returns import explained_variance
from rl_training.algorithms.sac import polyak
from rl_training.data.batch import AnchoredBatch, FragmentBatch, minibatches
from rl_training.data.circular import CircularBuffer
from rl_training.data.sequences import sequence_minibatches
from rl_training.runtime.actor_learner import ActorLearnerTrainer
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.learner_updates import AnchoredLearner, fastest_learner
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import actor_critic_adam, flatten_parameters, set_critic_rate
from rl_training.runtime.updates import Far
from rl_training.runtime.workflows import Result, train
from rl_training.settings.appo import APPOConfig
from rl_training.state.leaves import require
from rl_training.state.segments import SegmentStore
from rl_training.trees import tree_map


class APPOTrainer(ActorLearnerTrainer[APPOConfig]):
    """IMPACT (Luo et al. 2020), Algorithm 1, with each batch used for several epochs at once.

    With `batch_uses` above 1, an iteration learns from several batches of the circular buffer.
    """

    config_class = APPOConfig
    revision = 3  # target_kl is tested before a step
    transient = ("target_parameters", "surrogate")
    buffer: CircularBuffer | None = None  # no state where it is off

    def __init__(self, config: APPOConfig) -> None:
        super().__init__(config)
        self.optimizer = actor_critic_adam(config, self.agent.network)
        # The target network sees observations as the online one does, and starts as its copy.
        self.target = self.make_agent(config, self.observation_space, self.action_space)
        self.target.normalizer = self.agent.normalizer
        self.target_parameters, _ = flatten_parameters(list(self.target.network.parameters()))
        self.target_parameters.copy_(self.optimizer.parameters)
        self.iterations = 0  # batches learned from
        self.surrogate = fastest_learner(appo_loss, APPO_SLOPES, self, AnchoredLearner, "loss", "evaluate")
        if config.batch_uses > 1:
            carry = self.agent.initial(config.lanes_per_update)
            self.buffer = CircularBuffer(
                config.buffer_batches, config.batch_uses, self.columns, carry, self.action_space
            )
        self.kl_scale = (
            1.0  # of kl_coef; it adapts where kl_coef_target is set, which may be while the run goes on
        )

    def keep_segments_in(self, store: SegmentStore) -> None:
        if self.buffer is not None:
            self.buffer.store = store

    def iterate(self, knobs: Knobs) -> Metrics:
        now = knobs.after(self.config.steps_per_iteration)
        # Trajectories of actors, whose policies μ are some updates old.
        newest, metrics = self.collect(now)
        if self.buffer is None:
            self.learn(newest, now, metrics)
        else:
            for batch, age in self.buffer.after(newest):
                metrics.add({"batch_age": float(age)})
                self.learn(batch, now, metrics)
        self.finish(newest)
        return metrics

    def learn(self, batch: FragmentBatch, now: Now, metrics: Metrics) -> None:
        """Several epochs on a batch, around the target network; then this follows."""
        config = self.config
        # V-trace targets of the target network, which hold for all epochs.
        with torch.no_grad():
            view = self.view(self.target, batch)
        targets, ratios = self.targets(view, batch, now)
        metrics.add(ratios)
        metrics.add({"explained_variance": explained_variance(view.value.cpu(), targets["return"].cpu())})
        behaviour = batch["log_prob"].flatten().to(self.agent.device)
        rows: AnchoredBatch = {
            **targets,
            "obs": self.inputs(batch),
            "action": batch["action"].flatten(0, 1).to(self.agent.device),
            "log_prob": anchor_log_prob(view.log_prob, behaviour),
            "value": view.value,
            "parameters": view.parameters,
        }
        # Several epochs of the clipped surrogate around the target network's policy.
        set_critic_rate(self.optimizer, now)
        learner = self.surrogate.taken() or self.learners
        if now.kl_coef_target is None:  # switched off: kl_coef alone, as if it had never adapted
            self.kl_scale = 1.0
        scaled = Now(vars(now) | {"kl_coef": now.kl_coef * self.kl_scale})
        for shares in self.minibatches(rows, batch, now.update_epochs):
            if config.normalize_advantages:
                advantage = normalize_advantage(torch.cat([share["advantage"] for share in shares]))
                parts = zip(shares, advantage.chunk(len(shares)), strict=True)
                shares = [{**share, "advantage": part} for share, part in parts]
            far = None if now.target_kl is None else Far("kl", 1.5 * now.target_kl)
            numbers, moved = learner.step(shares, scaled, far)
            metrics.add(numbers)
            if not moved:
                break
        if now.kl_coef_target is not None:
            self.kl_scale = adapt_scale(self.kl_scale, float(numbers["kl"]), now.kl_coef_target)
            metrics.stand({"kl_coef_adapted": now.kl_coef * self.kl_scale})
        # θ_target ← τ θ + (1 - τ) θ_target, every so many batches.
        self.iterations += 1
        if self.iterations % config.target_update_interval == 0:
            polyak(self.target_parameters, self.optimizer.parameters, now.tau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"kl_scale": 1.0} | state)  # older runs without kl_coef_target have none

    def check_state(self) -> None:
        super().check_state()
        low, high = SCALES
        require(low <= self.kl_scale <= high, "kl_scale: outside its bounds")

    def minibatches(
        self, rows: AnchoredBatch, batch: FragmentBatch, epochs: int
    ) -> Iterator[Sequence[AnchoredBatch]]:
        """Shuffled steps, or for a network with a memory shuffled groups of whole lanes, in a share per learner."""
        learners, count = self.config.num_learners, self.config.num_minibatches * self.config.num_learners
        if self.config.cell is None:
            shares = minibatches(rows, epochs, count)
        else:
            ended = batch["terminated"] | batch["truncated"]
            in_time: AnchoredBatch = tree_map(lambda column: column.unflatten(0, ended.shape), rows)
            shares = sequence_minibatches(in_time, ended, batch["carry"], epochs, count)
        return zip(*[shares] * learners, strict=True)

    def loss(self, minibatch: AnchoredBatch, now: Now) -> tuple[Tensor, dict[str, Any]]:
        return appo_loss(
            *self.evaluate(minibatch),
            minibatch,
            clip_coef=now.clip_coef,
            ent_coef=now.ent_coef,
            vf_coef=now.vf_coef,
            kl_coef=now.kl_coef,
            value_clip_coef=now.value_clip_coef,
        )

    def evaluate(self, minibatch: AnchoredBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log π(a|s), entropy, value and KL(π_target ‖ π) [N]."""
        agent = self.agent
        if "sequences" in minibatch:
            parameters, value = agent.network(minibatch["obs"], minibatch["sequences"], minibatch["carry"])
        else:
            parameters, value = agent.outputs_for_loss(minibatch["obs"])
        log_prob, entropy = agent.family.log_prob_and_entropy(parameters, minibatch["action"])
        return log_prob, entropy, value, agent.family.kl(minibatch["parameters"], parameters)


def train_appo(config: APPOConfig, **options: Any) -> Result:
    """Train APPO from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
