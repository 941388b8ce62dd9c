"""Parallel environments whose state can be saved and restored by replay.

Episodes begin with a seed of their own, fold(seed, stream, lane, episode), so where an environment stands is that
seed and the actions taken since. Restoring plays those actions again and compares what they lead to, rewards and all:
exact for every deterministic environment, without asking it for a snapshot. Where seeding is expensive, only some
episodes have a seed.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from rl_training.envs.lanes import Lanes, Observation, Replayed
from rl_training.envs.spaces import action_codec
from rl_training.errors import EnvironmentFault, RunError
from rl_training.state.leaves import are_finite, is_whole, require
from rl_training.state.seeding import fold
from rl_training.state.stateful import Stateful
from rl_training.trees import put_rows, tree_leaves, tree_map

# Steps from now -> what an episode that begins then is made with, of the environment's arguments that move.
Arguments = Callable[[int], Mapping[str, Any]]
# An episode that ended: (lane, return, length), and with `info_metrics` a dict of what was reported of them.
Finished = tuple[Any, ...]


class Step(NamedTuple):
    """What one action led to, [B, ...] each; `next_obs` is never that of a reset."""

    next_obs: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: list[int]  # the lanes in which learning sees an end


class History:
    """The actions [B, ...] and scores [B] of steps in a row, in one array each: those of one lane are a slice."""

    def __init__(self, actions: np.ndarray | None = None, scores: np.ndarray | None = None) -> None:
        self.actions = np.empty(0) if actions is None else actions
        self.scores = np.empty(0) if scores is None else scores
        self.used = len(self.actions)

    def __len__(self) -> int:
        return self.used

    def append(self, actions: np.ndarray, scores: np.ndarray) -> None:
        if self.used == len(self.actions):
            self.actions = self._grown(self.actions, actions.shape, actions.dtype)
            self.scores = self._grown(self.scores, scores.shape, np.dtype(np.float64))
        self.actions[self.used] = actions
        self.scores[self.used] = scores
        self.used += 1

    def _grown(self, rows: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        grown = np.empty((max(64, 2 * self.used), *shape), dtype)
        if self.used:
            grown[: self.used] = rows
        return grown

    def forget(self, count: int) -> None:
        """Drop the first `count` steps."""
        for rows in (self.actions, self.scores):
            rows[: self.used - count] = rows[count : self.used].copy()
        self.used -= count

    def of_lane(self, lane: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        """The lane's actions and scores since step `first`, copied."""
        if first == self.used:
            return np.empty(0), np.empty(0)
        return self.actions[first : self.used, lane].copy(), self.scores[first : self.used, lane].copy()


