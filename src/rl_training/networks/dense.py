"""The gradients of small dense networks, written out.

A layer of 64 units on 64 rows takes 10 µs; the module calls and the graph around it take several times that. Where
the slope of a loss is known by hand, as in DQN, a network's gradients are five lines and no graph is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.networks.encoders import Flat

Backward = Callable[[Tensor], None]


class DenseStack:
    """The dense layers of an encoder and its linear head, seen as one function of their own parameters."""

    def __init__(self, layers: list[nn.Linear], relu: bool) -> None:
        self.layers, self.relu = layers, relu

    @classmethod
    def of(cls, encoder: nn.Sequential, head: nn.Module) -> DenseStack | None:
        """For vectors that go through dense layers with ReLU or tanh; None for all other networks."""
        inputs, hidden = encoder
        assert isinstance(hidden, nn.Sequential)
        kind = type(hidden[1]) if len(hidden) > 0 else None
        if not isinstance(inputs, Flat) or kind not in (nn.ReLU, nn.Tanh):
            return None
        return cls([layer for layer in (*hidden, head) if isinstance(layer, nn.Linear)], kind is nn.ReLU)

    def forward(self, obs: Tensor) -> list[Tensor]:
        """The inputs of every layer, and last the output [N, outputs]: hₖ = f(hₖ₋₁ Wₖᵀ + bₖ), without f at the end."""
        hidden = [obs.reshape(len(obs), -1).float()]
        for layer in self.layers[:-1]:
            output = torch.addmm(layer.bias, hidden[-1], layer.weight.t())
            hidden.append(output.relu_() if self.relu else output.tanh_())
        last = self.layers[-1]
        return [*hidden, torch.addmm(last.bias, hidden[-1], last.weight.t())]

    def backward(self, hidden: list[Tensor], slope: Tensor) -> None:
        """Put ∂W = gᵀ h and ∂b = Σ g into the parameters' gradients, with g ← (g W) ∘ f'(h) from layer to layer."""
        for k in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[k]
            torch.mm(slope.t(), hidden[k], out=_gradient(layer.weight))
            torch.sum(slope, 0, out=_gradient(layer.bias))
            if k > 0:
                slope = slope @ layer.weight
                if self.relu:
                    slope = torch.ops.aten.threshold_backward(slope, hidden[k], 0)
                else:
                    slope = slope * (1 - hidden[k].square())


def _gradient(parameter: Any) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
