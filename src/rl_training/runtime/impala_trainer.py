"""IMPALA: its config, its iteration, and `train_impala`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.impala import IMPALA_SLOPES, impala_loss
from rl_training.algorithms.returns import explained_variance
from rl_training.data.batch import FragmentBatch
from rl_training.runtime.actor_learner import ActorLearnerTrainer
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.learner_updates import TargetLearner, fastest_learner
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import optimizer_of
from rl_training.runtime.workflows import Result, train
from rl_training.settings.impala import IMPALAConfig


class IMPALATrainer(ActorLearnerTrainer[IMPALAConfig]):
    """IMPALA (Espeholt et al. 2018), the learner."""

    config_class = IMPALAConfig
    revision = 2  # advantages with gae_lambda below 1
    transient = ("update",)

    def __init__(self, config: IMPALAConfig) -> None:
        super().__init__(config)
        self.optimizer = optimizer_of(config, self.agent.network)
        self.update = fastest_learner(impala_loss, IMPALA_SLOPES, self, TargetLearner, "loss", "view")

    def iterate(self, knobs: Knobs) -> Metrics:
        now = knobs.after(self.config.steps_per_iteration)
        # Trajectories (x, a, r, μ(a|x)) of actors, whose policies μ are some updates old.
        batch, metrics = self.collect(now)
        # One step on the policy gradient, the baseline's error and the entropy.
        learner = self.update.taken() or self.learners
        metrics.add(learner.step(self.shares(batch), now)[0])
        self.finish(batch)
        return metrics

    def loss(self, batch: FragmentBatch, now: Now) -> tuple[Tensor, dict[str, Any]]:
        # π(a|x) and V(x) of the learner, and from them the V-trace targets v and advantages.
        view = self.view(self.agent, batch)
        targets, ratios = self.targets(view, batch, now)
        loss, parts = impala_loss(
            view.log_prob, view.entropy, view.value, targets, ent_coef=now.ent_coef, vf_coef=now.vf_coef
        )
        explained = explained_variance(view.value.detach().cpu(), targets["return"].cpu())
        return loss, ratios | parts | {"explained_variance": explained}


def train_impala(config: IMPALAConfig, **options: Any) -> Result:
    """Train IMPALA from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
