"""Collector: runs a policy in environments and returns rollouts [T, B]."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.data.batch import Batch, Rollout
from rl_training.envs.compiled import AnyEnvironments
from rl_training.envs.environments import Step
from rl_training.errors import NonFiniteError
from rl_training.kernels.exact import unchanging
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, Tensors, put_rows, tree_leaves, tree_map

Carry = tuple[Tensor, ...]
LARGEST_REWARD = float(
    np.sqrt(np.finfo(np.float32).max)
)  # 1.8e19, of either sign: its square is still finite


class Policy(Protocol):
    """Acting: what the collector and the evaluation need of an agent.

    `carry` is what a policy remembers from step to step, tensors [B, ...]; () for feed-forward networks.
    """

    def initial(self, count: int) -> Carry:
        """The carry of `count` episodes that begin."""

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        """Raw observations [B, ...] → arrays [B, ...], the model-space `action` among them, and the next carry."""

    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        """The values of raw observations [N, ...] → [N], where the policy has a critic."""


class Rollouts(Protocol):
    """A policy and environments that take T steps in one call."""

    @property
    def is_ready(self) -> bool:
        """Whether they can now."""

    def __call__(self, num_steps: int) -> Batch | None:
        """The columns of T steps in all environments, `next_value` among them; None where they cannot now."""


class RolloutPolicy(Policy, Protocol):
    """What the collector needs besides."""

    def whole_rollouts(self, environments: AnyEnvironments, greedy: bool = False) -> Rollouts | None:
        """What takes all steps in one call, with greedy actions if asked to; None where nothing can."""


class Cut(NamedTuple):
    """Where a time limit ended episodes: the step, the lanes, and their final observations and carries."""

    t: int
    lanes: np.ndarray
    obs: Arrays
    carry: Carry


class Exportable(Protocol):
    """What `rl-training export` needs besides: the greedy policy in tensors, from normalised inputs."""

    greedy_leaves_out: str  # what of acting is no part of `greedy`, such as a search; "" if nothing
    num_draws: int  # random numbers that it needs for a row

    def greedy(
        self, inputs: Tensors, carry: Carry, *noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Carry]:
        """Inputs [B, ...] and memory → model-space actions, by name what they were chosen by (first the scores of
        choices, if there are some), and the next memory. `noise` [B, n] in [0, 1) where there are draws."""

    def acting_carry(self, carry: Carry) -> Carry:
        """The part of a carry that choosing actions needs."""


class Collector(Stateful):
    """Steps a policy in environments; what the policy carries across rollouts is kept here."""

    transient = ("columns", "rollout", "whole")

    def __init__(self, environments: AnyEnvironments, policy: RolloutPolicy) -> None:
        self.environments = environments
        self.carry = policy.initial(environments.count)
        self.columns: Batch = {}  # allocated once: a rollout is valid until the next one
        self.rollout: Rollout | None = None  # the columns of a whole rollout as tensors
        self.whole = policy.whole_rollouts(environments)  # all steps in one call, where that can be

    def collect(self, policy: Policy, num_steps: int) -> Rollout:
        """Run `policy` for T steps in all B environments.

        Gives `obs`, `action` and all else the policy put out, `reward`, `terminated`, `truncated`, each
        [T, B, ...], and, for a policy with values, `next_value`: the value of where each action led.
        """
        whole = None if self.whole is None else self.whole(num_steps)
        if whole is not None:
            check_finite(whole, self.environments.count)
            if self.rollout is None or whole is not self.columns:
                self.columns, self.rollout = whole, in_tensors(whole)
            return self.rollout.copy()
        cut = self.gather(policy, num_steps)
        rollout = in_tensors(self.columns)
        if "value" in rollout:
            rollout["next_value"] = torch.from_numpy(self._next_value(policy, cut))
        return rollout

    def gather(self, policy: Policy, num_steps: int) -> list[Cut]:
        """The same steps, into `columns`; returned is where time limits cut episodes, and what was seen there."""
        environments = self.environments
        cut: list[Cut] = []
        with unchanging(policy):
            for t in range(num_steps):
                obs = environments.obs
                acted, self.carry = policy.act(obs, self.carry, explore=True)
                step = environments.step(acted["action"])
                self._store(t, num_steps, obs, acted, step)
                if not step.ended:
                    continue
                if step.truncated.any():
                    lanes = np.flatnonzero(step.truncated)
                    final = tree_map(lambda column, lanes=lanes: column[lanes], step.next_obs)
                    cut.append(Cut(t, lanes, final, tuple(part[lanes] for part in self.carry)))
                self.carry = fresh_where_ended(policy, self.carry, step.ended)
        check_finite(self.columns, environments.count)
        for t, lanes, final, _ in [*cut, (num_steps, np.arange(environments.count), environments.obs, ())]:
            check_finite_observation(final, lanes, t * environments.count)
        return cut

    def _store(self, t: int, num_steps: int, obs: Arrays, acted: dict[str, np.ndarray], step: Step) -> None:
        row = {
            "obs": obs,
            **acted,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        if len(self.columns.get("reward", ())) != num_steps:
            self.columns = tree_map(lambda part: np.empty((num_steps, *part.shape), part.dtype), row)
            self.columns["reward"] = np.empty((num_steps, *step.reward.shape), np.float32)
        for name, value in row.items():
            if isinstance(value, dict):
                put_rows(self.columns[name], value, t)
            else:
                self.columns[name][t] = value

    def _next_value(self, policy: Policy, cut: list[Cut]) -> np.ndarray:
        """V(s'ₜ): the next row's value, the last observation's in the last row, the final one's at a time limit."""
        value = self.columns["value"]
        next_value = np.empty_like(value)
        next_value[:-1] = value[1:]
        next_value[-1] = policy.value(self.environments.obs, self.carry)
        for t, lanes, final, carry in cut:
            next_value[t, lanes] = policy.value(final, carry)
        return next_value


def in_tensors(columns: Batch) -> Rollout:
    """Columns as tensors of the same memory."""
    rollout: Rollout = tree_map(torch.from_numpy, columns)
    return rollout


def fresh_where_ended(policy: Policy, carry: Carry, ended: list[int]) -> Carry:
    """A new episode begins with a fresh carry."""
    if not carry or not ended:
        return carry
    parts = tuple(part.clone() for part in carry)
    for part, new in zip(parts, policy.initial(len(ended)), strict=True):
        part[ended] = new
    return parts


def check_finite_observation(obs: Arrays, lanes: np.ndarray, step: int) -> None:
    """The same for observations [N, ...] of some lanes that are bootstrapped from and never become rows."""
    for name, column in tree_leaves(obs, "obs"):
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise NonFiniteError(name, int(lanes[np.argwhere(~np.isfinite(column))[0][0]]), step)


def check_finite(columns: Batch, count: int) -> None:
    """Refuse a rollout with a NaN or an infinity in it, naming the tensor, the environment and the step.

    A reward whose square overflows is refused too: losses and variances are made of squares. `step` counts environment
    steps from the start of this rollout: the engine knows how many went before.
    """
    for name, column in (leaf for key in columns for leaf in tree_leaves(columns[key], key)):
        if column.dtype.kind != "f" or _has_finite_square(column):
            continue
        if not np.isfinite(column).all():
            t, lane = np.argwhere(~np.isfinite(column))[0][:2]
            raise NonFiniteError(name, env_index=int(lane), step=int(t) * count)
    reward = columns["reward"]
    if not _has_finite_square(reward) and np.abs(reward).max() > LARGEST_REWARD:
        t, lane = np.argwhere(np.abs(reward) > LARGEST_REWARD)[0]
        raise NonFiniteError("reward", int(lane), int(t) * count, float(reward[t, lane]))


def _has_finite_square(column: np.ndarray) -> bool:
    """Whether Σ x² is finite in single precision: then every x² is, in a third of the time that asking each takes."""
    flat = column.ravel()
    return column.dtype == np.float32 and math.isfinite(flat.dot(flat))
