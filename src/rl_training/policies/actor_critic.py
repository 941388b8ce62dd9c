"""The policy of the on-policy family: an actor-critic network behind a frozen observation normaliser."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.data.collector import Carry
from rl_training.envs.action_masks import num_choices, refuse_empty_masks
from rl_training.envs.compiled import AnyEnvironments
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import ConfigError
from rl_training.kernels.acting import InMemory, SmallActorCritic
from rl_training.kernels.exact import taken
from rl_training.networks.actor_critic import ActorCritic, action_family
from rl_training.policies.base import NetworkPolicy, most_likely
from rl_training.policies.in_lanes import WholeRollouts
from rl_training.trees import Arrays, Tensors, space_leaves


def refuse_unbounded(action_space: spaces.Space) -> None:
    """Refuse continuous actions without bounds: tanh would hold them in (-1, 1), and nobody said that."""
    for leaf in space_leaves(action_space):
        if isinstance(leaf, spaces.Box) and not ActionCodec(leaf).bounded.all():
            raise ConfigError(
                "squash_actions needs bounds in every dimension of the action", ("squash_actions",)
            )


class ActorCriticPolicy(NetworkPolicy):
    """Actions of one network's action distribution, and its values. A network with a memory: `RecurrentPolicy`."""

    transient: tuple[str, ...] = ("family", "choices", "precision", "small")
    network_class: ClassVar[type[nn.Module]] = ActorCritic
    network: Any

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        normalize_observations: bool,
        device: str,
        precision: str = "fp32",
        squash_actions: bool = False,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        if squash_actions:
            refuse_unbounded(action_space)
        self.family = action_family(action_space, squash_actions)
        self.choices = num_choices(action_space)
        self.precision = precision
        self.network = self.network_class(observation_space, self.family, **network).to(self.device)
        make = partial(SmallActorCritic.of, family=self.family)
        self.small = InMemory.of(self.network, make) if precision == "fp32" else None

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        small = self._small(obs)
        if small is not None:
            return small.act(self.normalized(obs), explore), carry
        refuse_empty_masks(obs, self.choices)
        with torch.no_grad():
            return self.choose(*self._forward(self.inputs(obs)), explore), carry

    def whole_rollouts(self, environments: AnyEnvironments, greedy: bool = False) -> WholeRollouts | None:
        return WholeRollouts.of(self, environments, greedy)

    def choose(self, parameters: Tensor, value: Tensor, explore: bool) -> dict[str, np.ndarray]:
        """Actions for what the network put out: drawn, or the most likely ones."""
        action = self.family.sample(parameters) if explore else self.family.mode(parameters)
        log_prob = self.family.log_prob(parameters, action)
        acted = {"action": action, "log_prob": log_prob, "value": value}
        return {name: tensor.cpu().numpy() for name, tensor in acted.items()}

    def greedy(self, inputs: Tensors, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        return *most_likely(self.family, self.network.policy(inputs)), carry

    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        small = self._small(obs)
        if small is not None:
            return small.value(self.normalized(obs))
        with torch.no_grad():
            if self.precision != "fp32":  # as the values of the rollout were computed
                return self._forward(self.inputs(obs))[1].cpu().numpy()
            return self.network.value(self.inputs(obs)).cpu().numpy()

    def evaluate(self, inputs: Tensors, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log π(a|s), entropy and value [N], with gradients, for inputs that are normalised already."""
        parameters, value = self.outputs_for_loss(inputs)
        return *self.family.log_prob_and_entropy(parameters, action), value

    def outputs_for_loss(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Action parameters [N, P] and values [N], for a loss whose `backward` is called once, or for none."""
        single = self.precision == "fp32" and torch.is_grad_enabled()
        return (self.network.for_loss if single else self._forward)(inputs)

    def _forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        if self.precision == "fp32":
            return self.network(inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            parameters, value = self.network(inputs)
        return parameters.float(), value.float()

    def _small(self, obs: Arrays) -> SmallActorCritic | None:
        """The network without torch, where that is faster."""
        small = taken(self.small)
        return small if small is not None and small.fits(len(obs)) else None
