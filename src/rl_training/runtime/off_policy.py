"""Base of the replay family: stepping, storing transitions, and counting the updates that are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import mask_of, pick_allowed
from rl_training.data.batch import Batch, TransitionBatch, on_device
from rl_training.data.collector import check_finite
from rl_training.data.experience import (
    require_known_actions,
    stacked_frames,
    step_and_store,
    whole_updates,
)
from rl_training.data.replay import Replay
from rl_training.envs.action_masks import refuse_empty_masks
from rl_training.envs.environments import Arguments, Environments, Step
from rl_training.envs.making import make_environments
from rl_training.kernels.exact import is_ours, unchanging
from rl_training.policies.gathering import WholeSteps
from rl_training.runtime.controls import Knobs, Now
from rl_training.runtime.metrics import Metrics, returns_by_agent
from rl_training.runtime.trainer import EVALUATIONS, PYTHON, ROLLOUTS, Trainer
from rl_training.runtime.updates import COMPILED
from rl_training.settings.families import OffPolicyConfig
from rl_training.state.leaves import is_whole, require
from rl_training.state.segments import SegmentStore
from rl_training.trees import Arrays, tree_map

STEPPING = ("step", "choose", "explore", "random_share")  # all between the policy and the replay

OffPolicyT = TypeVar("OffPolicyT", bound=OffPolicyConfig)


class OffPolicyTrainer(Trainer[OffPolicyT]):
    """Environments and a replay of what happened in them; what is learned from it is the algorithm's own `iterate`."""

    transient: tuple[str, ...] = ("whole",)
    experience = ("_take_whole", "_take_steps", "draw", "on_device")
    replay: Any  # a Replay or a StreamReplay: each algorithm says which

    def __init__(self, config: OffPolicyT, **replay: Any) -> None:
        environments = make_environments(config, config.num_envs, config.seed, "train")
        super().__init__(config, environments.lanes.observation_space, environments.lanes.action_space)
        self.environments = environments
        stack = stacked_frames(config, environments.obs)
        self.replay = self.make_replay(environments.obs, stack=stack, **replay)
        self.whole = self.whole_steps()  # an iteration's steps in one call, where that can be
        self.steps = 0  # taken so far
        self.updates_owed = 0.0

    def check_state(self) -> None:
        require(is_whole(self.steps) and 0 <= self.updates_owed < 1, "steps or updates that cannot be")
        require_known_actions(self.replay, self.environments)

    def make_replay(self, obs: Arrays, **settings: Any) -> Replay:
        return Replay(self.config.buffer_size, obs, **settings)

    def keep_segments_in(self, store: SegmentStore) -> None:
        self.replay.store = store

    def whole_steps(self) -> WholeSteps | None:
        """Steps in compiled code, if nothing between the policy and the replay is of a subclass from elsewhere."""
        return self.agent.whole_steps(self.environments) if is_ours(self, "rl_training.", *STEPPING) else None

    def _taken_whole(self) -> WholeSteps | None:
        """What takes them now: a replay of another class or a method, which may have been put there since, is asked."""
        known = type(self.replay) is Replay and is_ours(self, "rl_training.", *STEPPING)
        return self.whole if known else None

    @property
    def takes_whole_steps(self) -> bool:
        whole = self._taken_whole()
        return whole is not None and whole.is_ready

    def paths(self) -> dict[str, str]:
        rollouts = COMPILED if self.takes_whole_steps else PYTHON
        evaluations = PYTHON if EVALUATIONS in self.as_begun else rollouts
        return super().paths() | {ROLLOUTS: rollouts, EVALUATIONS: evaluations}

    def keep_to(self, paths: Mapping[str, str]) -> None:
        super().keep_to(paths)
        if paths.get(ROLLOUTS) != COMPILED:
            self.whole = None

    def gather(self, knobs: Knobs) -> Metrics:
        """Take the iteration's steps and remember them."""
        config = self.config
        led_to = self._take_whole(knobs) or self._take_steps(knobs)
        check_finite(led_to, config.num_envs)
        metrics = Metrics(config.steps_per_iteration, self.environments.take_finished())
        metrics.add(returns_by_agent(self.environments.agents, metrics.episodes))
        return metrics

    def _take_steps(self, knobs: Knobs) -> Batch:
        """One by one; what they led to, [T, B, ...]."""
        led_to: list[Batch] = []
        with unchanging(self.agent):
            for t in range(self.config.train_frequency):
                step = self.step(knobs, t * self.config.num_envs)
                led_to.append({"obs": step.next_obs, "reward": step.reward})
                self.agent.observe(step.next_obs)
                self.steps += self.config.num_envs
        stacked: Batch = tree_map(lambda *rows: np.array(rows), *led_to)
        return stacked

    def _take_whole(self, knobs: Knobs) -> Batch | None:
        """The same in one call of compiled code; None where that cannot be."""
        whole = self._taken_whole()
        if whole is None:
            return None
        taken = self.config.num_envs * np.arange(self.config.train_frequency)
        shares = [
            1.0 if self.steps + t < self.config.learning_starts else self.random_share(knobs.after(t))
            for t in taken.tolist()
        ]
        columns = whole(np.array(shares))
        if columns is None:
            return None
        self.replay.extend(**columns)
        self.steps += self.config.steps_per_iteration
        return {"obs": columns["next_obs"], "reward": columns["reward"]}

    def step(self, knobs: Knobs, taken: int) -> Step:
        """Act once in every environment, `taken` steps into the iteration, and remember it."""
        acted = self.choose(self.environments.obs, knobs, taken)
        return step_and_store(self.environments, self.replay, acted)

    def choose(self, obs: Arrays, knobs: Knobs, taken: int) -> dict[str, np.ndarray]:
        """The `action` to take `taken` steps into the iteration, and what else the replay keeps beside it.

        At random until `learning_starts`.
        """
        if self.steps < self.config.learning_starts:
            return {"action": random_actions(self.action_space, self.config.num_envs, obs)}
        return {"action": self.explore(obs, knobs.after(taken))}

    def explore(self, obs: Arrays, now: Now) -> np.ndarray:
        """The actions to take in training."""
        return self.agent.act(obs, (), explore=True)[0]["action"]

    def random_share(self, now: Now) -> float:
        """The probability with which `explore` takes an action at random."""
        return 0.0

    def updates_due(self, replay_ratio: float) -> int:
        """How many updates this iteration's steps pay for; fractions are owed to the next one.

        None while there is nothing to learn from: transitions of n steps are complete n steps later.
        """
        if self.steps < self.config.learning_starts or not len(self.replay):
            return 0
        paid = replay_ratio * self.config.steps_per_iteration
        due, self.updates_owed = whole_updates(self.updates_owed + paid)
        return due

    def on_device(self, batch: TransitionBatch) -> TransitionBatch:
        """Transitions as the networks' tensors, their observations normalised."""
        obs, next_obs = self.agent.inputs(batch["obs"]), self.agent.inputs(batch["next_obs"])
        seen: TransitionBatch = {**batch, "obs": obs, "next_obs": next_obs}
        return on_device(seen, self.agent.device)

    def largest_reward(self) -> float | None:
        return self.replay.largest_reward()

    def begin_with(self, arguments: Arguments) -> None:
        assert isinstance(self.environments, Environments)  # compiled ones refuse arguments that move
        self.environments.begin_with(arguments)

    def close(self) -> None:
        self.environments.close()


def random_actions(space: spaces.Space, count: int, obs: Arrays) -> np.ndarray:
    """Uniform actions in model space: an allowed index of a Discrete, [-1, 1] in every dimension of a Box."""
    if isinstance(space, spaces.Discrete):
        mask = mask_of(obs)
        if mask is not None:
            refuse_empty_masks(obs, (int(space.n),))
            return pick_allowed(np.random.random(count), mask)
        return np.random.randint(int(space.n), size=count)
    assert isinstance(space, spaces.Box)
    return np.random.uniform(-1.0, 1.0, (count, int(np.prod(space.shape)))).astype(np.float32)
