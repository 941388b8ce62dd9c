"""Multi-agent environments with PettingZoo's parallel API; each agent is a lane.

All agents act with one policy, so they must have the same spaces, and their episodes must end together. A world of A
agents takes A lanes that stand side by side, and begins with the seed of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.envs.interface import Broken
from rl_training.envs.lanes import Actions, Observation, Replayed, Stepped, raised, stack
from rl_training.envs.spaces import same_layout
from rl_training.errors import ConfigError, EnvironmentFault

World = Any  # a `pettingzoo.ParallelEnv`, or anything with its methods


def has_agents(env: object) -> bool:
    """Whether an environment speaks PettingZoo's parallel API."""
    return hasattr(env, "possible_agents")


class AgentLanes:
    """Worlds side by side, an agent a lane."""

    steps_per_seed = 0

    def __init__(self, make: Callable[[], World], count: int, time_limit: int | None, env_id: str) -> None:
        """At least `count` lanes, of as many worlds as that needs."""
        first = make()
        self.agents: list[str] = [str(agent) for agent in first.possible_agents]
        self.names = list(first.possible_agents)
        self.worlds = [first, *(make() for _ in range(-(-count // len(self.names)) - 1))]
        self.observation_space, self.action_space = self._spaces(env_id)
        self.count = len(self.worlds) * len(self.names)
        self.time_limit, self.has_time_limit = time_limit, time_limit is not None
        self.lengths = [0] * len(self.worlds)

    def _spaces(self, env_id: str) -> tuple[Any, Any]:
        """The spaces that all agents have; one weight for all needs one layout."""
        world, leader = self.worlds[0], self.names[0]
        for kind in ("observation_space", "action_space"):
            first = getattr(world, kind)(leader)
            for agent in self.names:
                other = getattr(world, kind)(agent)
                if not same_layout(first, other):
                    raise ConfigError(
                        f"env_id {env_id!r}: agents share one policy, but {agent} has another {kind} ({other}) than "
                        f"{leader} ({first})",
                        ("env_id",),
                    )
        return world.observation_space(leader), world.action_space(leader)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        wanted, size = dict(zip(lanes, seeds, strict=True)), len(self.names)
        rows: dict[int, Any] = {}
        for index in sorted({lane // size for lane in lanes}):
            if any(index * size + place not in wanted for place in range(size)):
                raise EnvironmentFault(
                    "cannot be used: the episodes of its agents must end together", index * size, True
                )
            rows |= dict(enumerate(self._begin(index, wanted[index * size]), index * size))
        return stack(self.observation_space, [rows[lane] for lane in lanes])

    def _begin(self, index: int, seed: int | None) -> list[Any]:
        self.lengths[index] = 0
        try:
            observations, _ = self.worlds[index].reset(seed=seed)
        except Exception as error:
            raise raised(error, index * len(self.names)) from error
        return self._rows(index, observations)

    def _rows(self, index: int, values: Mapping[Any, Any]) -> list[Any]:
        """What each agent got, in their order."""
        missing = [str(agent) for agent in self.names if agent not in values]
        if missing:
            lane = index * len(self.names) + self.agents.index(missing[0])
            gone = f"cannot be used: its agent {missing[0]} was gone before the others"
            raise EnvironmentFault(gone, lane, broken=True)
        return [values[agent] for agent in self.names]

    def step(self, actions: Actions) -> Stepped:
        size = len(self.names)
        columns: list[list[Any]] = [[], [], [], [], []]
        for index in range(len(self.worlds)):
            led_to = self._step(index, actions[index * size : (index + 1) * size])
            for column, rows in zip(columns, led_to, strict=True):
                column += rows
        rewards = np.array(columns[1], np.float64)
        terminated, truncated = (np.array(column, np.bool_) for column in columns[2:4])
        obs, over = self._stacked(columns[0]), terminated | truncated
        return Stepped(obs, rewards, terminated, truncated, rewards, over, columns[4])

    def _step(self, index: int, actions: Actions) -> tuple[list[Any], ...]:
        """Observations, rewards, both kinds of ends and infos of one world's agents."""
        try:
            result = self.worlds[index].step(dict(zip(self.names, actions, strict=True)))
        except Exception as error:
            raise raised(error, index * len(self.names)) from error
        self.lengths[index] += 1
        obs, rewards, terminated, truncated, infos = (self._rows(index, values) for values in result)
        if self.time_limit is not None and self.lengths[index] >= self.time_limit:
            truncated = [True] * len(self.names)
        return obs, rewards, terminated, truncated, infos

    def _stacked(self, rows: Sequence[Any]) -> Observation:
        try:
            return stack(self.observation_space, rows)
        except Broken as broken:
            raise EnvironmentFault(f"cannot be used: {broken}", 0, broken=True) from None

    def replay(self, seeds: Sequence[int], actions: Sequence[Actions]) -> Replayed:
        size = len(self.names)
        rows: list[Any] = []
        scores: list[np.ndarray] = []
        overs: list[np.ndarray] = []
        for index in range(len(self.worlds)):
            own = slice(index * size, (index + 1) * size)
            seen = self._begin(index, seeds[own.start])
            paid: list[list[float]] = []
            over: list[list[bool]] = []
            for joint in zip(*actions[own], strict=True):
                seen, rewards, terminated, truncated, _ = self._step(index, list(joint))
                paid.append([float(reward) for reward in rewards])
                over.append([bool(a or b) for a, b in zip(terminated, truncated, strict=True)])
                if any(over[-1]):
                    break
            rows += seen
            scores += list(np.array(paid, np.float64).reshape(-1, size).T.copy())
            overs += list(np.array(over, np.bool_).reshape(-1, size).T.copy())
        return Replayed(self._stacked(rows), scores, overs)

    def close(self) -> None:
        for world in self.worlds:
            world.close()
