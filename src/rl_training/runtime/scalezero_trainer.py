"""ScaleZero: its config, its iteration, and `train_scalezero`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.muzero import mean_entropy
from rl_training.algorithms.sac import polyak
from rl_training.algorithms.scalezero import window_losses
from rl_training.data.batch import WindowBatch
from rl_training.networks.scalezero import Rows, Window
from rl_training.policies.scalezero import ScaleZeroPolicy
from rl_training.policies.search import planner_settings, search_settings
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.grouped_adam import GroupedAdam
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import flatten_parameters
from rl_training.runtime.scalezero_stages import StagedTrainer
from rl_training.runtime.scalezero_tasks import Task
from rl_training.runtime.workflows import Result, train
from rl_training.settings.scalezero import ScaleZeroConfig

LOSSES = ("policy_loss", "value_loss", "reward_loss", "latent_loss")
TRANSFORMER = ("layers", "heads", "experts", "stages", "rank", "lora_alpha")


class ScaleZeroTrainer(StagedTrainer):
    """ScaleZero (Pu et al. 2025): one model for many tasks, on UniZero's transformer (Pu et al. 2024)."""

    config_class: ClassVar[type[ScaleZeroConfig]] = ScaleZeroConfig
    experience = ("draw",)
    revision = 2  # tasks confirm that they are solved, and bootstraps see the context of acting
    transient = ("target_weights",)

    def __init__(self, config: ScaleZeroConfig) -> None:
        super().__init__(config)
        self.optimizer = GroupedAdam(self.agent.network.groups(config.stages))
        followers = self.target.groups(config.stages).items()
        self.target_weights = {name: flatten_parameters(group)[0] for name, group in followers}

    @classmethod
    def make_agent(
        cls, config: ScaleZeroConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> ScaleZeroPolicy:
        assert isinstance(observation_space, spaces.Dict) and isinstance(action_space, spaces.Dict)
        actions = [action_space[name] for name in config.env_ids]
        assert all(isinstance(space, spaces.Discrete) for space in actions)
        return ScaleZeroPolicy(
            config.env_ids,
            [observation_space[name] for name in config.env_ids],
            [int(space.n) for space in actions],  # type: ignore[attr-defined]
            window=config.unroll_steps,
            transformer={name: getattr(config, name) for name in TRANSFORMER}
            | {"hidden": config.expert_size},
            **planner_settings(config, "context_steps", "rescale_by", "staged_encoders"),
        )

    def iterate(self, knobs: Knobs) -> Metrics:
        # Plan for all tasks that are not solved in one search, and store what happened and what the searches found.
        metrics = self.gather(knobs)
        now = knobs.after(metrics.steps)
        self.agent.settings = search_settings(now)  # for evaluations and for loaded policies
        for _ in range(self.updates_due(now.replay_ratio)):
            metrics.add(self.update(now))
        # Solved tasks rest; when enough of them are, the weights that solved them are frozen and an adapter begins.
        self.settle()
        metrics.stand(self.standing())
        return metrics

    def update(self, now: Now) -> dict[str, Any]:
        """One gradient step on a batch of every unsolved task, and the target network a little after it."""
        active = self.active()
        batches = [self.draw(task, now) for task in active]
        numbers = [task.number for task in active]
        # zₜ = rₜ + … + γⁿ vₜ₊ₙ, with v of the target network.
        targets = self.value_targets(active, batches)
        # All positions of the windows at once: latents of what was seen, and the actions taken.
        network = self.agent.network
        latents = [
            network.encode(task.number, batch["obs"], self.stage).view(*batch["acted"].shape, -1)
            for task, batch in zip(active, batches, strict=True)
        ]
        predictions, experts = network.windows(
            numbers, latents, [batch["action"] for batch in batches], self.stage
        )
        # l = Σ over tasks of w (c_p lᵖ + c_v lᵛ + c_r lʳ + c_z lᶻ)
        losses = [self.losses(*each) for each in zip(active, predictions, targets, batches, strict=True)]
        shares = [self.config.task_weights.get(task.name, 1.0) for task in active]
        weighed = [share * self.weighed(each, now) for share, each in zip(shares, losses, strict=True)]
        loss = sum(weighed, torch.zeros(()))
        learning = [f"stage {self.stage}", *(f"task {number}" for number in numbers)]
        learning += ["always"] if "always" in self.optimizer.groups else []
        step = self.optimizer.step(loss, now.learning_rate, now.max_grad_norm, learning)
        for name, weights in self.target_weights.items():
            polyak(weights, self.optimizer.groups[name].parameters, now.tau)
        self.stage_updates += 1
        by_task = {
            f"task/{task.name}/{name}": each[name].item()
            for task, each in zip(active, losses, strict=True)
            for name in LOSSES
        }
        means = {name: float(np.mean([each[name].item() for each in losses])) for name in LOSSES}
        tokens = torch.stack([layer.flatten().bincount(minlength=self.config.experts) for layer in experts])
        more = {
            "loss": loss.item(),
            "visit_entropy": float(np.mean([mean_entropy(b["policy"], b["acted"]) for b in batches])),
            "largest_expert_share": (tokens.amax(1) / tokens.sum(1)).mean().item(),
        }
        return step | means | more | by_task

    def draw(self, task: Task, now: Now) -> WindowBatch:
        return task.draw(self.config.batch_size, now.gamma, self.agent)

    @torch.inference_mode()
    def value_targets(self, tasks: list[Task], batches: list[WindowBatch]) -> list[Tensor]:
        """z [B, K + 1] of each task: returns + discount · v, with the context that acting would have there."""
        asked = [pair for pair in zip(tasks, batches, strict=True) if len(pair[1]["bootstrap"])]
        targets = [batch["returns"].clone() for batch in batches]
        if not asked:  # all windows end with their episodes
            return targets
        steps, network = self.config.context_steps, self.target
        contexts = [
            task.context(batch["bootstrap"], steps, self.agent, network, self.stage) for task, batch in asked
        ]
        rows = Rows(tuple(task.number for task, _ in asked), tuple(len(each[0]) for each in contexts))
        latents, actions, past = (torch.cat(parts) for parts in zip(*contexts, strict=True))
        values = network.values(rows, latents, actions, past, self.stage)
        by_task = dict(zip(rows.tasks, values.split(rows.counts), strict=True))
        for task, batch, target in zip(tasks, batches, targets, strict=True):
            if task.number in by_task:
                bootstraps = batch["discount"] != 0
                target[bootstraps] += batch["discount"][bootstraps] * by_task[task.number]
        return targets

    def losses(
        self, task: Task, predictions: Window, target: Tensor, batch: WindowBatch
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            following = self.target.encode(task.number, batch["next_obs"], self.stage)
        true = (batch["policy"], target, batch["reward"], following.view_as(predictions.latent))
        return window_losses(predictions, true, batch["acted"], batch["known"])

    def weighed(self, losses: dict[str, Tensor], now: Now) -> Tensor:
        loss = now.policy_coef * losses["policy_loss"] + now.vf_coef * losses["value_loss"]
        return loss + now.reward_coef * losses["reward_loss"] + now.latent_coef * losses["latent_loss"]


def train_scalezero(config: ScaleZeroConfig, **options: Any) -> Result:
    """Train ScaleZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
