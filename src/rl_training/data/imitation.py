"""Observation-action pairs of expert and agent, for behavioural cloning and adversarial imitation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from gymnasium import spaces

from rl_training.data.batch import Steps
from rl_training.data.demonstrations import Demonstrations, check_fit
from rl_training.data.minari_datasets import read
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import RunError
from rl_training.settings.bc import BCConfig
from rl_training.settings.gail import GAILConfig
from rl_training.state.leaves import are_finite, is_whole, require, require_array
from rl_training.state.seeding import fold
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, tree_leaves, tree_map


class PairBatch(TypedDict):
    """Observations and the model-space actions that were carried out."""

    obs: Arrays  # [N, ...]
    action: np.ndarray  # [N, ...]


class Pairs(PairBatch):
    """The same of whole episodes."""

    ends: float  # how many terminations are among them


class ExpertPairs(Stateful):
    """The pairs of demonstrations, or each `keep_every`-th, in each episode from one step later on.

    What is saved of them is their SHA-256: a run does not go on with other demonstrations.
    """

    transient = ("pairs",)

    def __init__(
        self,
        demonstrations: Demonstrations,
        observation_space: spaces.Space,
        codec: ActionCodec,
        keep_every: int,
    ) -> None:
        parts, actions = [], []
        for number, episode in enumerate(demonstrations.episodes):
            kept = slice(number % keep_every, len(episode.rewards), keep_every)
            parts.append(tree_map(lambda part, kept=kept: part[kept], episode.observations))
            actions.append(episode.actions[kept])
        obs = _like(observation_space, tree_map(lambda *columns: np.concatenate(columns), *parts))
        ends = sum(episode.terminated for episode in demonstrations.episodes) / keep_every
        self.pairs: Pairs = {"obs": obs, "action": codec.to_model(np.concatenate(actions)), "ends": ends}
        self.sha256 = _digest(self.pairs)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["sha256"] != self.sha256:
            raise RunError("demonstrations: these are not the ones that the run was begun with")


def expert_pairs(
    config: BCConfig | GAILConfig, observation_space: spaces.Space, action_space: spaces.Space
) -> ExpertPairs:
    """The pairs of a config's `demonstrations`; refuses those that were not made in its environment."""
    where = config.demonstrations
    demonstrations = read(where).first(config.expert_episodes, where)
    check_fit(demonstrations, config.env_id, observation_space, action_space, where)
    return ExpertPairs(demonstrations, observation_space, ActionCodec(action_space), config.expert_keep_every)


class Epochs(Stateful):
    """Endless rows of `count`: each epoch has all of them once, in an order of its own.

    What is saved is how many were taken: an order is a function of the seed and the epoch's number.
    """

    transient = ("count", "seed", "order", "epoch")

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.taken = count, seed, 0
        self.order, self.epoch = np.arange(0), -1

    def check_state(self) -> None:
        require(is_whole(self.taken), "Epochs: a number of rows that cannot be")

    def take(self, number: int) -> np.ndarray:
        """The next rows [number]."""
        rows: list[np.ndarray] = []
        while number:
            epoch, place = divmod(self.taken, self.count)
            if epoch != self.epoch:
                chance = np.random.default_rng(fold(self.seed, "epoch", epoch))
                self.order, self.epoch = chance.permutation(self.count), epoch
            rows.append(self.order[place : place + number])
            self.taken += len(rows[-1])
            number -= len(rows[-1])
        return np.concatenate(rows)


def agent_pairs(rollout: Steps, codec: ActionCodec) -> Pairs:
    """The pairs of a rollout [T, B, ...] with the actions as they were carried out, which clipping may have moved."""
    obs = tree_map(lambda column: column.numpy().reshape(-1, *column.shape[2:]), rollout["obs"])
    action = rollout["action"].numpy()
    action = codec.to_model(codec.to_env(action.reshape(-1, *action.shape[2:])))
    return {"obs": obs, "action": action, "ends": float(rollout["terminated"].sum())}


def join(pools: Sequence[Pairs]) -> Pairs:
    """Several pools as one."""
    if len(pools) == 1:
        return pools[0]
    rows: list[PairBatch] = [{"obs": pool["obs"], "action": pool["action"]} for pool in pools]
    return {**joined(rows), "ends": sum(pool["ends"] for pool in pools)}


def joined(batches: Sequence[PairBatch]) -> PairBatch:
    """Rows of several batches, one after the other."""
    whole: PairBatch = tree_map(lambda *columns: np.concatenate(columns), *batches)
    return whole


def check_pairs(pairs: Pairs, like: Arrays, codec: ActionCodec, name: str) -> None:
    """Refuse pairs of a checkpoint that no rollout gives: `like` are observations of the environment."""
    require(pairs.keys() == {"obs", "action", "ends"}, f"{name}: no pairs")
    require(are_finite([pairs["ends"]]) and pairs["ends"] >= 0, f"{name}: no number of ends")
    rows = len(pairs["action"])
    require(rows and codec.holds(pairs["action"]), f"{name}: actions outside the action space")
    for (part, known), (_, column) in zip(
        tree_leaves(like, "obs"), tree_leaves(pairs["obs"], "obs"), strict=True
    ):
        require_array(column, (rows, *known.shape[1:]), known.dtype, f"{name}: {part}")


def draw(pairs: PairBatch, count: int) -> PairBatch:
    """`obs` and `action` [count, ...] of pairs drawn with equal chances."""
    return at_rows(pairs, np.random.randint(0, len(pairs["action"]), count))


def at_rows(pairs: PairBatch, rows: np.ndarray) -> PairBatch:
    """Some of the pairs."""
    return {"obs": tree_map(lambda column: column[rows], pairs["obs"]), "action": pairs["action"][rows]}


def time_after_ends(pairs: Pairs, steps_after_end: float) -> float:
    """The share of all time that is spent in the absorbing state, if each end is followed by so many steps in it."""
    after = pairs["ends"] * steps_after_end
    return after / (len(pairs["action"]) + after)


def _like(space: spaces.Space, obs: Arrays) -> Any:
    """Observations in the number format of the environment's."""
    if isinstance(obs, dict):
        assert isinstance(space, spaces.Dict)
        return {key: _like(part, obs[key]) for key, part in space.spaces.items()}
    return obs.astype(space.dtype, copy=False)


def _digest(pairs: Pairs) -> str:
    sha = hashlib.sha256(repr(pairs["ends"]).encode())
    for name, part in [*tree_leaves(pairs["obs"], "obs"), ("action", pairs["action"])]:
        sha.update(f"{name} {part.dtype} {part.shape}".encode())
        sha.update(np.ascontiguousarray(part).data)
    return sha.hexdigest()
