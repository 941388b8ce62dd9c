"""The discriminator of adversarial imitation: classifies observation-action pairs as expert's or agent's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.kernels.dense import DenseStack, stacked
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.networks.encoders import OURS, Own, make_body, make_inputs, orthogonal
from rl_training.trees import Tensors


class Discriminator(nn.Module):
    """Observations and model-space actions [N, ...] → the logits f [N] of their being the expert's.

    Its hidden layers are tanh. The output layer begins at 0: before the first update D is one half everywhere.
    """

    transient = ("stack", "body")

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        hidden_sizes: Sequence[int],
        image_encoder: str,
        spectral_norm: bool,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        key = "discriminator_encoder"
        self.observation = make_inputs(observation_space, image_encoder, own=own.encoder, key=key)
        self.action = make_inputs(_model_space(action_space), image_encoder)
        linear = SpectralLinear if spectral_norm else nn.Linear
        self.size = size = self.observation.features + self.action.features + 1
        self.hidden = nn.ModuleList()
        self.body: nn.Module | None = None  # a user's own, in the place of the hidden layers
        if own.network is not None:
            self.body, size = make_body(size, (), "tanh", own, "discriminator_network")
        for units in () if own.network is not None else hidden_sizes:
            self.hidden.append(orthogonal(linear(size, units)))
            size = units
        self.output = linear(size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.stack = Shortcut.of(self, dense_stack)

    def inputs(self, obs: Tensors, action: Tensor) -> Tensor:
        """[N, F]: the observation's features, the action's, and the flag of the absorbing state, which is 0."""
        pair = torch.cat([self.observation(obs), self.action(action)], -1)
        return F.pad(pair, (0, 1))

    def absorbing(self) -> Tensor:
        """[1, F]: of the state that follows a termination nothing is seen but its flag."""
        flag = torch.zeros(1, self.size, device=self.output.weight.device)
        flag[:, -1] = 1.0
        return flag

    def forward(self, inputs: Tensor) -> Tensor:
        if self.body is not None:
            inputs = self.body(inputs)
        for layer in self.hidden:
            inputs = layer(inputs).tanh()
        return self.output(inputs).squeeze(-1)

    def for_loss(self, inputs: Tensor) -> Tensor:
        """The same as `forward`, for a loss whose `backward` is called once; cheaper where layers are plain."""
        stack = taken(self.stack)
        return self(inputs) if stack is None else stack.for_loss(inputs).squeeze(-1)

    def slope(self, inputs: Tensor) -> Tensor:
        """∇ₓ f at inputs [N, F], with gradients: g ← (g ∘ (1 - h²)) W from layer to layer, with h = tanh(W x + b).

        Written out, it takes half the time of a gradient of a gradient.
        """
        if not self._has_plain_layers():
            inputs = inputs.detach().requires_grad_()
            return torch.autograd.grad(self(inputs).sum(), inputs, create_graph=True)[0]
        passed: list[tuple[Tensor, Tensor]] = []
        for layer in self.hidden:
            assert isinstance(layer, nn.Linear)
            weight = _weight(layer)
            inputs = F.linear(inputs, weight, layer.bias).tanh()
            passed.append((weight, inputs))
        slope = _weight(self.output)
        for weight, activation in reversed(passed):
            slope = (slope * (1 - activation.square())) @ weight
        return slope

    @property
    def learns_inputs(self) -> bool:
        """Whether there is something to learn in what makes `inputs` of a pair."""
        return any(True for part in (self.observation, self.action) for _ in part.parameters())

    def _has_plain_layers(self) -> bool:
        layers = [*self.hidden, self.output]
        return (
            is_exact(self, Discriminator)
            and self.body is None
            and all(is_exact(layer, nn.Linear, SpectralLinear) for layer in layers)
        )


def dense_stack(network: Discriminator) -> DenseStack | None:
    """All layers as one function, where they are plain and no gradient goes on below them."""
    if not is_exact(network, Discriminator) or network.learns_inputs or network.body is not None:
        return None
    turns = [part for layer in network.hidden for part in (layer, nn.Tanh())]
    found = stacked([*turns, network.output])
    return None if found is None else DenseStack(found[0], relu=False)


class SpectralLinear(nn.Linear):
    """W / max(1, σ(W)): a dense layer that stretches no vector, after Miyato et al. 2018.

    σ, the largest singular value, is followed by one step of the power method per pass with gradients. A weight
    below 1 is left as it is, so that a layer may begin at 0.
    """

    direction: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("direction", F.normalize(torch.randn(outputs), dim=0))

    def effective_weight(self) -> Tensor:
        learning = torch.is_grad_enabled()
        with torch.no_grad():
            right = F.normalize(self.weight.t() @ self.direction, dim=0)
            left = F.normalize(self.weight @ right, dim=0)
            if learning and left.any():  # a weight of 0 has no direction
                self.direction.copy_(left)
        norm = left @ (self.weight @ right)
        return self.weight / norm.clamp(min=1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.effective_weight(), self.bias)


def _weight(layer: nn.Linear) -> Tensor:
    return layer.effective_weight() if isinstance(layer, SpectralLinear) else layer.weight


def _model_space(space: spaces.Space) -> spaces.Space:
    """The space of a policy's actions, whose choices are counted from 0."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    return space
