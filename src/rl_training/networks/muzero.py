"""The model of MuZero: representation, dynamics and prediction, for vectors and for frames.

    s₀ = h(o)        s' = g(s, a)        p, v, r = f(s)

The reward is read from the state that an action led to, so that all three heads are one network: the learner runs it
once on the states of all unrolled steps, and a search once per simulation. An action is a row of a table that is added
to the first layer of g, which is what a one-hot input beside the state would come to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.muzero import decode, scale_latent
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.kernels.small_model import SmallModel
from rl_training.networks.encoders import (
    ACTIVATIONS,
    OURS,
    Own,
    ResidualBlock,
    brightest,
    has_channels_last,
    is_image,
    is_small_image,
    make_encoder,
    observed,
    orthogonal,
    picture_shape,
)
from rl_training.trees import Tensors


class Predictions(NamedTuple):
    """What the heads say of N states."""

    policy: Tensor  # logits [N, A]
    value: Tensor  # logits [N, 2S + 1]
    reward: Tensor  # logits [N, 2S + 1] of what was earned on the way to the state


class MuZeroNetwork(nn.Module):
    """h, g and f in one module. `latent_size` is the width of a state: units for vectors, channels for frames."""

    transient = ("small",)
    atoms: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        num_actions: int,
        *,
        latent_size: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        support_size: int,
        residual_blocks: int,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.num_actions, self.support_size = num_actions, support_size
        self.register_buffer("atoms", torch.arange(-support_size, support_size + 1.0))
        self.representation: nn.Module
        self.dynamics: VectorDynamics | FrameDynamics
        if is_image(observation_space) and own == OURS:
            self.representation = FrameRepresentation(observation_space, latent_size, residual_blocks)
            self.dynamics = FrameDynamics(num_actions, latent_size, residual_blocks)
            self.features = self.representation.features
        else:
            encoder, width = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
            self.representation = nn.Sequential(encoder, orthogonal(nn.Linear(width, latent_size)))
            self.dynamics = VectorDynamics(num_actions, latent_size, hidden_sizes, activation)
            self.features = latent_size
        sizes = [self.features, *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [orthogonal(nn.Linear(inputs, outputs)), ACTIVATIONS[activation]()]
        # From zeros: every action is as good as any other, and all values and rewards are 0.
        heads = nn.Linear(sizes[-1], num_actions + 2 * (2 * support_size + 1))
        nn.init.zeros_(heads.weight)
        nn.init.zeros_(heads.bias)
        self.prediction = nn.Sequential(*layers, heads)
        self.small: Shortcut[SmallModel] | None = Shortcut.of(self, small_model)

    def represent(self, obs: Tensors) -> Tensor:
        """Observations [N, ...] → states [N, ...] in [0, 1]."""
        return scale_latent(self.representation(obs))

    def transition(self, latent: Tensor, action: Tensor) -> Tensor:
        """States [N, ...] and actions [N] → the states they lead to."""
        return scale_latent(self.dynamics(latent, action))

    def predict(self, latent: Tensor) -> Predictions:
        """What the heads say of states [N, ...]."""
        atoms = 2 * self.support_size + 1
        return Predictions(*self.prediction(latent).split([self.num_actions, atoms, atoms], -1))

    def initial(self, obs: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Observations [N, ...] → policy logits [N, A], values [N], states, for the roots of a search."""
        latent = self.represent(obs)
        policy, value, _ = self.predict(latent)
        return policy, decode(value, self.atoms), latent

    def recurrent(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States and actions → rewards [N], policy logits [N, A], values [N], the next states, without gradients."""
        small = taken(self.small)
        if small is not None and small.fits:
            return small.recurrent(latent, action)
        latent = self.transition(latent, action)
        policy, value, reward = self.predict(latent)
        return decode(reward, self.atoms), policy, decode(value, self.atoms), latent


def small_model(network: MuZeroNetwork) -> SmallModel | None:
    """A step of the model without torch, where states are vectors and all of it is exactly this."""
    ours = is_exact(network, MuZeroNetwork) and is_exact(network.dynamics, VectorDynamics)
    return SmallModel.of(network.dynamics, network.prediction) if ours else None  # type: ignore[arg-type]


class VectorDynamics(nn.Module):
    """s + W₂ f(W₁ s + row(a)), with more hidden layers in between if there are."""

    def __init__(
        self, num_actions: int, latent_size: int, hidden_sizes: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        first, *others = hidden_sizes or (latent_size,)
        self.state = orthogonal(nn.Linear(latent_size, first))
        self.action = nn.Embedding(num_actions, first)
        layers: list[nn.Module] = [ACTIVATIONS[activation]()]
        for inputs, outputs in itertools.pairwise([first, *others]):
            layers += [orthogonal(nn.Linear(inputs, outputs)), ACTIVATIONS[activation]()]
        width = others[-1] if others else first
        self.rest = nn.Sequential(*layers, orthogonal(nn.Linear(width, latent_size), 1.0))

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        return latent + self.rest(self.state(latent) + self.action(action))


class FrameRepresentation(nn.Module):
    """Residual convolutions that make frames [N, C, H, W] a sixteenth as wide, as in the paper's Atari network.

    Grids of less than 11 pixels a side keep their size, as in the paper's board games. Without batch normalisation:
    what a state is must not depend on the states beside it.
    """

    transient = ("scale", "sees")
    title = "residual CNN"

    def __init__(self, space: spaces.Space, channels: int, residual_blocks: int) -> None:
        super().__init__()
        assert space.shape is not None
        self.channels_last = has_channels_last(space)
        self.scale = brightest(space)
        self.sees = f"observation {observed(space)}"
        inputs, stride = picture_shape(space)[0], 1 if is_small_image(space) else 2
        layers: list[nn.Module] = []
        for outputs in (channels // 2, channels, channels):
            layers.append(orthogonal(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)))
            layers += [ResidualBlock(outputs) for _ in range(residual_blocks)]
            inputs = outputs
        pool = [] if stride == 1 else [nn.AvgPool2d(3, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers, *pool)
        with torch.no_grad():
            self.features = self(torch.zeros(1, *space.shape)).numel()

    def forward(self, frames: Tensor) -> Tensor:
        picture = frames.permute(0, 3, 1, 2) if self.channels_last else frames
        return self.layers(picture.float() / self.scale)


class FrameDynamics(nn.Module):
    """s + blocks(conv(s) + row(a)); the row of an action is added at every place of a state [N, C, H, W]."""

    def __init__(self, num_actions: int, channels: int, residual_blocks: int) -> None:
        super().__init__()
        self.state = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.action = nn.Embedding(num_actions, channels)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(residual_blocks)))

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        rows = self.action(action)[..., None, None]
        return latent + self.blocks(self.state(latent) + rows)
