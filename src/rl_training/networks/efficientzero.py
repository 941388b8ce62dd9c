"""EfficientZero's additions to MuZero's model: the value-prefix LSTM and the projection of states.

    hₖ, cₖ = LSTM(sₖ, hₖ₋₁, cₖ₋₁)        prefixₖ = f(sₖ) + W hₖ        rₖ = prefixₖ - prefixₖ₋₁

A prefix is what was earned since the memory was last emptied, which is after every `prefix_horizon` steps. It is easier
to say than a reward: a model that sees a reward come need not know in which step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.muzero import Unrolled
from rl_training.kernels.exact import Shortcut, is_exact, taken
from rl_training.kernels.frame_model import FrameModel, Memory
from rl_training.kernels.small_model import SmallModel
from rl_training.kernels.small_prefix_model import SmallPrefixModel
from rl_training.networks.encoders import orthogonal
from rl_training.networks.muzero import (
    FrameLayers,
    FrameNorm,
    MuZeroNetwork,
    VectorDynamics,
    knows,
    parts_of,
    reduced,
    reduces,
)
from rl_training.trees import Tensors

PREFIX_CHANNELS = 16  # to which a state of frames is reduced before it enters the memory, as in the paper


class EfficientZeroNetwork(MuZeroNetwork):
    """MuZero's, with a value prefix in place of rewards and with SimSiam's projector and predictor.

    In a search the memory travels with the state: a latent is a dict of `latent`, `hidden`, `cell`, `prefix` [N],
    what was earned since the memory was emptied, and `steps` [N], how many steps that was. Without `value_prefix` it
    is MuZero's tensor.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_actions: int,
        *,
        value_prefix: bool,
        prefix_size: int,
        prefix_horizon: int,
        consistency: bool,
        projection_size: int,
        **sizes: Any,
    ) -> None:
        super().__init__(observation_space, num_actions, **sizes)
        self.prefix_horizon = prefix_horizon
        channels = None if isinstance(self.dynamics, VectorDynamics) else sizes["latent_size"]
        atoms = 2 * sizes["support_size"] + 1
        normalised = channels is not None and sizes.get("batch_norm", False)
        self.prefix = (
            PrefixMemory(self.features, channels, prefix_size, atoms, normalised) if value_prefix else None
        )
        self.projection = Projection(self.features, projection_size) if consistency else None
        self.small = Shortcut.of(self, small_prefix_model)
        self.on_frames = Shortcut.of(self, frame_prefix_model)

    def initial(self, obs: Tensors | None, latent: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        policy, value, latent = super().initial(obs, latent)
        if self.prefix is None:
            return policy, value, latent
        hidden = latent.new_zeros(len(latent), self.prefix.cell.hidden_size)
        steps = torch.zeros(len(latent), dtype=torch.int64, device=latent.device)
        empty = {"hidden": hidden, "cell": hidden, "prefix": torch.zeros_like(value), "steps": steps}
        return policy, value, {"latent": latent, **empty}

    def recurrent(self, latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        if self.prefix is None:
            return super().recurrent(latent, action)
        small = taken(self.small)
        if small is not None and small.fits:
            return small.recurrent(latent, action)
        state = self.transition(latent["latent"], action)
        policy, value, reward = self.predict(state)
        more, hidden, cell = self.prefix.step(state, latent["hidden"], latent["cell"])
        value, prefix = self.decode(torch.stack([value, reward + more]))
        earned = prefix - latent["prefix"]
        # The step that fills the horizon is the last one that remembers: the next prefix begins at 0.
        steps = (latent["steps"] + 1) % self.prefix_horizon
        remembers = steps > 0
        hidden, cell = hidden * remembers[:, None], cell * remembers[:, None]
        memory = {"hidden": hidden, "cell": cell, "prefix": prefix * remembers, "steps": steps}
        return earned, policy, value, {"latent": state, **memory}

    def unroll(self, obs: Tensors, actions: Tensor) -> Unrolled:
        said = super().unroll(obs, actions)
        if self.prefix is None:
            return said
        first, rest = said.reward.view(*said.states.shape[:2], -1).split([1, len(actions)])
        prefixes = self.prefixes(rest, said.states[1:])
        return said._replace(reward=torch.cat([first, prefixes]).flatten(0, 1))

    def prefixes(self, reward: Tensor, latents: Tensor) -> Tensor:
        """Logits [K, B, 2S + 1] of the prefixes, from what the heads say of the K states [K, B, ...] of an unroll."""
        assert self.prefix is not None
        windows = [self.prefix(window) for window in latents.split(self.prefix_horizon)]
        return reward + torch.cat(windows)


def small_prefix_model(network: EfficientZeroNetwork) -> SmallModel | None:
    """As `muzero.small_model`, with the prefix's memory where there is one."""
    ours = is_exact(network, EfficientZeroNetwork) and is_exact(network.dynamics, VectorDynamics)
    if not (ours and network.value_transform):
        return None
    models: Any = network.dynamics, network.prediction
    if network.prefix is None:
        return SmallModel.of(*models)
    parts = {network.prefix: PrefixMemory, network.prefix.reduce: nn.Identity, network.prefix.head: nn.Linear}
    ours = all(is_exact(part, kind) for part, kind in parts.items()) and network.prefix.has_plain_cell
    return SmallPrefixModel.of(*models, network.prefix, network.prefix_horizon) if ours else None


def frame_prefix_model(network: EfficientZeroNetwork) -> Callable[[], FrameModel] | None:
    """As `muzero.frame_model`, with the prefix's memory where there is one."""
    ours = is_exact(network, EfficientZeroNetwork) and network.value_transform
    if not (ours and is_exact(network.tower, nn.Identity) and knows(network.dynamics, network.prediction)):
        return None
    prefix = network.prefix
    if prefix is None:
        return lambda: FrameModel(*parts_of(network))
    ours = is_exact(prefix, PrefixMemory) and prefix.has_plain_cell and is_exact(prefix.head, nn.Linear)
    *reduce, flat = prefix.reduce.children()
    ours = ours and reduces(reduce) and is_exact(prefix.reduce, FrameLayers) and is_exact(flat, nn.Flatten)
    if not (ours and prefix.cell.hidden_size % 4 == 0):  # its gates fill whole panels
        return None

    def made() -> FrameModel:
        head, cell = (prefix.head.weight, prefix.head.bias), tuple(prefix.cell.parameters())
        memory = Memory(reduced(prefix.reduce), cell, head, network.prefix_horizon)  # type: ignore[arg-type]
        return FrameModel(*parts_of(network), memory)

    return made


class PrefixMemory(nn.Module):
    """An LSTM over states, and what it adds to the logits of a value prefix."""

    def __init__(
        self, features: int, channels: int | None, size: int, atoms: int, normalised: bool = False
    ) -> None:
        super().__init__()
        self.reduce: nn.Module = nn.Identity()
        if channels is not None:
            fewer = min(PREFIX_CHANNELS, channels)
            norm = [FrameNorm(fewer)] if normalised else []
            convolution = orthogonal(nn.Conv2d(channels, fewer, 1))
            self.reduce = FrameLayers(convolution, *norm, nn.ReLU(), nn.Flatten())
            features = features // channels * fewer
        self.cell = nn.LSTM(features, size)
        for name, parameter in self.cell.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        self.head = nn.Linear(size, atoms)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def step(self, state: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States [N, ...] and the memory [N, H] before them → logits [N, 2S + 1] and the memory after them."""
        if self.has_plain_cell:  # a quarter of the time of a sequence of one step
            hidden, cell = torch.lstm_cell(self.reduce(state), (hidden, cell), *self.cell.parameters())
            return self.head(hidden), hidden, cell
        output, (hidden, cell) = self.cell(self.reduce(state)[None], (hidden[None], cell[None]))
        return self.head(output[0]), hidden[0], cell[0]

    @property
    def has_plain_cell(self) -> bool:
        """Whether the cell is one layer of torch's own LSTM, whose parameters say all of it."""
        return is_exact(self.cell, nn.LSTM) and len(list(self.cell.parameters())) == 4

    def forward(self, states: Tensor) -> Tensor:
        """States [L, B, ...] after the memory was emptied → logits [L, B, 2S + 1]."""
        inputs = self.reduce(states.flatten(0, 1)).view(*states.shape[:2], -1)
        return self.head(self.cell(inputs)[0])


class Projection(nn.Module):
    """SimSiam's projector of states, and the predictor that stands behind it on one of the two sides."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.projector = nn.Sequential(
            nn.Flatten(),
            *_normalised(features, size),
            nn.ReLU(),
            *_normalised(size, size),
            nn.ReLU(),
            *_normalised(size, size),
        )
        narrow = max(1, size // 2)
        self.predictor = nn.Sequential(
            *_normalised(size, narrow), nn.ReLU(), orthogonal(nn.Linear(narrow, size), 1.0)
        )

    def predict(self, states: Tensor) -> Tensor:
        """Imagined states [N, ...] → what the projections of the true ones should be, [N, P]."""
        return self.predictor(self.projector(states))

    @torch.no_grad()
    def project(self, states: Tensor) -> Tensor:
        """True states [N, ...] → [N, P], without gradients."""
        return self.projector(states)


class BatchNormalisation(nn.Module):
    """(x - mean) / std of the batch [N, P], scaled and shifted; only learning uses it, so nothing is remembered."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.batch_norm(rows, self.weight, self.bias, None, None, True, 0.0, 1e-5, False)


def _normalised(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return orthogonal(nn.Linear(inputs, outputs), math.sqrt(2)), BatchNormalisation(outputs)
