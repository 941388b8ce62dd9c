"""Lanes: parallel environments, stepped together and reset individually, each with its own seed.

What differs between our own loop and the three autoreset modes of Gymnasium's vector environments
ends here: `step` returns what the action led to, also where the episode ended there, and a new
episode begins with `reset` and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import length_hint
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.envs.interface import Broken, check_reset_result, check_shape, check_step_result
from rl_training.errors import EnvironmentFault, one_line
from rl_training.trees import put_rows, tree_map
from rl_training.types import Env, Space

Observation = Any  # an array [B, ...], or a dict of observations
Actions = np.ndarray | list[Any]  # an array [B, ...]; a list of B for Tuple and Dict actions


class Stepped(NamedTuple):
    """What the actions led to, [B, ...] each.

    `terminated` and `truncated` are what learning must know. Where a game goes on although learning treats it as
    ended (a lost life), `over` is False; `score` is the reward before any clipping. `infos` are the environments' own,
    one for each lane, or () where lanes have none to give.
    """

    obs: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    score: np.ndarray
    over: np.ndarray
    infos: Sequence[Mapping[str, Any]] = ()


class Replayed(NamedTuple):
    """Where lanes stand after a replay, and of each lane what its actions led to on the way, [length]."""

    obs: Observation
    scores: list[np.ndarray]
    over: list[np.ndarray]


class Lanes(Protocol):
    """What `Environments` needs of environments side by side."""

    count: int
    observation_space: Space
    action_space: Space
    has_time_limit: bool
    # Where seeding is expensive: within so many steps of its seed a lane's next episodes are begun without one.
    steps_per_seed: int

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        """Begin an episode in each of `lanes`; its first observations [len(lanes), ...].

        Without a seed, which only lanes with `steps_per_seed` are asked for, the chance of the episode before goes on.
        """

    def step(self, actions: Actions) -> Stepped:
        """One action [B, ...] in every lane."""

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        """Every lane from its seed through its actions [length, ...].

        Where an episode ends under way, in lanes with `steps_per_seed`, the next one has no seed. In all others none
        ends in a deterministic environment; one that does is played no further.
        """

    def close(self) -> None: ...


class Adjustable(Protocol):
    """Lanes whose environments can be made anew with other arguments."""

    def adjust(self, lane: int, arguments: Mapping[str, Any]) -> None:
        """Let the next episodes of a lane be those of an environment made with these arguments."""


class LocalLanes:
    """Environments stepped one after the other in this process: the fastest way for cheap ones.

    Gymnasium's outer wrappers cost as much as a step of CartPole. Those that only count steps or check the
    order of calls are taken off, and the time limit is kept here.
    """

    steps_per_seed = 0

    def __init__(self, envs: Sequence[Env], make: Callable[..., Env] | None = None) -> None:
        self.make = make  # another environment, with other arguments than these were made with
        self.made_with: list[Mapping[str, Any]] = [{} for _ in envs]
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self.has_time_limit = limits_time(envs[0])
        bare = [without_wrappers(env) for env in envs]
        self.envs = [quickly_checked(env) for env, _ in bare]
        self.time_limit = bare[0][1]
        space = self.observation_space
        # Looked up once: a space's shape costs more than its comparison.
        self.kind = None if isinstance(space, spaces.Dict) else (space.dtype, space.shape)
        self.count = len(self.envs)
        self.clock = 0  # steps so far
        self.due = [math.inf] * self.count  # the clock at which each lane's time is up

    def adjust(self, lane: int, arguments: Mapping[str, Any]) -> None:
        if self.made_with[lane] == arguments:
            return
        assert self.make is not None
        try:
            env = quickly_checked(without_wrappers(self.make(**arguments))[0])
        except Exception as error:
            raise raised(error, lane) from error
        self.envs[lane].close()
        self.envs[lane], self.made_with[lane] = env, dict(arguments)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        rows = [self._begin(lane, seed) for lane, seed in zip(lanes, seeds, strict=True)]
        try:
            return self.stacked(rows)
        except Exception as error:
            raise self._misshapen(lanes, rows, error) from None

    def step(self, actions: Actions) -> Stepped:
        envs = iter(self.envs)
        stepped: list[Any] = []
        try:
            # Elements stay numpy's own: Gymnasium checks those faster than Python's numbers.
            stepped = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            rows, rewards, ended, cut, infos = zip(*stepped, strict=True)
            reward = np.array(rewards, np.float64)
            terminated, truncated = np.array(ended, np.bool_), np.array(cut, np.bool_)
            if reward.ndim + terminated.ndim + truncated.ndim != 3:
                raise Broken("reward, terminated and truncated must be single values")
            obs = self.stacked(rows)
        except Exception as error:
            if not stepped:  # so it is the environment's own
                raise raised(error, self.count - length_hint(envs) - 1) from error
            raise self._unusable(stepped, error) from None
        self.clock += 1
        over = terminated
        if self.clock >= min(self.due):
            truncated |= self.clock == np.array(self.due)
            over = terminated | truncated
        elif any(cut):
            over = terminated | truncated
        return Stepped(obs, reward, terminated, truncated, reward, over, infos)

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        lanes = range(self.count)
        rows = [self._begin(lane, seed) for lane, seed in zip(lanes, seeds, strict=True)]
        played = [self.play(lane, episode) for lane, episode in zip(lanes, actions, strict=True)]
        rows = [seen if len(scores) else row for row, (seen, scores, _) in zip(rows, played, strict=True)]
        return Replayed(
            self.stacked(rows), [scores for _, scores, _ in played], [over for *_, over in played]
        )

    def play(self, lane: int, actions: Actions) -> tuple[Any, np.ndarray, np.ndarray]:
        """One lane alone through some actions [length, ...]: what it sees then, its scores, and where it was over."""
        env, obs = self.envs[lane], None
        scores, over = np.zeros(len(actions)), np.zeros(len(actions), np.bool_)
        for t, action in enumerate(actions):
            try:
                obs, scores[t], terminated, truncated, _ = env.step(action)
            except Exception as error:
                raise raised(error, lane) from error
            self.due[lane] -= 1  # the clock of all lanes stands still
            over[t] = terminated or truncated or self.due[lane] <= self.clock
            if over[t]:
                return obs, scores[: t + 1], over[: t + 1]
        return obs, scores, over

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, lane: int, seed: int | None) -> Any:
        """The first observation of an episode."""
        try:
            result = self.envs[lane].reset(seed=seed)
        except Exception as error:
            raise raised(error, lane) from error
        try:
            check_reset_result(result)
        except Broken as broken:
            raise EnvironmentFault(f"cannot be used: {broken}", lane, broken=True) from None
        if self.time_limit is not None:
            self.due[lane] = self.clock + self.time_limit
        return result[0]

    def stacked(self, rows: Sequence[object]) -> Observation:
        if self.kind is None:
            return stack(self.observation_space, rows)
        return stack_arrays(rows, *self.kind)

    def _unusable(self, stepped: Sequence[Any], error: Exception) -> Exception:
        """Which environment's step returned something that is none, or else the error as it is: then it is ours."""
        for lane, result in enumerate(stepped):
            try:
                check_step_result(result)
            except Broken as broken:
                return EnvironmentFault(f"cannot be used: {broken}", lane, broken=True)
        return self._misshapen(range(self.count), [result[0] for result in stepped], error)

    def _misshapen(self, lanes: Sequence[int], rows: Sequence[object], error: Exception) -> Exception:
        for lane, obs in zip(lanes, rows, strict=True):
            try:
                check_shape(self.observation_space, obs)
            except Broken as broken:
                return EnvironmentFault(f"cannot be used: {broken}", lane, broken=True)
        return error


