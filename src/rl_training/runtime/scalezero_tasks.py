"""One task of several: its environments, its replay, and whether it is solved."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.scalezero import is_solved
from rl_training.data.batch import WindowBatch
from rl_training.data.collector import check_finite, fresh_where_ended
from rl_training.data.episodes import EpisodeReplay
from rl_training.data.experience import require_known_actions, stacked_frames, step_and_store
from rl_training.envs.making import make_environments
from rl_training.envs.spaces import check_action_space
from rl_training.networks.scalezero import ScaleZeroNetwork
from rl_training.policies.scalezero import ScaleZeroPolicy, TaskPlan
from rl_training.runtime.evaluation import play
from rl_training.settings.scalezero import ScaleZeroConfig
from rl_training.state.leaves import are_finite, is_whole, require
from rl_training.state.seeding import fold
from rl_training.state.stateful import Stateful
from rl_training.trees import tree_map


class Task(Stateful):
    """Where one task is played and remembered; a task that is solved is played and learned from no more."""

    varying = ("noise",)
    transient = ("name", "number", "target", "num_actions", "observation_space", "action_space")

    def __init__(self, config: ScaleZeroConfig, name: str, number: int) -> None:
        alone = config.of_task(name)
        self.name, self.number = name, number
        self.environments = make_environments(alone, alone.num_envs, fold(alone.seed, name), "train")
        lanes = self.environments.lanes
        self.observation_space, self.action_space = lanes.observation_space, lanes.action_space
        check_action_space(self.action_space, f"env_ids: the action of {name!r}", (spaces.Discrete,))
        assert isinstance(self.action_space, spaces.Discrete)
        self.num_actions = int(self.action_space.n)
        self.target = _target(config, name)
        obs = self.environments.obs
        self.replay = EpisodeReplay(
            config.buffer_size,
            obs,
            num_actions=self.num_actions,
            unroll_steps=config.unroll_steps,
            td_steps=config.td_steps,
            stack=stacked_frames(alone, obs),
        )
        self.carry: tuple[Any, ...] = ()  # latents, actions, and how many of both there are
        self.noise = np.zeros((0, 0))  # of the root, of each environment
        self.steps = 0  # taken so far, in all its environments
        self.solved = False
        self.confirmed_at = 0  # updates of its stage when it last was
        self.trial_steps = 0  # taken to confirm it
        self.returns: deque[float] = deque(maxlen=config.solved_episodes)

    def load_state_dict(self, state: dict[str, object]) -> None:
        # Runs of the first revision confirmed nothing.
        super().load_state_dict({"confirmed_at": 0, "trial_steps": 0} | state)

    def check_state(self) -> None:
        counts = (self.steps, self.confirmed_at, self.trial_steps)
        require(all(map(is_whole, counts)) and are_finite(self.returns), "Task: no steps or returns")
        require_known_actions(self.replay, self.environments)
        if self.carry:
            _, actions, past = self.carry
            require(((past >= 0) & (past <= actions.shape[1])).all(), "Task.carry: no number of steps")
            require(((actions >= 0) & (actions < self.num_actions)).all(), "Task.carry: unknown actions")
        rows = self.noise.ndim == 2 and len(self.noise) in (0, self.environments.count)
        require(rows and self.noise.dtype == np.float64 and np.isfinite(self.noise).all(), "Task.noise: none")

    def step(self, plan: TaskPlan, agent: ScaleZeroPolicy) -> None:
        """Do what was planned, and remember it."""
        acted = {"action": plan.action, "policy": plan.policy}
        step = step_and_store(self.environments, self.replay, acted)
        rows = {"obs": step.next_obs, "reward": step.reward}
        check_finite(tree_map(lambda row: np.asarray(row)[None], rows), self.environments.count)
        # Copies: what a search leaves behind cannot be written to when a run is resumed.
        carry = tuple(part.clone() for part in plan.carry)
        self.carry = fresh_where_ended(agent.for_task(self.name), carry, step.ended)
        normalizer = agent.normalizers[self.number]
        if normalizer is not None:
            normalizer.update(step.next_obs)
        self.steps += self.environments.count

    def draw_noise(self, num_actions: int, persistence: float) -> np.ndarray:
        """Gumbel noise [B, A] for the next searches; that of the step before stays with probability `persistence`."""
        fresh = np.random.gumbel(size=(self.environments.count, num_actions))
        if persistence and len(self.noise):
            stays = np.random.random(len(fresh)) < persistence
            fresh[stays] = self.noise[stays]
        self.noise = fresh
        return fresh

    def draw(self, batch_size: int, gamma: float, agent: ScaleZeroPolicy) -> WindowBatch:
        """Windows, rows first, with what was seen there as the network's tensors."""
        batch = self.replay.sample(batch_size, gamma)
        places = batch["places"].T
        windows: Any = {
            name: part.transpose(0, 1).to(agent.device)
            for name, part in batch.items()
            if isinstance(part, Tensor)
        }
        windows["obs"] = self.seen(places, agent)
        windows["next_obs"] = self.seen(places[:, 1:], agent)
        windows["bootstrap"] = batch["bootstrap"].T[(batch["discount"].T != 0).numpy()]
        return windows

    def seen(self, places: np.ndarray, agent: ScaleZeroPolicy) -> Any:
        """What was seen at places [...] of the replay, as the network's tensors [N, ...]."""
        return agent.inputs(self.number, self.replay.seen_at(places.reshape(-1)))

    def context(
        self, places: np.ndarray, steps: int, agent: ScaleZeroPolicy, network: ScaleZeroNetwork, stage: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latents [N, c + 1, D] by `network`, actions [N, c] and how many there are [N], up to places [N] of the
        replay: as acting, which looks back c = `steps` steps, has them there.

        What several rows look back on is encoded once.
        """
        behind, actions, past = self.replay.before(places, steps)
        several, index = np.unique(behind, return_inverse=True)
        latents = network.encode(self.number, self.seen(several, agent), stage)
        arrays = (index.reshape(behind.shape), actions, past)
        which, taken, count = (torch.from_numpy(array).to(agent.device) for array in arrays)
        return latents[which], taken, count

    def confirms(self, agent: ScaleZeroPolicy, config: ScaleZeroConfig, seed: int) -> bool:
        """Whether greedy episodes, in environments of their own, reach the target as well.

        Exploration breaks loops that a greedy policy runs in forever. They are played within an iteration, so that
        nothing of them is to be saved but how many steps they took.
        """
        if not config.confirm_episodes:
            return True
        assert self.target is not None
        alone = config.of_task(self.name)
        settings = dict(episodes=config.confirm_episodes, seed=seed, sample=False)
        played = play(agent.for_task(self.name), alone, **settings)  # type: ignore[arg-type]
        self.trial_steps += sum(length for _, length in played)
        self.returns.clear()  # the next time is not before as many training episodes
        return is_solved([returned for returned, _ in played], self.target, config.confirm_episodes)

    def take_finished(self) -> list[tuple[int, float, int]]:
        """The episodes that ended since this was last asked."""
        finished = self.environments.take_finished()
        self.returns.extend(returned for _, returned, *_ in finished)
        return finished

    def standing(self) -> dict[str, float]:
        """What a log line says of it."""
        line: dict[str, float] = {"steps": self.steps, "solved": int(self.solved)}
        if self.returns:
            line["episode_return"] = float(np.mean(self.returns))
        return {f"task/{self.name}/{name}": value for name, value in line.items()}


def _target(config: ScaleZeroConfig, name: str) -> float | None:
    """The return at which a task counts as solved: the config's, or that which its environment was registered with."""
    if name in config.solved_returns:
        return config.solved_returns[name]
    spec = gym.registry.get(name.split(":")[-1])
    return None if spec is None else spec.reward_threshold
