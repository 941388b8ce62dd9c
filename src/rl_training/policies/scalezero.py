"""ScaleZero's policy: one search for the observations of several tasks, and the policy of one task for all else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.gumbel_muzero import mixed_prior
from rl_training.algorithms.masking import mask_of
from rl_training.data.collector import Carry
from rl_training.data.normalization import ObservationNormalizer
from rl_training.envs.action_masks import refuse_empty_masks
from rl_training.errors import ConfigError, did_you_mean
from rl_training.networks.scalezero import Rows, ScaleZeroNetwork
from rl_training.policies.search import QUIET, check_search_settings, dirichlet_noise
from rl_training.search import Root, gumbel_muzero_search
from rl_training.state.leaves import is_whole, require
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, tree_map


class TaskPlan(NamedTuple):
    """What a search makes of one task's B observations."""

    action: np.ndarray  # [B]
    policy: np.ndarray  # [B, A], what the network shall learn
    value: np.ndarray  # [B]
    carry: Carry


class ScaleZeroPolicy(Stateful):
    """The model and how it is searched, for all tasks. A policy of one task is `for_task`.

    `stages` are the stages of the model that the tasks act with: that in which a task was solved, or the present one.
    """

    transient = (
        *("device", "tasks", "num_actions", "num_stages", "context_steps"),
        *("first_settings", "max_depth", "most_simulations", "rescale_by"),
    )

    def __init__(
        self,
        tasks: Sequence[str],
        observation_spaces: Sequence[spaces.Space],
        num_actions: Sequence[int],
        *,
        normalize_observations: bool,
        device: str,
        context_steps: int,
        settings: dict[str, float],
        most_simulations: int,
        rescale_by: str,
        **network: Any,
    ) -> None:
        self.device = torch.device(device)
        self.tasks, self.num_actions, self.context_steps = tuple(tasks), tuple(num_actions), context_steps
        self.settings: dict[str, Any] = settings
        self.first_settings, self.most_simulations = dict(settings), most_simulations
        self.rescale_by = rescale_by
        self.num_stages = network["transformer"]["stages"]
        # Beyond the window that it learns from, the model knows no positions.
        self.max_depth = network["window"] - context_steps
        self.network = ScaleZeroNetwork(observation_spaces, num_actions, **network).to(self.device)
        self.normalizers = [
            ObservationNormalizer(space) if normalize_observations else None for space in observation_spaces
        ]
        self.stages = [0] * len(self.tasks)

    def check_state(self) -> None:
        check_search_settings(self.settings, self.first_settings, self.most_simulations)
        stages = all(is_whole(stage, high=self.num_stages) for stage in self.stages)
        require(stages and len(self.stages) == len(self.tasks), "stages: not one of each task")

    def for_task(self, name: str) -> TaskPolicy:
        if name not in self.tasks:
            hint = did_you_mean(name, self.tasks) or f"; there are: {', '.join(self.tasks)}"
            raise ConfigError(f"this policy has no task {name!r}{hint}")
        return TaskPolicy(self, self.tasks.index(name))

    def inputs(self, task: int, obs: Arrays) -> Any:
        """A task's raw observations as the network's tensors."""
        normalizer = self.normalizers[task]
        if normalizer is not None:
            obs = normalizer(tree_map(np.asarray, obs))
        return tree_map(lambda column: torch.as_tensor(column, device=self.device), obs)

    def initial(self, count: int) -> Carry:
        """The latents and the actions of the last steps, and how many there are; nothing where none are looked at."""
        if self.context_steps == 0:
            return ()
        latents = torch.zeros(count, self.context_steps, self.network.latent_size, device=self.device)
        actions = torch.zeros(count, self.context_steps, dtype=torch.int64, device=self.device)
        return latents, actions, torch.zeros(count, dtype=torch.int64, device=self.device)

    @torch.inference_mode()
    def plan(
        self,
        tasks: Sequence[int],
        obs: Sequence[Arrays],
        carries: Sequence[Carry],
        noise: Sequence[np.ndarray] | None = None,
        **settings: float,
    ) -> list[TaskPlan]:
        """Search from raw observations [B, ...] of tasks that act with the same stage, all of them at once.

        settings: what `search_settings` gives; where a name is left out, as training searched last
        noise:    Gumbel(0) noise [B, A] of each task, A being the most actions that a task has; none: drawn here
        """
        settings = self.settings | settings
        temperature, fraction = settings["temperature"], settings["root_exploration_fraction"]
        (stage,) = {self.stages[task] for task in tasks}
        weights = self.network.weights(stage)
        latents = [
            self.network.encode(task, self.inputs(task, seen), stage)
            for task, seen in zip(tasks, obs, strict=True)
        ]
        rows = Rows(tuple(tasks), tuple(len(part) for part in latents))
        root = Root(*self.network.initial(rows, *self._remember(torch.cat(latents), carries), weights))
        discount = torch.full_like(root.value, settings["gamma"])

        def recurrent(node: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
            reward, logits, value, node = self.network.recurrent(rows, node, action, weights)
            return reward, discount, logits, value, node

        invalid = np.concatenate([self._invalid(*each) for each in zip(tasks, obs, rows.counts, strict=True)])
        shape = root.prior_logits.shape
        if noise is None:  # nothing is drawn where nothing is random
            gumbel = np.random.gumbel(size=shape) if temperature else np.zeros(shape)
        else:
            gumbel = np.concatenate(noise)
        if fraction:
            drawn = dirichlet_noise(invalid.shape, invalid, settings["dirichlet_alpha"])
            favour = torch.from_numpy(drawn).to(root.prior_logits)
            forbidden = torch.from_numpy(invalid).to(self.device)
            mixed = mixed_prior(root.prior_logits, favour, fraction, forbidden)
            root = root._replace(prior_logits=mixed)
        result = gumbel_muzero_search(
            root,
            recurrent,
            num_simulations=int(settings["num_simulations"]),
            gumbel=gumbel * temperature,
            max_considered_actions=int(settings["max_considered_actions"]),
            c_visit=settings["c_visit"],
            c_scale=settings["c_scale"],
            rescale_by=self.rescale_by,
            invalid_actions=invalid,
            max_depth=self.max_depth,
        )
        columns = (result.action, result.action_weights, result.value, torch.cat(latents))
        by_task = zip(tasks, carries, *(column.split(rows.counts) for column in columns), strict=True)
        return [
            TaskPlan(
                action.cpu().numpy(),
                policy[:, : self.num_actions[task]].cpu().numpy(),
                value.cpu().numpy(),
                followed(carry, latent, action),
            )
            for task, carry, action, policy, value, latent in by_task
        ]

    def _remember(self, latent: Tensor, carries: Sequence[Carry]) -> tuple[Tensor, Tensor, Tensor]:
        """The last steps and then the present latents [N, D], as `ScaleZeroNetwork.initial` takes them."""
        if self.context_steps == 0:
            none = torch.zeros(len(latent), 0, dtype=torch.int64, device=self.device)
            return latent[:, None], none, none.sum(1)
        latents, actions, past = (torch.cat(parts) for parts in zip(*carries, strict=True))
        latents = torch.cat([latents, latents[:, :1]], 1)
        latents[torch.arange(len(latent)), past] = latent
        return latents, actions, past

    def _invalid(self, task: int, obs: Arrays, count: int) -> np.ndarray:
        """[B, A], true for actions that the task has not or that its masks forbid."""
        invalid = np.ones((count, self.network.most_actions), np.bool_)
        invalid[:, : self.num_actions[task]] = False
        mask = mask_of(obs)
        if mask is not None:
            refuse_empty_masks(obs, (self.num_actions[task],))
            invalid[:, : self.num_actions[task]] |= np.asarray(mask) == 0
        return invalid


class TaskPolicy:
    """The policy of one task, as the collector, the evaluation and `load_policy` know policies."""

    def __init__(self, policy: ScaleZeroPolicy, task: int) -> None:
        self.policy, self.task = policy, task

    @property
    def settings(self) -> dict[str, Any]:
        return self.policy.settings

    def for_task(self, name: str) -> TaskPolicy:
        return self.policy.for_task(name)

    def initial(self, count: int) -> Carry:
        return self.policy.initial(count)

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        settings = self.settings | ({} if explore else QUIET)
        (plan,) = self.policy.plan([self.task], [obs], [carry], **settings)
        return {"action": plan.action}, plan.carry

    @torch.inference_mode()
    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        """The network's own values of raw observations [N, ...] → [N], without what came before them."""
        policy, stage = self.policy, self.policy.stages[self.task]
        latent = policy.network.encode(self.task, policy.inputs(self.task, obs), stage)
        rows = Rows((self.task,), (len(latent),))
        none = torch.zeros(len(latent), 0, dtype=torch.int64, device=policy.device)
        return policy.network.values(rows, latent[:, None], none, none.sum(1), stage).cpu().numpy()


def followed(carry: Carry, latent: Tensor, action: Tensor) -> Carry:
    """The carry after one more step; the oldest of its steps is dropped where it is full."""
    if not carry:
        return carry
    latents, actions, past = (part.clone() for part in carry)
    full = past == latents.shape[1]
    latents[full], actions[full] = latents[full].roll(-1, 1), actions[full].roll(-1, 1)
    rows, place = torch.arange(len(past), device=past.device), past - full.long()
    latents[rows, place], actions[rows, place] = latent, action
    return latents, actions, place + 1