def raised(error: Exception, lane: int) -> EnvironmentFault:
    return EnvironmentFault(f"raised {one_line(error)}", lane)


def without_wrappers(env: Env) -> tuple[Env, int | None]:
    """What is inside the wrappers that `gym.make` adds by itself, and the time limit they held."""
    limit = None
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):
        if isinstance(env, TimeLimit):
            limit = min(limit or env._max_episode_steps, env._max_episode_steps)
        env = env.env
    return env, limit


class Choices(spaces.Discrete):
    """A Discrete that gives the same answers as Gymnasium's, several times as fast to what policies choose."""

    def contains(self, x: Any) -> bool:
        if type(x) is np.int64 and 0 <= x - self.start < self.n:
            return True
        return super().contains(x)


def quickly_checked(env: Env) -> Env:
    """The environment; one of Gymnasium's own with a plain Discrete has `Choices` in its place.

    Those ask their space at every step whether the action is there, which is a quarter of CartPole's time.
    """
    inner, space = env.unwrapped, env.unwrapped.action_space
    if type(inner).__module__.startswith("gymnasium.envs.") and type(space) is spaces.Discrete:
        inner.action_space = Choices.__new__(Choices)
        vars(inner.action_space).update(vars(space))
    return env


def limits_time(env: Env) -> bool:
    """Whether an environment's episodes have a time limit that can be seen."""
    if env.spec is not None:
        return has_time_limit(env.spec)
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            return True
        env = env.env
    return False


