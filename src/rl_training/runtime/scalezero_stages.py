"""The tasks of a ScaleZero run, and the stages in which its model grows while they are solved one by one.

Dynamic parameter scaling (Pu et al. 2025, arXiv 2509.07945): solved tasks rest; when enough of them are, the weights
that solved them are frozen and an adapter begins.
"""

from __future__ import annotations

import copy

from gymnasium import spaces

from rl_training.algorithms.scalezero import is_solved, stage_is_over
from rl_training.data.experience import whole_updates
from rl_training.data.random_rollout import random_observations
from rl_training.errors import about
from rl_training.policies.scalezero import ScaleZeroPolicy
from rl_training.policies.search import search_settings
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.scalezero_tasks import Task
from rl_training.runtime.trainer import Trainer
from rl_training.settings.scalezero import ScaleZeroConfig
from rl_training.state.leaves import is_whole, require
from rl_training.state.seeding import fold
from rl_training.state.segments import SegmentStore


class StagedTrainer(Trainer[ScaleZeroConfig]):
    """Acting in all tasks, counting the updates that are due, and the turns of stages; what is learned is `iterate`."""

    action_spaces = (spaces.Dict,)
    agent: ScaleZeroPolicy

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
        self.steps = 0  # of the run's budget, those that solved tasks leave out included
        self.updates_owed = 0.0
        self.stage = self.stage_updates = self.newly_solved = 0

    def check_state(self) -> None:
        counts = (self.steps, self.stage_updates, self.newly_solved)
        require(all(map(is_whole, counts)) and 0 <= self.updates_owed < 1, "steps or updates that cannot be")
        require(is_whole(self.stage, high=self.config.stages), "stage: one that there is not")
        for task in self.tasks:
            width = task.noise.shape[1] in (0, self.agent.network.most_actions)
            require(width, f"{task.name}: noise of other actions")
            acts = self.agent.stages[task.number] == self.stage or task.solved
            require(acts, f"{task.name}: it acts with another stage than is learned")

    def seed_normalizer(self) -> None:
        for name, normalizer in zip(self.config.env_ids, self.agent.normalizers, strict=True):
            if normalizer is not None and normalizer.does_something:
                normalizer.update(random_observations(self.config.of_task(name)))

    def keep_segments_in(self, store: SegmentStore) -> None:
        for task in self.tasks:
            task.replay.store = store.part(task.number)

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
            line |= task.standing()
        return line

    def close(self) -> None:
        for task in self.tasks:
            task.environments.close()
