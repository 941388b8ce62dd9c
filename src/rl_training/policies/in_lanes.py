"""Policies of dense layers inside compiled environments: a whole rollout is one call of compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.distributions import Categorical
from rl_training.data.batch import Batch
from rl_training.data.normalization import CLIP, EPSILON, ObservationNormalizer
from rl_training.envs.compiled import CompiledEnvironments, flat_size
from rl_training.envs.spaces import ActionCodec
from rl_training.kernels.acting import InMemory
from rl_training.kernels.exact import is_exact, is_ours
from rl_training.kernels.families import FAMILIES, KIND, NORMALS, SQUASHED, drawing, family_table, num_actions
from rl_training.kernels.layers import Layers
from rl_training.kernels.reading import acting_layers
from rl_training.kernels.rollouts import Acting, Rolled, Room, Scaling, roll
from rl_training.networks.encoders import Flat, Joined, OneHot
from rl_training.trees import tree_leaves

NOTHING = np.empty(0)
# All that a rollout asks of a policy, and the modules of the methods that compiled code stands in for.
ACTING = ("act", "choose", "value", "normalized", "inputs", "_forward")
HOMES = ("rl_training.policies.actor_critic", "rl_training.policies.base")
SINGLE, FLAGS = ("log_prob", "value", "next_value", "reward"), ("terminated", "truncated")


class WholeRollouts:
    """An actor-critic in compiled environments; None instead of a rollout while its network is not of dense layers."""

    def __init__(self, policy: Any, environments: CompiledEnvironments, greedy: bool = False) -> None:
        self.policy, self.environments = policy, environments
        self.scaling, self.family = scaling_of(environments.codec), family_table(policy.family)
        self.draws = drawing(self.family, greedy)
        self.layers = InMemory(policy.network, self._read)
        self.rolled: Rolled | None = None
        self.columns: Batch = {}

    @classmethod
    def of(cls, policy: Any, environments: Any, greedy: bool = False) -> WholeRollouts | None:
        """For policies and environments that compiled code knows; None for all others."""
        known = isinstance(environments, CompiledEnvironments) and type(policy.family) in FAMILIES
        known = known and environments.numbers == flat_size(environments.lanes.observation_space)
        known = known and is_ours(policy, HOMES, *ACTING) and is_plain(environments.codec)
        single = policy.device.type == "cpu" and policy.precision == "fp32"
        return cls(policy, environments, greedy) if known and single else None

    @property
    def is_ready(self) -> bool:
        """Whether the network is of dense layers now, and the policy acts by our methods."""
        return self._layers_now() is not None

    def _layers_now(self) -> Layers | None:
        return self.layers() if is_ours(self.policy, HOMES, *ACTING) else None

    def __call__(self, num_steps: int) -> Batch | None:
        """The columns of T steps in all lanes, valid until the next ones, with `next_value` among them."""
        layers = self._layers_now()
        if layers is None:
            return None
        layers.pack_forward()
        environments, rolled = self.environments, self._room(num_steps)
        rolled.obs[0] = environments.rows
        key = np.random.randint(0, 2**64, dtype=np.uint64)
        chance = np.array([key, 0], np.uint64)
        how = (self._acting(), self.family, self.draws, self.scaling, chance, rolled, self.room)
        ended = environments.called(roll, environments.state, *how)
        environments.stand_at(rolled.obs[-1].copy(), rolled.finished[:ended])
        if self.chosen is not rolled.action:
            np.copyto(self.chosen, rolled.action, casting="unsafe")
        if self.copies:
            self.columns = self.columns | {"obs": environments.shown(rolled.obs[:-1])}
        return self.columns

    def _read(self, network: Any) -> Layers | None:
        vectors = vectors_of(network)
        layers = None if vectors is None else acting_layers(network, vectors)
        if layers is None or not self._sees(network.actor_encoder[0]):
            return None
        inputs, masked = network.actor_encoder[0], 0
        if isinstance(inputs, Joined):
            inputs, masked = inputs.parts[0], self.policy.family.num_parameters
        self.acting = acting_of(inputs, layers, NOTHING, NOTHING, masked)
        count, size = self.environments.count, num_actions(self.family)
        self.room = Room(
            inputs=np.empty((count, layers.inputs), np.float32),
            outputs=np.empty((count, layers.outputs), np.float32),
            masks=np.empty((count if masked else 0, masked), np.bool_),
            taken=np.empty((count, size)),
            reward=np.empty(count),
            rows=np.arange(count),
            cut=np.empty(count, np.int64),
        )
        return layers

    def _sees(self, inputs: Any) -> bool:
        if not is_exact(inputs, Joined):
            return is_simple(inputs)
        # Compiled environments show an action mask behind one other part.
        normalizer = self.policy.normalizer
        plain = normalizer is None or normalizer.moments is None
        return plain and len(inputs.parts) == 1 and is_simple(inputs.parts[0])

    def _acting(self) -> Acting:
        if self.policy.normalizer is None:
            return self.acting
        mean, deviation = moments_of(self.policy.normalizer)
        return self.acting._replace(mean=mean, deviation=deviation)

    def _room(self, steps: int) -> Rolled:
        """Allocated once for each length, as are the columns over it."""
        if self.rolled is None or len(self.rolled.reward) != steps:
            count, numbers = self.environments.count, self.environments.numbers
            size = num_actions(self.family)
            column = (steps, count)
            single = {name: np.empty(column, np.float32) for name in SINGLE}
            flags = {name: np.empty(column, np.bool_) for name in FLAGS}
            self.rolled = Rolled(
                obs=np.zeros((steps + 1, count, numbers), np.float32),
                action=np.empty((*column, size), np.float32),
                **single,
                **flags,
                next_obs=np.empty((steps, count, numbers), np.float32),
                finished=np.empty((steps * count, 3)),
            )
            self.columns = self._columns(self.rolled)
        return self.rolled

    def _columns(self, rolled: Rolled) -> Batch:
        """The columns of a rollout, as views of its room where their types are the same."""
        drawn, obs = rolled.action, self.environments.shown(rolled.obs[:-1])
        self.chosen = (
            drawn if self.family[0, KIND] in (NORMALS, SQUASHED) else np.empty(drawn.shape, np.int64)
        )
        self.copies = not all(np.may_share_memory(part, rolled.obs) for _, part in tree_leaves(obs, "obs"))
        action = self.chosen[..., 0] if isinstance(self.policy.family, Categorical) else self.chosen
        return {"obs": obs, "action": action} | {name: getattr(rolled, name) for name in (*SINGLE, *FLAGS)}


def acting_of(
    inputs: Any, layers: Layers, mean: np.ndarray, deviation: np.ndarray, masked: int = 0
) -> Acting:
    """Layers whose observations become features by `inputs`, as compiled code reads them."""
    one_hot = isinstance(inputs, OneHot)
    return Acting(
        layers.addresses,
        layers.table,
        layers.packed,
        layers.memory,
        layers.outputs,
        mean,
        deviation,
        CLIP,
        choices=inputs.sizes[0] if one_hot else 0,
        first_choice=inputs.starts[0] if one_hot else 0,
        masked=masked,
    )


def is_simple(inputs: Any) -> bool:
    """Whether compiled code makes features of observations as `inputs` does: numbers as they are, or one choice."""
    return is_exact(inputs, Flat) or (is_exact(inputs, OneHot) and len(inputs.sizes) == 1)


def one_vector(network: nn.Module) -> Tensor | None:
    """The vector that all parameters of a network are views of; None where they are not."""
    vectors = vectors_of(network)
    return vectors[0] if vectors is not None and len(vectors) == 1 else None


def vectors_of(network: nn.Module) -> list[Tensor] | None:
    """The vectors that the parameters of a network are views of, one per optimizer; None where they cannot be read."""
    parameters = list(network.parameters())
    if not all(part.dtype == torch.float32 and part.is_contiguous() for part in parameters):
        return None
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in parameters}
    return [torch.empty(0).set_(storage) for storage in storages.values()]


def moments_of(normalizer: ObservationNormalizer | None) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the deviation that observations are scaled by, flat; empty where they are not."""
    if normalizer is None or normalizer.moments is None:
        return NOTHING, NOTHING
    moments = normalizer.moments
    return moments.mean.reshape(-1), np.sqrt(moments.variance + EPSILON).reshape(-1)


def is_plain(codec: ActionCodec) -> bool:
    """Whether compiled code makes an environment's action as the codec does: choices from 0, or single precision."""
    space = codec.space
    if isinstance(space, spaces.Box):
        return space.dtype == np.float32
    return isinstance(codec, ActionCodec) and not np.any(getattr(space, "start", 0))


def scaling_of(codec: ActionCodec) -> Scaling:
    """An action codec as compiled code reads it."""
    if not isinstance(codec.space, spaces.Box):
        return Scaling(NOTHING.astype(np.bool_), NOTHING, NOTHING, NOTHING, NOTHING)
    ends = (np.asarray(end, np.float64).reshape(-1) for end in (codec.space.low, codec.space.high))
    return Scaling(codec.bounded, codec.half_width, codec.centre, *ends)
