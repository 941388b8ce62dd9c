"""ScaleZero: its config, its iteration, and `train_scalezero`."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.gumbel_muzero import improved_policy_loss
from rl_training.algorithms.muzero import mean_entropy, two_hot_loss
from rl_training.algorithms.sac import polyak
from rl_training.algorithms.scalezero import is_solved, latent_loss, mean_where, stage_is_over
from rl_training.data.batch import WindowBatch
from rl_training.data.experience import whole_updates
from rl_training.data.random_rollout import random_observations
from rl_training.errors import about
from rl_training.networks.encoders import Own
from rl_training.networks.scalezero import Rows, Window
from rl_training.policies.scalezero import ScaleZeroPolicy
from rl_training.policies.search import most_simulations, search_settings
from rl_training.runtime.controls import Controls, Knobs, Now
from rl_training.runtime.grouped_adam import GroupedAdam
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import flatten_parameters
from rl_training.runtime.scalezero_tasks import Task
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.workflows import Result, train
from rl_training.settings.scalezero import ScaleZeroConfig
from rl_training.state.leaves import is_whole, require
from rl_training.state.seeding import fold
from rl_training.state.segments import SegmentStore

LOSSES = ("policy_loss", "value_loss", "reward_loss", "latent_loss")
TRANSFORMER = ("layers", "heads", "experts", "stages", "rank", "lora_alpha")


class ScaleZeroTrainer(Trainer[ScaleZeroConfig]):
    """ScaleZero (Pu et al. 2025): one model for many tasks, on UniZero's transformer (Pu et al. 2024)."""

    config_class: ClassVar[type[ScaleZeroConfig]] = ScaleZeroConfig
    action_spaces = (spaces.Dict,)
    experience = ("draw",)
    agent: ScaleZeroPolicy
    revision = 2  # tasks confirm that they are solved, and bootstraps see the context of acting
    transient = ("target_weights",)

    def __init__(self, config: ScaleZeroConfig) -> None:
        tasks = []
        for number, name in enumerate(config.env_ids):
            with about("env_ids", number, of="env_id"):
                tasks.append(Task(config, name, number))
        observation, action = (
            spaces.Dict({task.name: getattr(task, f"{kind}_space") for task in tasks})
            for kind in ("observation", "action")
        )
        super().__init__(config, observation, action)
        self.tasks = tasks
        for task in tasks:
            task.carry = self.agent.initial(config.num_envs)
        self.target = copy.deepcopy(self.agent.network).requires_grad_(False)
        self.optimizer = GroupedAdam(self.agent.network.groups(config.stages))
        followers = self.target.groups(config.stages).items()
        self.target_weights = {name: flatten_parameters(group)[0] for name, group in followers}
        self.steps = 0  # of the run's budget, those that solved tasks leave out included
        self.updates_owed = 0.0
        self.stage = self.stage_updates = self.newly_solved = 0

    def seed_normalizer(self) -> None:
        for name, normalizer in zip(self.config.env_ids, self.agent.normalizers, strict=True):
            if normalizer is not None and normalizer.does_something:
                normalizer.update(random_observations(self.config.of_task(name)))

    @classmethod
    def make_agent(
        cls, config: ScaleZeroConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> ScaleZeroPolicy:
        assert isinstance(observation_space, spaces.Dict) and isinstance(action_space, spaces.Dict)
        names = ("normalize_observations", "device", "context_steps", "latent_size", "rescale_by")
        network = ("hidden_sizes", "activation", "image_encoder", "support_size")
        actions = [action_space[name] for name in config.env_ids]
        assert all(isinstance(space, spaces.Discrete) for space in actions)
        return ScaleZeroPolicy(
            config.env_ids,
            [observation_space[name] for name in config.env_ids],
            [int(space.n) for space in actions],  # type: ignore[attr-defined]
            settings=search_settings(Controls.of(config).at(0).after(0)),
            most_simulations=most_simulations(config),
            window=config.unroll_steps,
            staged_encoders=config.staged_encoders,
            own=Own(config.network, config.encoder),
            transformer={name: getattr(config, name) for name in TRANSFORMER}
            | {"hidden": config.expert_size},
            **{name: getattr(config, name) for name in (*names, *network)},
        )

    def check_state(self) -> None:
        counts = (self.steps, self.stage_updates, self.newly_solved)
        require(all(map(is_whole, counts)) and 0 <= self.updates_owed < 1, "steps or updates that cannot be")
        require(is_whole(self.stage, high=self.config.stages), "stage: one that there is not")
        for task in self.tasks:
            width = task.noise.shape[1] in (0, self.agent.network.most_actions)
            require(width, f"{task.name}: noise of other actions")
            acts = self.agent.stages[task.number] == self.stage or task.solved
            require(acts, f"{task.name}: it acts with another stage than is learned")

    def keep_segments_in(self, store: SegmentStore) -> None:
        for task in self.tasks:
            task.replay.store = store.part(task.number)

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

    def gather(self, knobs: Knobs) -> Metrics:
        config, active = self.config, self.active()
        per_step = config.num_envs * len(self.tasks)
        for t in range(config.train_frequency):
            now = knobs.after(t * per_step)
            if active:
                obs, carries = zip(*((task.environments.obs, task.carry) for task in active), strict=True)
                most, persistence = self.agent.network.most_actions, now.noise_persistence
                noise = [task.draw_noise(most, persistence) for task in active]
                numbers = [task.number for task in active]
                plans = self.agent.plan(numbers, obs, carries, **search_settings(now), noise=noise)
                for task, plan in zip(active, plans, strict=True):
                    task.step(plan, self.agent)
            self.steps += per_step
        finished = [episode for task in active for episode in task.take_finished()]
        return Metrics(config.steps_per_iteration, finished)

    def active(self) -> list[Task]:
        return [task for task in self.tasks if not task.solved]

    def updates_due(self, replay_ratio: float) -> int:
        """How many updates this iteration's steps pay for; none while a task has nothing to learn from."""
        active = self.active()
        if self.steps < self.config.learning_starts or not active or not all(len(t.replay) for t in active):
            return 0
        paid = replay_ratio * self.config.steps_per_iteration
        due, self.updates_owed = whole_updates(self.updates_owed + paid)
        return due

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
        """Windows of one task, rows first, with what was seen there as the network's tensors."""
        batch = task.replay.sample(self.config.batch_size, now.gamma)
        places = batch["places"].T
        windows: Any = {
            name: part.transpose(0, 1).to(self.agent.device)
            for name, part in batch.items()
            if isinstance(part, Tensor)
        }
        windows["obs"] = self.seen(task, places)
        windows["next_obs"] = self.seen(task, places[:, 1:])
        windows["bootstrap"] = batch["bootstrap"].T[(batch["discount"].T != 0).numpy()]
        return windows

    def seen(self, task: Task, places: np.ndarray) -> Any:
        return self.agent.inputs(task.number, task.replay.seen_at(places.reshape(-1)))

    @torch.inference_mode()
    def value_targets(self, tasks: list[Task], batches: list[WindowBatch]) -> list[Tensor]:
        """z [B, K + 1] of each task: returns + discount · v, with the context that acting would have there."""
        asked = [pair for pair in zip(tasks, batches, strict=True) if len(pair[1]["bootstrap"])]
        targets = [batch["returns"].clone() for batch in batches]
        if not asked:  # all windows end with their episodes
            return targets
        contexts = [self.context(task, batch["bootstrap"]) for task, batch in asked]
        rows = Rows(tuple(task.number for task, _ in asked), tuple(len(each[0]) for each in contexts))
        latents, actions, past = (torch.cat(parts) for parts in zip(*contexts, strict=True))
        values = self.target.values(rows, latents, actions, past, self.stage)
        by_task = dict(zip(rows.tasks, values.split(rows.counts), strict=True))
        for task, batch, target in zip(tasks, batches, targets, strict=True):
            if task.number in by_task:
                bootstraps = batch["discount"] != 0
                target[bootstraps] += batch["discount"][bootstraps] * by_task[task.number]
        return targets

    def context(self, task: Task, places: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, actions and how many there are, up to places [N] of a task's replay: as acting has them there.

        What several rows look back on is encoded once.
        """
        behind, actions, past = task.replay.before(places, self.config.context_steps)
        several, index = np.unique(behind, return_inverse=True)
        latents = self.target.encode(task.number, self.seen(task, several), self.stage)
        device = self.agent.device
        which = torch.from_numpy(index.reshape(behind.shape)).to(device)
        return latents[which], torch.from_numpy(actions).to(device), torch.from_numpy(past).to(device)

    def losses(
        self, task: Task, predictions: Window, target: Tensor, batch: WindowBatch
    ) -> dict[str, Tensor]:
        """Each over all positions where it is known: past an episode's end nothing is earned and nothing changes."""
        with torch.no_grad():
            following = self.target.encode(task.number, batch["next_obs"], self.stage)
            following = following.view_as(predictions.latent)
        known = batch["known"]
        return {
            "policy_loss": mean_where(
                improved_policy_loss(predictions.policy, batch["policy"]), batch["acted"]
            ),
            "value_loss": mean_where(two_hot_loss(predictions.value, target), known),
            # A reward, and where an action leads, are known where the position before it is.
            "reward_loss": mean_where(two_hot_loss(predictions.reward, batch["reward"]), known[:, :-1]),
            "latent_loss": mean_where(latent_loss(predictions.latent, following), known[:, :-1]),
        }

    def weighed(self, losses: dict[str, Tensor], now: Now) -> Tensor:
        loss = now.policy_coef * losses["policy_loss"] + now.vf_coef * losses["value_loss"]
        return loss + now.reward_coef * losses["reward_loss"] + now.latent_coef * losses["latent_loss"]

    def settle(self) -> None:
        """Let solved tasks rest, wake those that are no longer, and begin the next stage when its turn has come."""
        config = self.config
        if len(self.active()) > 1 and self.stage == 0 and self.stage_updates < config.stage_min_updates:
            return  # what one task rests on would go on learning from the others
        for task in self.active():
            if is_solved(task.returns, task.target, config.solved_episodes) and self.confirms(task):
                task.solved = True
                self.newly_solved += 1
        if self.active() and self.stage_is_over():
            self.withdraw(0)
        elif self.active():
            self.withdraw(config.confirm_interval)
        left = self.active()
        if left and self.stage_is_over():
            self.stage, self.stage_updates, self.newly_solved = self.stage + 1, 0, 0
            for network in (self.agent.network, self.target):
                network.begin(self.stage)
            for task in left:  # the others go on acting with the stage that solved them
                self.agent.stages[task.number] = self.stage

    def stage_is_over(self) -> bool:
        config = self.config
        return stage_is_over(
            self.stage,
            config.stages,
            updates=self.stage_updates,
            newly_solved=self.newly_solved,
            unsolved=len(self.active()),
            least_updates=config.stage_min_updates,
            most_updates=config.stage_max_updates,
        )

    def confirms(self, task: Task) -> bool:
        task.confirmed_at = self.stage_updates
        return task.confirms(
            self.agent, self.config, fold(self.config.seed, "confirm", task.name, self.steps)
        )

    def withdraw(self, interval: int) -> None:
        """Tasks whose weights learned for more updates than that since they were solved confirm it, or learn again."""
        for task in self.tasks:
            still = task.solved and self.agent.stages[task.number] == self.stage
            if still and self.stage_updates - task.confirmed_at > interval and not self.confirms(task):
                task.solved = False
                self.newly_solved -= 1

    def standing(self) -> dict[str, float]:
        """What a log line says as it stands, and not as a mean since the last one."""
        taken = sum(task.steps + task.trial_steps for task in self.tasks)
        line = {"stage": self.stage, "env_steps": taken, "saved_share": 1 - taken / max(self.steps, 1)}
        for task in self.tasks:
            line |= {f"task/{task.name}/steps": task.steps, f"task/{task.name}/solved": int(task.solved)}
            if task.returns:
                line[f"task/{task.name}/episode_return"] = float(np.mean(task.returns))
        return line

    def close(self) -> None:
        for task in self.tasks:
            task.environments.close()


def train_scalezero(config: ScaleZeroConfig, **options: Any) -> Result:
    """Train ScaleZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
