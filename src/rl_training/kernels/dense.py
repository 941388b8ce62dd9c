"""Hand-written gradients of small MLPs.

A layer of 64 units on 64 rows takes 10 µs; the module calls and the graph around it take several times that. The
gradients of a stack of dense layers are five lines, and no graph is needed below its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.kernels.exact import is_exact
from rl_training.networks.encoders import Flat

Backward = Callable[[Tensor], None]


def dense_layers(encoder: nn.Module, head: nn.Module) -> tuple[list[nn.Linear], type[nn.Module]] | None:
    """The layers of a vector's encoder and of its linear head, and the one activation between them.

    None for all other networks: pictures, no hidden layer, anything that is not exactly what `make_encoder` makes.
    """
    if not is_exact(encoder, nn.Sequential) or len(encoder) != 2:
        return None
    inputs, hidden = encoder
    if not (is_exact(inputs, Flat) and is_exact(hidden, nn.Sequential) and len(hidden) > 1):
        return None
    layers = stacked([*hidden, head])
    if layers is None or len(layers[1]) != 1:
        return None
    return layers[0], layers[1].pop()


def stacked(modules: Sequence[nn.Module]) -> tuple[list[nn.Linear], set[type[nn.Module]]] | None:
    """Dense layers and the kinds of activations between them; None if they do not take turns, or are not exact."""
    layers = [layer for layer in modules[::2] if is_exact(layer, nn.Linear) and layer.bias is not None]
    activations = modules[1::2]
    if len(layers) != len(modules[::2]) or len(activations) != len(layers) - 1:
        return None
    kinds = {type(each) for each in activations}
    return (layers, kinds) if all(is_exact(each, *kinds) for each in activations) else None


class DenseStack:
    """The dense layers of an encoder and its linear head, seen as one function of their own parameters."""

    def __init__(self, layers: list[nn.Linear], relu: bool) -> None:
        self.layers, self.relu = layers, relu

    @classmethod
    def of(cls, encoder: nn.Module, head: nn.Module) -> DenseStack | None:
        """For vectors that go through dense layers with ReLU or tanh; None for all other networks."""
        layers = dense_layers(encoder, head)
        if layers is None or layers[1] not in (nn.ReLU, nn.Tanh):
            return None
        return cls(layers[0], layers[1] is nn.ReLU)

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
            if layer.weight.requires_grad:
                _gradient(layer.weight).addmm_(slope.t(), hidden[k])
            if layer.bias.requires_grad:
                _gradient(layer.bias).add_(slope.sum(0))
            if k > 0:
                slope = slope @ layer.weight
                if self.relu:
                    slope = torch.ops.aten.threshold_backward(slope, hidden[k], 0)
                else:
                    slope = torch.ops.aten.tanh_backward(slope, hidden[k])


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