def has_time_limit(spec: EnvSpec | None) -> bool:
    return spec is None or spec.max_episode_steps is not None


class VectorLanes:
    """A Gymnasium vector environment in any autoreset mode, if it takes masked resets with a seed per lane."""

    steps_per_seed = 0

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], spec: EnvSpec | None = None) -> None:
        self.envs = envs
        self.count = envs.num_envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.mode = AutoresetMode(envs.metadata["autoreset_mode"])
        spec = spec or envs.spec or getattr(getattr(envs, "envs", [None])[0], "spec", None)
        self.has_time_limit = has_time_limit(spec)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        mask = np.zeros(self.count, np.bool_)
        mask[list(lanes)] = True
        seed_of: list[int | None] = [None] * self.count
        for lane, seed in zip(lanes, seeds, strict=True):
            seed_of[lane] = seed
        obs, _ = self.envs.reset(seed=seed_of, options={"reset_mask": mask})  # type: ignore[arg-type]  # one each
        return tree_map(lambda column: column[list(lanes)], obs)

    def step(self, actions: Actions) -> Stepped:
        obs, reward, terminated, truncated, info = self.envs.step(actions)
        if self.mode is AutoresetMode.SAME_STEP and "_final_obs" in info:
            # The environment has reset itself already: put the episode's last observation back in its place.
            for lane in np.flatnonzero(info["_final_obs"]):
                put_rows(obs, info["final_obs"][lane], lane)
        reward = np.asarray(reward, np.float64)
        return Stepped(obs, reward, terminated, truncated, reward, terminated | truncated)

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        """All lanes step together, so each is reset when as many steps remain as it has actions.

        Until then it plays episodes that nobody looks at, with the actions of the longest one.
        """
        lengths = [len(episode) for episode in actions]
        longest = max(lengths)
        filler = actions[lengths.index(longest)]
        scores, overs = np.zeros((longest, self.count)), np.zeros((longest, self.count), np.bool_)
        obs = self.reset(range(self.count), seeds)
        for t in range(longest + 1):
            starting = [lane for lane in range(self.count) if lengths[lane] == longest - t]
            if starting:
                put_rows(obs, self.reset(starting, [seeds[lane] for lane in starting]), starting)
            if t == longest:
                break
            ahead = [t - longest + length for length in lengths]  # negative while a lane waits for its start
            rows = [actions[lane][i] if i >= 0 else filler[t] for lane, i in enumerate(ahead)]
            stepped = self.step(np.stack(rows))
            obs, scores[t], overs[t] = stepped.obs, stepped.score, stepped.over
            over = np.flatnonzero(stepped.over).tolist()
            if over:
                obs = tree_map(np.copy, obs)
                put_rows(obs, self.reset(over, [None] * len(over)), over)
        first = [longest - length for length in lengths]
        columns = ([rows[start:, lane] for lane, start in enumerate(first)] for rows in (scores, overs))
        return Replayed(obs, *columns)

    def close(self) -> None:
        self.envs.close()


def stack(space: Space, rows: Sequence[Any]) -> Observation:
    """Observations of lanes as one, [B, ...]; they must have the shape of their space, which compiled loops rely on."""
    if isinstance(space, spaces.Dict):
        return {key: stack(part, [row[key] for row in rows]) for key, part in space.spaces.items()}
    return stack_arrays(rows, space.dtype, space.shape)


def stack_arrays(rows: Sequence[Any], dtype: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    # In the space's own type: some environments hand out float64 against their declared float32.
    column = np.array(rows, dtype)
    if column.shape[1:] != shape:
        raise Broken(f"observations have shape {column.shape[1:]}, their space says {shape}")
    return column
