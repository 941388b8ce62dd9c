"""Parallel compiled environments: their state is saved directly, so that nothing is replayed on resume."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK
from rl_training.dynamics.interface import Dynamics
from rl_training.dynamics.lanes import NEVER, advance_all, begin_all, lane_state, led, observe_all
from rl_training.envs.action_masks import OBSERVATION, num_choices
from rl_training.envs.environments import Environments, Step, check_finished
from rl_training.envs.lanes import Observation
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import EnvironmentFault, one_line
from rl_training.state.leaves import require
from rl_training.state.seeding import fold
from rl_training.state.stateful import Stateful
from rl_training.types import Space


class CompiledSpaces(NamedTuple):
    """What a compiled environment is, seen from outside: as `Lanes` say it of theirs."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    has_time_limit: bool


class CompiledEnvironments(Stateful):
    """B compiled environments, with the face of `Environments`: `obs`, `step`, `finished`.

    Chance of an episode is a function of (seed, stream, lane, episode, draws so far).
    """

    transient = ("lanes", "codec", "env_id", "dynamics", "state", "numbers", "width", "rows", "obs")
    agents: tuple[str, ...] = ()  # of several in one environment, which none of these has

    def __init__(
        self,
        dynamics: Dynamics,
        lanes: CompiledSpaces,
        *,
        count: int,
        limit: int | None,
        seed: int,
        stream: str,
        env_id: str,
    ) -> None:
        self.dynamics, self.lanes, self.env_id = dynamics, lanes, env_id
        self.codec = ActionCodec(lanes.action_space)
        self.numbers = row_size(dynamics, lanes.observation_space, lanes.action_space)
        self.width = flat_size(lanes.observation_space)
        self.state = lane_state(dynamics, count, fold(seed, stream), limit)
        self.finished: list[tuple[int, float, int]] = []  # (lane, return, length) not yet taken
        # The arrays of the lanes are this object's state, and compiled code writes to them.
        self.states, self.chance, self.episode = self.state.states, self.state.chance, self.state.episode
        self.returns, self.lengths = self.state.returns, self.state.lengths
        self.rows = np.empty((count, self.numbers), np.float32)  # what is seen, flat
        begin_all(self.state, self.rows)
        self.obs: Observation = self.shown(self.rows)

    @property
    def count(self) -> int:
        return len(self.episode)

    def step(self, actions: np.ndarray) -> Step:
        """Take one model-space action [B, ...] in every lane; ended episodes are followed by new ones in `obs`."""
        taken = np.ascontiguousarray(self.codec.to_env(actions).reshape(self.count, -1), np.float64)
        found = led(self.count, self.numbers)
        ended = self.called(advance_all, self.state, taken, found)
        self.stand_at(found.obs, found.finished[:ended])
        lanes = found.finished[:ended, 0].astype(np.int64).tolist()
        return Step(self.shown(found.next_obs), found.reward, found.terminated, found.truncated, lanes)

    def called(self, function: Any, *arguments: Any) -> int:
        """Compiled code that steps the lanes; what it raises is the environment's fault."""
        try:
            ended: int = function(*arguments)
        except Exception as error:
            fault = EnvironmentFault(f"raised {one_line(error)}")
            fault.env_id = self.env_id
            raise fault from error
        return ended

    def stand_at(self, rows: np.ndarray, finished: np.ndarray) -> None:
        """What is seen now, [B, O], and the episodes that ended on the way there, rows (lane, return, length)."""
        self.rows, self.obs = rows, self.shown(rows)
        self.finished += [(int(lane), returned, int(length)) for lane, returned, length in finished.tolist()]

    def take_finished(self) -> list[tuple[int, float, int]]:
        """The episodes that ended since this was last asked, as (lane, return, length)."""
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        pass

    def shown(self, rows: np.ndarray) -> Observation:
        """Flat rows [..., O] as observations of the space; without their mask where nobody reads it."""
        return shaped(self.lanes.observation_space, rows[..., : self.width])

    def load_state_dict(self, state: dict[str, object]) -> None:
        super().load_state_dict(state)
        self.rows = np.empty_like(self.rows)
        observe_all(self.state, self.rows)
        self.obs = self.shown(self.rows)

    def check_state(self) -> None:
        within = (self.states >= self.dynamics.lowest) & (self.states <= self.dynamics.highest)
        require(bool(within.all()), "CompiledEnvironments.states: no states of this environment")
        counts = (self.episode >= 0).all() and (self.lengths >= 0).all() and (self.lengths < NEVER).all()
        require(bool(counts), "CompiledEnvironments: a negative count")
        check_finished(self.finished, self.count)


AnyEnvironments = Environments | CompiledEnvironments


def flat_size(space: Space) -> int:
    """How many numbers an observation has."""
    if isinstance(space, spaces.Dict):
        return sum(flat_size(part) for part in space.spaces.values())
    return int(np.prod(space.shape or ()))


def row_size(dynamics: Dynamics, observation: Space, action: Space) -> int:
    """How many numbers `observe` writes: a mask has its place behind the rest, whether it is read or not."""
    apart = dynamics.masked and not (isinstance(observation, spaces.Dict) and MASK in observation.spaces)
    return flat_size(observation) + (sum(num_choices(action)) if apart else 0)


def shaped(space: Space, rows: np.ndarray) -> Observation:
    """Flat rows [..., O] as observations [..., *shape] of a space, in its own type; a mask stands behind the rest."""
    if isinstance(space, spaces.Dict):
        choices = flat_size(space[MASK])
        parts = {OBSERVATION: rows[..., :-choices], MASK: rows[..., -choices:]}
        return {name: shaped(space[name], part) for name, part in parts.items()}
    return rows.reshape(*rows.shape[:-1], *(space.shape or ())).astype(space.dtype, copy=False)
