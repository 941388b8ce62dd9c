"""The actor-critic network of the on-policy family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)
from rl_training.algorithms.masking import mask_logits
from rl_training.kernels.dense import DenseStack
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.networks.encoders import OURS, Own, make_encoder, orthogonal
from rl_training.settings.families import LOG_STD_BOUNDS
from rl_training.trees import Tensors, space_leaves


def action_family(space: spaces.Space, squash: bool = False) -> Family:
    """The distribution of actions for an action space; `squash` holds continuous ones in it by tanh."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(tuple(space.nvec.tolist()))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(space.shape[0]))
    if isinstance(space, spaces.Box):
        return (SquashedGaussian if squash else DiagonalGaussian)(math.prod(space.shape))
    leaves = list(space_leaves(space))
    # A choice as a row of one, so that the actions of all parts have a dimension to be joined along.
    families = [
        MultiCategorical((int(leaf.n),)) if isinstance(leaf, spaces.Discrete) else action_family(leaf, squash)
        for leaf in leaves
    ]
    return Joint(tuple(families), tuple(math.prod(leaf.shape or ()) for leaf in leaves))


class ActionHead(nn.Module):
    """Features [N, F] → the parameters of the action distribution [N, P].

    Its gain of 0.01 makes the first policy nearly uniform (Huang et al. 2022, detail 2). A Gaussian's
    log standard deviation is a parameter of its own that does not depend on the state. The mask of actions that
    an observation may hold is applied here, so that nothing downstream can forget it.
    """

    transient = ("logits",)

    def __init__(self, features: int, family: Family, log_std_init: float) -> None:
        super().__init__()
        scales = family.num_scales
        self.output = orthogonal(nn.Linear(features, family.num_parameters - scales), 0.01)
        self.log_std = nn.Parameter(torch.full((scales,), log_std_init)) if scales else None
        self.logits = family.logits  # what an action mask is for

    def forward(self, features: Tensor, obs: Tensors) -> Tensor:
        return self.complete(self.output(features), obs)

    def complete(self, output: Tensor, obs: Tensors) -> Tensor:
        """The parameters [N, P] from what the linear layer put out."""
        if self.logits:
            output = mask_logits(output, obs, self.logits)
        if self.log_std is None:
            return output
        return torch.cat([output, self.log_std.expand(*output.shape[:-1], -1)], -1)


class StateDependentHead(ActionHead):
    """The same with a log standard deviation that depends on the state, log σ = l + ½ (h - l) (1 + tanh(W x + b)).

    It stays between the bounds l and h, and begins at `log_std_init` nearly everywhere.
    """

    def __init__(self, features: int, family: Family, log_std_init: float) -> None:
        super().__init__(features, family, log_std_init)
        self.log_std = None
        self.spread = orthogonal(nn.Linear(features, family.num_scales), 0.01)
        low, high = LOG_STD_BOUNDS
        nn.init.constant_(self.spread.bias, math.atanh(2 * (log_std_init - low) / (high - low) - 1))

    def forward(self, features: Tensor, obs: Tensors) -> Tensor:
        low, high = LOG_STD_BOUNDS
        log_std = low + 0.5 * (high - low) * (1 + self.spread(features).tanh())
        return torch.cat([self.complete(self.output(features), obs), log_std], -1)


def make_head(features: int, family: Family, log_std_init: float, state_dependent_std: bool) -> ActionHead:
    """The head of an actor; what a state may change of the spread is asked for where there is one."""
    kind = StateDependentHead if state_dependent_std and family.num_scales else ActionHead
    return kind(features, family, log_std_init)


