"""The gradients of small dense networks, written out.

A layer of 64 units on 64 rows takes 10 µs; the module calls and the graph around it take several times that. The
gradients of a stack of dense layers are five lines, and no graph is needed below its output.
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

    def for_loss(self, obs: Tensor) -> Tensor:
        """The output [N, outputs] for a loss: its `backward` goes on into the parameters' gradients."""
        with torch.no_grad():
            *hidden, output = self.forward(obs)
        output.requires_grad_().register_post_accumulate_grad_hook(
            lambda output: self.backward(hidden, output.grad)
        )
        return output

    def backward(self, hidden: list[Tensor], slope: Tensor) -> None:
        """Add ∂W = gᵀ h and ∂b = Σ g to the parameters' gradients, with g ← (g W) ∘ f'(h) from layer to layer."""
        for k in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[k]
            _gradient(layer.weight).addmm_(slope.t(), hidden[k])
            _gradient(layer.bias).add_(slope.sum(0))
            if k > 0:
                slope = slope @ layer.weight
                if self.relu:
                    slope = torch.ops.aten.threshold_backward(slope, hidden[k], 0)
                else:
                    slope = torch.ops.aten.tanh_backward(slope, hidden[k])


def _gradient(parameter: Any) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
