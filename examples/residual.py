"""Hidden layers and an encoder of one's own: residual blocks with layer normalisation, and Fourier features."""

import torch
from gymnasium import spaces
from torch import Tensor, nn


class Residual(nn.Module):
    """Blocks x + W₂ relu(W₁ norm(x)) behind a dense layer: [N, inputs] → [N, width]."""

    def __init__(self, inputs: int, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.first(features)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden


class Fourier(nn.Module):
    """Observations [N, D] → [N, 2F]: sine and cosine of learned frequencies."""

    def __init__(self, observation_space: spaces.Box, frequencies: int = 32) -> None:
        super().__init__()
        self.waves = nn.Linear(observation_space.shape[0], frequencies)

    def forward(self, obs: Tensor) -> Tensor:
        waves = self.waves(obs)
        return torch.cat([waves.sin(), waves.cos()], -1)
