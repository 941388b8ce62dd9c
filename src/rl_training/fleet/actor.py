"""An actor: a policy and its environments, which collect fragments of experience for the learner.

A fragment is a function of the request for it: the stream it belongs to, its number in that stream, the weights, and
the stream's state before it. Who plays it, when, and how fast does not matter, and one that was lost is played again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rl_training.data.batch import Batch
from rl_training.data.collector import Collector, Cut
from rl_training.envs.environments import Environments
from rl_training.envs.making import make_environments
from rl_training.fleet.weights import check, unpack
from rl_training.registry import trainer_class
from rl_training.runtime.optim import flatten_parameters
from rl_training.settings.families import ActorLearnerConfig
from rl_training.state.restoring import taking_over
from rl_training.state.seeding import fold, seed_everything
from rl_training.trees import Arrays, put_rows, tree_map

Spaces = tuple[spaces.Space, spaces.Space]
Pack = Callable[[], np.ndarray]  # the learner's weights as they stand, see weights.py
MakeColumns = Callable[..., Batch]  # the arrays of a fragment, see `make_columns`


class Request(NamedTuple):
    """What is asked of an actor. A stream is the sequence of fragments of one set of environments."""

    stream: int
    number: int  # fragments of this stream before this one
    version: int  # of the weights: updates before them
    state: dict[str, Any] | None  # the stream's state before it; none for its beginning
    arguments: Mapping[str, float] = {}  # of the environment, that move: for episodes that begin in it


class Fragment(NamedTuple):
    """T steps in the B environments of a stream, and the stream's state after them."""

    stream: int
    number: int
    version: int
    columns: Batch  # `obs` [T + 1, B, ...], all else [T, B, ...]; arrays that the next request may overwrite
    carry: tuple[np.ndarray, ...]  # what the policy carried into it, [B, ...] each
    cut: list[Cut]
    episodes: list[tuple[int, float, int]]  # that ended in it: (lane, return, length)
    state: dict[str, Any]


def make_columns(
    obs: Arrays, acted: Batch, num_steps: int, num_envs: int, make: Callable[..., np.ndarray] = np.empty
) -> Batch:
    """Empty columns of a fragment, for observations and actions like these [n, ...]."""
    row = {
        "obs": obs,
        **acted,
        "reward": np.empty(1, np.float32),
        "terminated": np.empty(1, np.bool_),
        "truncated": np.empty(1, np.bool_),
    }
    return {
        name: tree_map(
            lambda part, length=num_steps + (name == "obs"): make(
                (length, num_envs, *part.shape[1:]), part.dtype
            ),
            part,
        )
        for name, part in row.items()
    }


class Actor:
    """Plays the fragments it is asked for, one after the other."""

    def __init__(
        self, config: ActorLearnerConfig, observation_space: spaces.Space, action_space: spaces.Space
    ) -> None:
        self.config = config.model_copy(update={"device": "cpu"})
        self.agent = trainer_class(config.algo).make_agent(self.config, observation_space, action_space)
        self.parameters, _ = flatten_parameters(list(self.agent.network.parameters()))
        self.collector: Collector | None = None
        self.at: tuple[int, int] | None = (
            None  # the stream it is in, and the number of the next fragment there
        )

    def play(self, request: Request, weights: np.ndarray, columns: Batch | None = None) -> Fragment:
        """The fragment asked for, written into `columns` if there are any."""
        place = (request.stream, request.number)
        at, self.at = self.at, None  # nowhere, should this not come to its end
        if at != place or self.collector is None:
            with taking_over(f"the checkpoint's state of actor {request.stream}"):
                self._go_to(request)
                unpack(weights, self.agent, self.parameters)
                check(self.agent, self.parameters)
        assert self.collector is not None
        collector, num_steps = self.collector, self.config.num_steps
        unpack(weights, self.agent, self.parameters)
        seed_everything(fold(self.config.seed, "fragment", *place))
        carry = tuple(part.numpy().copy() for part in collector.carry)
        if columns is None:
            obs = collector.environments.obs
            acted, _ = self.agent.act(obs, collector.carry, explore=False)
            columns = make_columns(obs, acted, num_steps, collector.environments.count)
        collector.columns = columns | {"obs": tree_map(lambda column: column[:-1], columns["obs"])}
        if request.arguments:
            assert isinstance(
                collector.environments, Environments
            )  # compiled ones refuse arguments that move
            collector.environments.begin_with(lambda steps: request.arguments)
        cut = collector.gather(self.agent, num_steps)
        put_rows(columns["obs"], collector.environments.obs, num_steps)
        episodes = collector.environments.take_finished()
        self.at = (request.stream, request.number + 1)
        return Fragment(*place, request.version, columns, carry, cut, episodes, collector.state_dict())

    def _go_to(self, request: Request) -> None:
        """Stand where the stream stood before the fragment asked for: its open episodes are played again."""
        self.close()
        config = self.config
        seed = fold(config.seed, "actor", request.stream)
        environments = make_environments(config, config.num_envs, seed, "train")
        self.collector = Collector(environments, self.agent)
        if request.state is not None:
            self.collector.load_state_dict(request.state)

    def close(self) -> None:
        if self.collector is not None:
            self.collector.environments.close()
            self.collector = None
