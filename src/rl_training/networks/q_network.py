"""The network of DQN: from observations to the value of every action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.dqn import dueling
from rl_training.kernels.dense import Backward, DenseStack
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.networks.encoders import OURS, Own, make_encoder, mlp, orthogonal
from rl_training.trees import Tensors


class QNetwork(nn.Module):
    """Observations [N, ...] → Q [N, actions]; with `dueling`, the sum of a value and of advantages."""

    transient = ("stack",)

    def __init__(
        self,
        observation_space: spaces.Space,
        num_actions: int,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        dueling: bool,
        dueling_sizes: Sequence[int] | None = None,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.encoder, features = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
        self.dueling = dueling
        sizes = (features,) if dueling_sizes is None else tuple(dueling_sizes)
        self.head = (
            Streams(features, num_actions, sizes, activation, own.layer_norm)
            if dueling and sizes
            else orthogonal(nn.Linear(features, num_actions + dueling), 1.0)
        )
        self.stack = Shortcut.of(self, dense_stack)

    def forward(self, obs: Tensors) -> Tensor:
        stack = None if torch.is_grad_enabled() else taken(self.stack)
        if stack is not None and isinstance(obs, Tensor):
            return stack.forward(obs)[-1]
        output = self.head(self.encoder(obs))
        return dueling(output) if self.dueling else output

    def with_backward(self, obs: Tensors) -> tuple[Tensor, Backward]:
        """Q, and what takes the slope of a loss in Q [N, actions] to gradients, which must be zero before."""
        stack = taken(self.stack)
        if stack is None or isinstance(obs, dict):
            q = self(obs)
            return q.detach(), q.backward
        with torch.no_grad():
            hidden = stack.forward(obs)
        return hidden[-1], torch.no_grad()(lambda slope: stack.backward(hidden, slope))


class Streams(nn.Module):
    """Features [N, F] → V and the advantages side by side [N, 1 + actions], each from hidden layers of its own."""

    def __init__(
        self, features: int, num_actions: int, sizes: Sequence[int], activation: str, layer_norm: bool
    ) -> None:
        super().__init__()
        self.value_hidden, self.advantage_hidden = (
            mlp(features, sizes, activation, layer_norm) for _ in range(2)
        )
        self.value = orthogonal(nn.Linear(sizes[-1], 1), 1.0)
        self.advantage = orthogonal(nn.Linear(sizes[-1], num_actions), 1.0)

    def forward(self, features: Tensor) -> Tensor:
        value, advantage = self.value_hidden(features), self.advantage_hidden(features)
        return torch.cat([self.value(value), self.advantage(advantage)], -1)


def dense_stack(network: QNetwork) -> DenseStack | None:
    """The network as dense layers, where it is that and nothing is summed behind them."""
    plain = is_exact(network, QNetwork) and not network.dueling
    return DenseStack.of(network.encoder, network.head) if plain else None