class Count:
    """An array [B] of `Environments` about the open episodes, brought up to date when it is read.

    To add to one at every step takes as long as to store the step.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, environments: Environments, owner: type) -> np.ndarray:
        environments._count()
        return vars(environments)[self.name]

    def __set__(self, environments: Environments, value: np.ndarray) -> None:
        vars(environments)[self.name] = value


class Environments(Stateful):
    """B environments; `obs` is what to act on next, `step` acts, `finished` holds the episodes that ended."""

    transient: tuple[str, ...] = (
        "lanes",
        "codec",
        "seed",
        "stream",
        "env_id",
        "info_metrics",
        "history",
        "started",
    )
    transient += ("arguments", "steps", "made_with", "moves", "counted")
    returns, lengths = Count(), Count()

    def __init__(
        self,
        lanes: Lanes,
        seed: int,
        stream: str,
        env_id: str = "",
        info_metrics: Sequence[str] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`arguments`: of the environment's arguments those that move, as episodes begin with them now."""
        self.lanes, self.env_id, self.info_metrics = lanes, env_id, info_metrics
        now = dict(arguments or {})
        self.made_with: list[Mapping[str, Any]] = [now] * lanes.count  # of each lane's open episode
        self.moves = bool(now)
        self.begin_with(lambda steps: now)
        self.codec = action_codec(lanes.action_space)
        self.seed, self.stream = seed, stream
        count = lanes.count
        self.episode = np.zeros(count, np.int64)
        # With which each lane was last seeded: a run that was forked to another seed goes on with these until the next.
        self.seeds = np.array([self._seed(lane, 0) for lane in range(count)])
        self.returns = np.zeros(count, np.float64)
        self.lengths = np.zeros(count, np.int64)
        self.finished: list[Finished] = []  # not yet taken
        # What was done since each lane's seed: rows [B, ...] since the oldest of them, and each lane's first row.
        self.history = History()
        self.started = np.zeros(count, np.int64)
        self.counted = 0  # rows of the history that `returns` and `lengths` tell of
        with self._naming():
            self._adjust(range(count))
            self.obs: Observation = lanes.reset(range(count), self.seeds.tolist())

    @property
    def count(self) -> int:
        return self.lanes.count

    def step(self, actions: np.ndarray) -> Step:
        """Take one model-space action [B, ...] in every lane; ended episodes are followed by new ones in `obs`."""
        try:
            stepped = self.lanes.step(self.codec.to_env(actions))
        except EnvironmentFault as fault:
            raise self._named(fault)  # noqa: B904  # it is the same one
        self.history.append(actions, stepped.score)
        self.steps += self.lanes.count
        self.obs = stepped.obs
        ended: list[int] = []
        # Of few lanes, lists are looked through several times as fast as arrays.
        if True in stepped.terminated.tolist() or True in stepped.truncated.tolist():
            ended = (stepped.terminated | stepped.truncated).nonzero()[0].tolist()
            over = stepped.over.nonzero()[0].tolist()
            if over:
                self._begin_episodes(over, stepped.infos)
        return Step(stepped.obs, stepped.reward, stepped.terminated, stepped.truncated, ended)

    @property
    def agents(self) -> Sequence[str]:
        """The names of several agents in one environment, lane by lane; () where there is one alone."""
        return getattr(self.lanes, "agents", ())

    def take_finished(self) -> list[Finished]:
        """The episodes that ended since this was last asked."""
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        self.lanes.close()

    def _reported(self, lane: int, infos: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], ...]:
        """What the info of an episode's last step says of each of `info_metrics`."""
        if not self.info_metrics:
            return ()
        info = infos[lane] if infos else {}
        found = {name: info[name] for name in self.info_metrics if name in info}
        for name, value in found.items():
            if not np.isscalar(value) or isinstance(value, str | bytes) or not np.isfinite(value):
                raise EnvironmentFault(
                    f"reported {name} = {value!r}; info_metrics needs a finite number or a boolean", lane
                )
        return ({name: float(value) for name, value in found.items()},)

    def _count(self) -> None:
        """Add the steps since this was last done to `returns` and `lengths`."""
        scores = self.history.scores[self.counted : len(self.history)]
        self.counted += len(scores)
        if len(scores):
            self.returns = np.add.accumulate(np.concatenate([self.returns[None], scores]))[-1].copy()
            self.lengths = self.lengths + len(scores)

    def _begin_episodes(self, lanes: list[int], infos: Sequence[Mapping[str, Any]] = ()) -> None:
        returns, lengths = self.returns, self.lengths
        seeds: list[int | None] = []
        for lane in lanes:  # mostly one, for which plain indices are several times as fast as lists of them
            episode = lane, float(returns[lane]), int(lengths[lane])
            self.finished.append((*episode, *self._reported(lane, infos)))
            self.episode[lane] += 1
            returns[lane] = 0.0
            lengths[lane] = 0
            due = len(self.history) - self.started[lane] >= self.lanes.steps_per_seed
            seed = self._seed(lane, int(self.episode[lane])) if due else None
            seeds.append(seed)
            if seed is not None:
                self.seeds[lane] = seed
                self.started[lane] = len(self.history)
        oldest = int(self.started.min())
        # Forget rows that no lane needs any more, but rarely: it moves all that is left.
        if oldest > len(self.history) // 2:
            self.history.forget(oldest)
            self.started -= oldest
            self.counted -= oldest
        self.obs = tree_map(np.copy, self.obs)
        with self._naming():
            if self.moves:
                now = dict(self.arguments(self.steps))
                for lane in lanes:
                    self.made_with[lane] = now
                self._adjust(lanes)
            first = self.lanes.reset(lanes, seeds)
        put_rows(self.obs, first, lanes)

    def begin_with(self, arguments: Arguments) -> None:
        """Let episodes that begin from now on have these arguments, which may depend on the steps until then."""
        self.arguments, self.steps = arguments, 0

    def _adjust(self, lanes: Iterable[int]) -> None:
        """Have the environments of lanes made with the arguments of their episodes."""
        for lane in lanes if self.moves else ():
            self.lanes.adjust(lane, self.made_with[lane])  # type: ignore[attr-defined]  # those that can are asked

    def _seed(self, lane: int, episode: int) -> int:
        # Some emulators take 31-bit seeds only.
        return fold(self.seed, self.stream, lane, episode) % 2**31

    def _named(self, fault: EnvironmentFault) -> EnvironmentFault:
        """The fault with the name of its environment, and where in its episode it is."""
        fault.env_id = self.env_id
        if fault.env_index is not None:
            step, seed = self.lengths[fault.env_index] + 1, self.seeds[fault.env_index]
            fault.place = f"{self.stream}, step {step} of an episode, seed {seed}"
        return fault

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentFault as fault:
            raise self._named(fault)  # noqa: B904  # it is the same one

    def _since_seed(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        return self.history.of_lane(lane, int(self.started[lane]))

    def _actions(self, lane: int) -> np.ndarray:
        return self._since_seed(lane)[0]

    def state_dict(self) -> dict[str, Any]:
        self._count()
        scores = [digest(self._since_seed(lane)[1]) for lane in range(self.count)]
        moving = {"made_with": [dict(values) for values in self.made_with]} if self.moves else {}
        return (
            super().state_dict()
            | moving
            | {
                "actions": [self._actions(lane) for lane in range(self.count)],
                "scores": scores,
            }
        )

    def check_state(self) -> None:
        require((self.episode >= 0).all() and (self.lengths >= 0).all(), "Environments: a negative count")
        require(((self.seeds >= 0) & (self.seeds < 2**31)).all(), "Environments.seeds: no seeds")
        check_finished(self.finished, self.count)

    def _check_actions(self, actions: Any) -> None:
        require(
            isinstance(actions, list) and len(actions) == self.count,
            "Environments.actions: not one list each",
        )
        for lane, taken in enumerate(actions):
            none = isinstance(taken, np.ndarray) and taken.shape == (0,)
            require(
                none or self.codec.holds(taken), f"Environments.actions[{lane}]: outside the action space"
            )
        kinds = {taken.dtype for taken in actions if len(taken)}
        require(len(kinds) <= 1, "Environments.actions: of different dtypes")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Older checkpoints have no digests.
        actions, digests = state["actions"], state.get("scores")
        self._check_actions(actions)
        require(
            digests is None or (isinstance(digests, list) and len(digests) == self.count),
            "Environments.scores: not one digest each",
        )
        if "seeds" not in state:  # saved before forks were there, when they followed from the run's seed
            seeds = [self._seed(lane, int(episode)) for lane, episode in enumerate(state["episode"])]
            state = state | {"seeds": np.array(seeds)}
        self.history, self.counted = History(), 0
        beside = ("actions", "scores", "made_with")
        super().load_state_dict({key: value for key, value in state.items() if key not in beside})
        self._take_arguments(state.get("made_with"))
        with self._naming():
            self._adjust(range(self.count))
            replayed = self.lanes.replay(
                self.seeds.tolist(), [self.codec.to_env(a) if len(a) else a for a in actions]
            )
        self._compare(replayed, [len(a) for a in actions], digests)
        longest = max(len(episode) for episode in actions)
        self.started = np.array([longest - len(episode) for episode in actions])
        row = next((episode[0] for episode in actions if len(episode)), np.empty(0))
        columns = [
            np.concatenate([np.repeat(row[None], longest - len(a), 0), *([a] if len(a) else [])])
            for a in actions
        ]
        scores = [np.concatenate([np.zeros(longest - len(column)), column]) for column in replayed.scores]
        self.history = History(np.stack(columns, 1), np.stack(scores, 1)) if longest else History()
        self.counted = longest

    def _take_arguments(self, saved: Any) -> None:
        """What each lane's open episode was begun with: nothing besides the config's, where no argument moved."""
        saved = [{}] * self.count if saved is None else saved
        require(isinstance(saved, list) and len(saved) == self.count, "Environments.made_with: not one each")
        numbers = (isinstance(values, dict) and are_finite(values.values()) for values in saved)
        require(all(numbers), "Environments.made_with: no numbers")
        self.made_with, self.moves = list(saved), self.moves or any(saved)

    def _compare(self, replayed: Replayed, lengths: list[int], digests: list[str] | None) -> None:
        """Raise RunError where a replay led elsewhere; runs saved before there were digests have returns alone."""
        for lane, (scores, over) in enumerate(zip(replayed.scores, replayed.over, strict=True)):
            ends = np.flatnonzero(over)
            opened = int(ends[-1]) + 1 if len(ends) else 0
            if len(scores) != lengths[lane] or len(scores) - opened != self.lengths[lane]:
                raise self._drifted(lane, "end of an episode")
            rewards = np.cumsum(scores[opened:])[-1] if len(scores) > opened else 0.0
            unequal = rewards != self.returns[lane] and not np.isnan(self.returns[lane])
            if unequal or (digests is not None and digest(scores) != digests[lane]):
                raise self._drifted(lane, "rewards")
        for (name, saved), (_, again) in zip(
            tree_leaves(self.obs, "obs"), tree_leaves(replayed.obs, "obs"), strict=True
        ):
            for lane in range(self.count):
                if not np.array_equal(saved[lane], again[lane], equal_nan=saved.dtype.kind == "f"):
                    raise self._drifted(lane, name)

    def _drifted(self, lane: int, what: str) -> RunError:
        look = f"rl-training check-env {shlex.quote(self.env_id)}".removesuffix(" ''")
        return RunError(
            f"environment {lane} did not reproduce its saved {what} when its episode was replayed: "
            f"it is not deterministic (see `{look}`), "
            "so this run cannot be resumed exactly"
        )


def check_finished(finished: list[Any], count: int) -> None:
    """Refuse what are no ended episodes (lane, return, length) of so many lanes."""
    fits = (type(one) is tuple and len(one) in (3, 4) and is_whole(one[0], high=count) for one in finished)
    require(all(fits), "Environments.finished: no episodes")


def digest(scores: np.ndarray) -> str:
    """All rewards of a lane since its seed in a few letters: their sum alone would hide their order."""
    return hashlib.blake2b(scores.tobytes(), digest_size=16).hexdigest()
