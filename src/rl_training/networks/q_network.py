"""The network of DQN: from observations to the value of every action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.dqn import dueling
from rl_training.networks.encoders import make_encoder, orthogonal


class QNetwork(nn.Module):
    """Observations [N, ...] → Q [N, actions]; with `dueling`, the sum of a value and of advantages."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        num_actions: int,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        dueling: bool,
    ) -> None:
        super().__init__()
        self.encoder, features = make_encoder(observation_space, hidden_sizes, activation, image_encoder)
        self.dueling = dueling
        self.head = orthogonal(nn.Linear(features, num_actions + dueling), 1.0)

    def forward(self, obs: Any) -> Tensor:
        output = self.head(self.encoder(obs))
        return dueling(output) if self.dueling else output