class ActorCritic(nn.Module):
    """Observations [N, ...] → action parameters [N, P] and state values [N].

    Actor and critic have an encoder each, or share one (`shared_trunk`), as is usual for images. `hidden_sizes` are the
    actor's layers, and the critic's unless it has `critic_sizes`.
    """

    transient = ("stacks",)

    def __init__(
        self,
        observation_space: spaces.Space,
        family: Family,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str = "nature",
        shared_trunk: bool,
        log_std_init: float,
        state_dependent_std: bool = False,
        critic_sizes: Sequence[int] | None = None,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        layers = (activation, image_encoder, own)
        self.actor_encoder, features = make_encoder(observation_space, hidden_sizes, *layers)
        self.critic_encoder, seen = None, features
        if not shared_trunk:
            sizes = hidden_sizes if critic_sizes is None else critic_sizes
            self.critic_encoder, seen = make_encoder(observation_space, sizes, *layers)
        self.actor_head = make_head(features, family, log_std_init, state_dependent_std)
        self.critic_head = orthogonal(nn.Linear(seen, 1), 1.0)
        self.stacks = Shortcut.of(self, dense_stacks)

    def for_loss(self, obs: Tensors) -> tuple[Tensor, Tensor]:
        """The same as `forward`, for a loss whose `backward` is called once; cheaper where layers are dense."""
        stacks = taken(self.stacks)
        if stacks is None or isinstance(obs, dict):
            return self(obs)
        output, value = (stack.for_loss(obs) for stack in stacks)
        return self.actor_head.complete(output, obs), value.squeeze(-1)

    def forward(self, obs: Tensors) -> tuple[Tensor, Tensor]:
        features = self.actor_encoder(obs)
        seen = features if self.critic_encoder is None else self.critic_encoder(obs)
        return self.actor_head(features, obs), self.critic_head(seen).squeeze(-1)

    def policy(self, obs: Tensors) -> Tensor:
        if not has_own_forward(self):
            return self(obs)[0]
        return self.actor_head(self.actor_encoder(obs), obs)

    def value(self, obs: Tensors) -> Tensor:
        if not has_own_forward(self):
            return self(obs)[1]
        encoder = self.actor_encoder if self.critic_encoder is None else self.critic_encoder
        return self.critic_head(encoder(obs)).squeeze(-1)


class PhasicActorCritic(ActorCritic):
    """The actor-critic of PPG (Cobbe et al. 2021): the policy's trunk has a value head of its own.

    With an encoder each, only that auxiliary head teaches values to the policy's trunk. With a shared trunk
    the critic reads it without a gradient, so that there too nothing but the auxiliary head does.
    """

    def __init__(self, observation_space: spaces.Space, family: Family, **settings: Any) -> None:
        super().__init__(observation_space, family, **settings)
        self.auxiliary_head = orthogonal(nn.Linear(self.actor_head.output.in_features, 1), 1.0)

    def forward(self, obs: Tensors) -> tuple[Tensor, Tensor]:
        features = self.actor_encoder(obs)
        return self.actor_head(features, obs), self._value(features, obs)

    def value(self, obs: Tensors) -> Tensor:
        if not has_own_forward(self):
            return self(obs)[1]
        return self._value(self.actor_encoder(obs) if self.critic_encoder is None else None, obs)

    def auxiliary(self, obs: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Action parameters [N, P], the auxiliary head's values [N] and the critic's [N]."""
        features = self.actor_encoder(obs)
        return (
            self.actor_head(features, obs),
            self.auxiliary_head(features).squeeze(-1),
            self._value(features, obs),
        )

    def _value(self, features: Tensor | None, obs: Tensors) -> Tensor:
        if self.critic_encoder is None:
            assert features is not None
            seen = features.detach()
        else:
            seen = self.critic_encoder(obs)
        return self.critic_head(seen).squeeze(-1)


def has_own_forward(network: nn.Module) -> bool:
    """Whether a network's `forward` is the one that its `policy` and its `value` are halves of."""
    return is_exact(network, ActorCritic, PhasicActorCritic)


def dense_stacks(network: ActorCritic) -> tuple[DenseStack, DenseStack] | None:
    """The actor and the critic as dense layers, where they are that and have an encoder each."""
    if not has_own_forward(network) or not is_exact(network.actor_head, ActionHead):
        return None
    actor = DenseStack.of(network.actor_encoder, network.actor_head.output)
    critic = DenseStack.of(network.critic_encoder, network.critic_head) if network.critic_encoder else None
    return None if actor is None or critic is None else (actor, critic)
