"""The network of DQN: from observations to the value of every action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.dqn import dueling
from rl_training.kernels.dense import Backward, DenseStack
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.networks.encoders import OURS, Own, make_encoder, orthogonal
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
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.encoder, features = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
        self.dueling = dueling
        self.head = orthogonal(nn.Linear(features, num_actions + dueling), 1.0)
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


def dense_stack(network: QNetwork) -> DenseStack | None:
    """The network as dense layers, where it is that and nothing is summed behind them."""
    plain = is_exact(network, QNetwork) and not network.dueling
    return DenseStack.of(network.encoder, network.head) if plain else None
