"""Policies of a replay family in compiled environments: the steps of an iteration or an evaluation in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from torch import Tensor

from rl_training.compiling import address
from rl_training.data.batch import Batch
from rl_training.data.normalization import EPSILON
from rl_training.envs.compiled import AnyEnvironments, CompiledEnvironments
from rl_training.kernels.acting import InMemory
from rl_training.kernels.exact import is_ours
from rl_training.kernels.gathering import (
    CHOOSE,
    TAKE_IN,
    Exploring,
    Lines,
    Moments,
    Stepped,
    choose_greedily,
    gather_steps,
    take_in,
)
from rl_training.kernels.layers import Layers
from rl_training.kernels.reading import head_layers
from rl_training.kernels.rollouts import Acting
from rl_training.networks.q_network import QNetwork
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS, GaussianActor
from rl_training.policies.in_lanes import (
    NOTHING,
    acting_of,
    is_plain,
    is_simple,
    moments_of,
    one_vector,
    scaling_of,
)

Read = Callable[[Any, Tensor], Layers | None]
# All that steps ask of a policy; a subclass has none of these steps.
ACTING = ("act", "value", "normalized", "inputs", "observe", "outputs_of")
STILL = Moments(0, NOTHING, NOTHING, NOTHING, EPSILON)  # no statistics that move


class LaneSteps:
    """A policy in compiled environments; None instead of steps while its network is of other layers than dense ones."""

    def __init__(
        self,
        policy: Any,
        network: QNetwork | GaussianActor,
        choose: Any,
        read: Read,
        environments: CompiledEnvironments,
    ) -> None:
        self.policy, self.network, self.read = policy, network, read
        self.where, self.choices = address(choose, CHOOSE), choose is choose_greedily
        self.environments, self.scaling = environments, scaling_of(environments.codec)
        self.reading = InMemory(network, self._read)
        self.stepped: Stepped | None = None

    @classmethod
    def of(
        cls,
        policy: Any,
        network: QNetwork | GaussianActor,
        choose: Any,
        read: Read,
        environments: AnyEnvironments,
    ) -> Self | None:
        """For environments that compiled code knows; None for all others.

        choose: the compiled function that makes actions of the network's outputs
        read: the network's layers, as compiled code reads them
        """
        if not isinstance(environments, CompiledEnvironments) or not is_plain(environments.codec):
            return None
        return cls(policy, network, choose, read, environments) if policy.device.type == "cpu" else None

    @property
    def is_ready(self) -> bool:
        """Whether the network is of dense layers now, and the policy acts by our methods."""
        return self._reading_now() is not None

    def _reading_now(self) -> tuple[Layers, Acting] | None:
        return self.reading() if is_ours(self.policy, "rl_training.policies.", *ACTING) else None

    def _step(self, shares: np.ndarray, moments: Moments) -> Batch | None:
        reading = self._reading_now()
        if reading is None:
            return None
        layers, acting = reading
        layers.pack_forward()
        environments, stepped = self.environments, self._room(len(shares))
        stepped.obs[0] = environments.rows
        chance = np.array([np.random.randint(0, 2**64, dtype=np.uint64), 0], np.uint64)
        first = int(isinstance(self.network, QNetwork) and self.network.dueling)
        exploring = Exploring(self.where, first, *LOG_STD_BOUNDS, shares)
        mean, deviation = moments_of(self.policy.normalizer)
        acting = acting._replace(mean=moments.mean if len(moments.mean) else mean, deviation=deviation)
        # As plain tuples: of each named one, numba asks Python for its class.
        how = map(tuple, (environments.state, acting, self.scaling, exploring, moments, stepped, self.lines))
        ended = environments.called(gather_steps, *how, chance)
        environments.stand_at(stepped.obs[-1].copy(), stepped.finished[:ended])
        return {
            "action": stepped.action[..., 0].astype(np.int64) if self.choices else stepped.action,
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
            "next_obs": environments.shown(stepped.next_obs),
            "obs": environments.shown(stepped.obs[1:]),
        }

    def _read(self, network: Any) -> tuple[Layers, Acting] | None:
        """Its layers, and how they act on observations as they are."""
        vector = one_vector(network)
        layers = None if vector is None else self.read(network, vector)
        if layers is None or not is_simple(network.encoder[0]):
            return None
        count = self.environments.count
        self.lines = Lines(
            inputs=np.empty((count, layers.inputs), np.float32),
            outputs=np.empty((count, layers.outputs), np.float32),
            taken=np.empty((count, self._size)),
            reward=np.empty(count),
            rows=np.arange(count),
        )
        return layers, acting_of(network.encoder[0], layers, NOTHING, NOTHING)

    @property
    def _size(self) -> int:
        """Numbers in an action."""
        return 1 if self.choices else self.environments.codec.half_width.size

    def _room(self, steps: int) -> Stepped:
        """Allocated once for each length."""
        if self.stepped is None or len(self.stepped.reward) != steps:
            count, numbers = self.environments.count, self.environments.numbers
            column = (steps, count)
            self.stepped = Stepped(
                obs=np.empty((steps + 1, count, numbers), np.float32),
                action=np.empty((*column, self._size), np.float32),
                reward=np.empty(column, np.float32),
                terminated=np.empty(column, np.bool_),
                truncated=np.empty(column, np.bool_),
                next_obs=np.empty((steps, count, numbers), np.float32),
                finished=np.empty((steps * count, 3)),
            )
        return self.stepped


class WholeSteps(LaneSteps):
    """A policy that explores."""

    def __call__(self, shares: np.ndarray) -> Batch | None:
        """The columns of T steps in all lanes, as `Replay.extend` takes them, with these shares [T] of random actions.

        They are valid until the next ones. The policy's statistics of observations have moved.
        """
        moments = self._moments()
        columns = self._step(shares, moments)
        if columns is not None:
            self._take_in(moments)
        return columns

    def _moments(self) -> Moments:
        """The policy's statistics of observations, which move with every step."""
        normalizer = self.policy.normalizer
        if normalizer is None or normalizer.moments is None:
            return STILL
        moments = normalizer.moments
        flat = (moments.mean.reshape(-1).copy(), moments.variance.reshape(-1).copy())
        return Moments(address(take_in, TAKE_IN), *flat, np.array([moments.count]), EPSILON)

    def _take_in(self, moved: Moments) -> None:
        if len(moved.mean):
            moments = self.policy.normalizer.moments
            shape = moments.mean.shape
            moments.mean, moments.variance = moved.mean.reshape(shape), moved.variance.reshape(shape)
            moments.count = float(moved.seen[0])


class GreedySteps(LaneSteps):
    """A policy that takes its best actions, as in evaluations: its statistics of observations stay as they are."""

    def __call__(self, num_steps: int) -> Batch | None:
        return self._step(np.zeros(num_steps), STILL)


def q_layers(network: Any, parameters: Tensor) -> Layers | None:
    return head_layers(network, QNetwork, parameters)
