"""The networks of Soft Actor-Critic: a Gaussian actor, and two critics in one batched network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.networks.encoders import (
    ACTIVATIONS,
    OURS,
    Own,
    make_body,
    make_encoder,
    make_inputs,
    orthogonal,
)
from rl_training.trees import Tensors

LOG_STD_BOUNDS = (-20.0, 2.0)


class GaussianActor(nn.Module):
    """Observations [N, ...] → means and log standard deviations [N, D] of actions before they are squashed."""

    def __init__(
        self,
        observation_space: spaces.Space,
        num_dimensions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.encoder, features = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
        # The first policy is nearly the standard normal, squashed.
        self.head = orthogonal(nn.Linear(features, 2 * num_dimensions), 0.01)

    def forward(self, obs: Tensors) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(self.encoder(obs)).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_BOUNDS)


class TwinCritics(nn.Module):
    """Observations [N, ...] and actions [N, D] → two independent Q [2, N].

    The two networks are one: every layer holds both weights [2, inputs, outputs] and is one batched product.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_dimensions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.inputs = make_inputs(observation_space, image_encoder, own=own.encoder)
        sizes = [self.inputs.features + num_dimensions, *hidden_sizes]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = 1 / math.sqrt(inputs)
            self.weights.append(torch.empty(2, inputs, outputs).uniform_(-bound, bound))
            self.biases.append(torch.empty(2, 1, outputs).uniform_(-bound, bound))
        bound = 1 / math.sqrt(sizes[-1])
        self.weights.append(torch.empty(2, 1, sizes[-1]).uniform_(-bound, bound))
        self.biases.append(torch.empty(2, 1).uniform_(-bound, bound))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, obs: Tensors, action: Tensor, frozen: bool = False) -> Tensor:
        """With `frozen`, gradients reach the action but no weight: half of the backward pass is saved."""
        weights, biases = list(self.weights), list(self.biases)
        features = self.inputs(obs)
        if frozen:
            features = features.detach()
            weights, biases = [w.detach() for w in weights], [b.detach() for b in biases]
        hidden = torch.cat([features, action], -1).expand(2, -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            hidden = self.activation(torch.baddbmm(bias, hidden, weight))
        # To one output, a product of matrices takes seven times as long as this sum.
        return (hidden * weights[-1]).sum(-1) + biases[-1]


class SeparateCritics(nn.Module):
    """The same with any hidden layers: a user's own, or ours with layer normalisation."""

    def __init__(
        self,
        observation_space: spaces.Space,
        num_dimensions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        own: Own,
    ) -> None:
        super().__init__()
        self.inputs = make_inputs(observation_space, image_encoder, own=own.encoder)
        inputs = self.inputs.features + num_dimensions
        self.bodies, self.heads = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            body, features = make_body(inputs, hidden_sizes, activation, own)
            self.bodies.append(body)
            self.heads.append(orthogonal(nn.Linear(features, 1), 1.0))

    def forward(self, obs: Tensors, action: Tensor, frozen: bool = False) -> Tensor:
        if frozen:
            with without_gradients(self):
                return self(obs, action)
        pair = torch.cat([self.inputs(obs), action], -1)
        judged = zip(self.bodies, self.heads, strict=True)
        return torch.stack([head(body(pair)).squeeze(-1) for body, head in judged])


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """In here the parameters of a module are constants."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def make_critics(
    observation_space: spaces.Space, num_dimensions: int, *, own: Own = OURS, **layers: Any
) -> TwinCritics | SeparateCritics:
    """Two critics: as one batched product where their layers are plain, else side by side."""
    plain = own.network is None and not own.layer_norm
    return (TwinCritics if plain else SeparateCritics)(observation_space, num_dimensions, **layers, own=own)
