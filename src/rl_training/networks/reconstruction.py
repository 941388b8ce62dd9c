"""Encoder and decoder of Dreamer, for observations of any supported space.

Numbers go through symlog, whole numbers become one-hot, pictures go through convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.symexp_bins import symexp, symlog
from rl_training.kernels.fused import norm_silu
from rl_training.networks.encoders import OneHot, has_channels_last, is_image, observed, picture_shape
from rl_training.networks.rssm import BlockLinear, Dense, linear, mlp, truncated_normal
from rl_training.trees import Tensors, tree_leaves

MULTIPLES = (2, 3, 4, 4)  # channels of each stage, in units of the CNN's depth
SMALLEST = 3  # pixels per side at which no stage follows


def observation_parts(space: spaces.Space, name: str = "obs") -> Iterator[tuple[str, spaces.Space]]:
    """The plain spaces of an observation by name, in the order and with the names of `tree_leaves`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from observation_parts(part, f"{name}/{key}")
    else:
        yield name, space


def is_paintable(space: spaces.Space) -> bool:
    """Whether a decoder whose pixels lie in [0, 1] can paint it: pictures of bytes or of bits."""
    return is_image(space) and space.dtype in ("uint8", "bool")


class Part(nn.Module):
    """One plain space of an observation; `size` is how many numbers it adds to the tokens."""

    transient: tuple[str, ...] = ("sees",)
    title = "MLP"
    size: int
    sees = ""  # what it encodes, in words

    def encode(self, obs: Tensor) -> Tensor:
        """Observations [..., *shape] → [..., size]."""
        raise NotImplementedError


class Vector(Part):
    """Numbers [..., *shape] as symlog, and a squared error of symlog."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        assert space.shape is not None
        self.shape = tuple(space.shape)
        self.size = math.prod(space.shape)

    def encode(self, obs: Tensor) -> Tensor:
        return symlog(obs.float().reshape(*obs.shape[: obs.ndim - len(self.shape)], self.size))

    def loss(self, output: Tensor, obs: Tensor) -> Tensor:
        """Σ (prediction - symlog(x))²."""
        return (output - self.encode(obs)).square().sum(-1)

    def predict(self, output: Tensor) -> Tensor:
        return symexp(output).unflatten(-1, self.shape or (1,))


class Choices(Part):
    """Whole numbers as one-hot, and a cross-entropy for each."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        counts: Any = space.n if isinstance(space, spaces.Discrete) else space.nvec
        sizes, starts = (np.reshape(part, -1).tolist() for part in (counts, space.start))
        self.one_hot = OneHot(sizes, starts)
        self.shape = tuple(space.shape or ())
        self.sizes, self.starts, self.size = tuple(sizes), tuple(starts), sum(sizes)

    def encode(self, obs: Tensor) -> Tensor:
        lead = obs.shape[: obs.ndim - len(self.shape)]
        return self.one_hot(obs.reshape(math.prod(lead), -1)).view(*lead, self.size)

    def loss(self, output: Tensor, obs: Tensor) -> Tensor:
        targets = self.encode(obs).split(self.sizes, -1)
        parts = zip(output.split(self.sizes, -1), targets, strict=True)
        return sum(
            (-(F.log_softmax(part, -1) * target).sum(-1) for part, target in parts), output.new_zeros(())
        )

    def predict(self, output: Tensor) -> Tensor:
        """The likeliest of each."""
        parts = zip(output.split(self.sizes, -1), self.starts, strict=True)
        return torch.stack([part.argmax(-1) + start for part, start in parts], -1)


class ChannelNorm(nn.Module):
    """SiLU(RMSNorm) over the channels of pictures [N, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, picture: Tensor) -> Tensor:
        return norm_silu(picture.movedim(1, -1), self.scale).movedim(-1, 1)


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 5, padding=2)
    truncated_normal(layer.weight, inputs * 25)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


# Which rows of a 5 × 5 filter read the pixel before, the same and the next one of a picture whose pixels are doubled:
# for the first and the second of two equal pixels.
READERS = torch.tensor(
    [
        [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]],
        [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]],
    ]
)


class Picture(Part):
    """Stages of 5 × 5 convolutions: halved by a maximum on the way in, doubled on the way out."""

    transient = ("top",)
    title = "CNN"

    def __init__(
        self, space: spaces.Space, depth: int, deter: int, stoch: int, units: int, blocks: int
    ) -> None:
        super().__init__()
        assert space.shape is not None
        self.channels_last = has_channels_last(space)
        self.top = 255 if space.dtype == "uint8" else 1
        channels, *sides = picture_shape(space)
        sizes = [tuple(sides)]
        while len(sizes) <= len(MULTIPLES) and min(sizes[-1]) // 2 >= SMALLEST:
            sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
        depths = [depth * multiple for multiple in MULTIPLES[: max(len(sizes) - 1, 1)]]
        self.sizes, self.smallest = tuple(sizes), (depths[-1], *sizes[-1])
        self.size = math.prod(self.smallest)
        stages = list(zip([channels, *depths], depths, strict=False))
        self.inwards = nn.ModuleList(convolution(*stage) for stage in stages)
        self.inward_norms = nn.ModuleList(ChannelNorm(outputs) for _, outputs in stages)
        self.outwards = nn.ModuleList(convolution(outputs, inputs) for inputs, outputs in reversed(stages))
        self.outward_norms = nn.ModuleList(ChannelNorm(inputs) for inputs, _ in reversed(stages[1:]))
        # Each block of the memory paints channels of its own.
        self.from_deter = BlockLinear(deter, self.size, blocks if depths[-1] % blocks == 0 else 1)
        self.from_stoch = nn.Sequential(Dense(stoch, units=2 * units), linear(2 * units, self.size))
        self.start_norm = ChannelNorm(depths[-1])
        self.deter_size = deter

    def pixels(self, obs: Tensor) -> Tensor:
        """Pictures [..., *shape] as [N, C, H, W] in [0, 1]."""
        flat = obs.reshape(-1, *obs.shape[-3:])
        return (flat.movedim(-1, 1) if self.channels_last else flat).float() / self.top

    def encode(self, obs: Tensor) -> Tensor:
        picture = (self.pixels(obs) - 0.5).contiguous(memory_format=torch.channels_last)
        for convolve, norm in zip(self.inwards, self.inward_norms, strict=True):
            picture = convolve(picture)
            if len(self.sizes) > 1:
                picture = F.max_pool2d(picture, 2)
            picture = norm(picture)
        return picture.flatten(1).view(*obs.shape[:-3], self.size)

    def decode(self, features: Tensor) -> Tensor:
        """Features [N, F] → pixels [N, C, H, W] in [0, 1]."""
        deter, stoch = features[:, : self.deter_size], features[:, self.deter_size :]
        start = self.from_deter(deter) + self.from_stoch(stoch)
        picture = self.start_norm(start.unflatten(-1, self.smallest))
        sizes = self.sizes[-2::-1] if len(self.sizes) > 1 else self.sizes
        for i, (convolve, size) in enumerate(zip(self.outwards, sizes, strict=True)):
            picture = self.enlarge(picture, size, convolve)
            if i < len(self.outward_norms):
                picture = self.outward_norms[i](picture)
        return picture.sigmoid()

    def enlarge(self, picture: Tensor, size: tuple[int, ...], convolve: nn.Module) -> Tensor:
        """Pictures [N, C, H, W] with the nearest pixels at another size, through a convolution."""
        return convolve(F.interpolate(picture, size=size))

    def loss(self, features: Tensor, obs: Tensor) -> Tensor:
        """Σ (prediction - x / 255)² over all pixels."""
        error = self.decode(features.flatten(0, -2)) - self.pixels(obs)
        return error.square().sum((1, 2, 3)).view(features.shape[:-1])

    def predict(self, features: Tensor) -> Tensor:
        picture = (self.decode(features.flatten(0, -2)) * self.top).round().to(torch.uint8)
        picture = picture.movedim(1, -1) if self.channels_last else picture
        return picture.unflatten(0, features.shape[:-1])


class FoldedPicture(Picture):
    """The same function with fewer products, and other rounding.

    Where a picture is doubled, many of the 25 pixels under a filter are equal. Their weights are added up before, which
    leaves filters of 3 × 3 on the picture before it is doubled, one for each pixel of a square of four.
    """

    def enlarge(self, picture: Tensor, size: tuple[int, ...], convolve: Any) -> Tensor:
        if size != (2 * picture.shape[-2], 2 * picture.shape[-1]):
            return super().enlarge(picture, size, convolve)
        readers = READERS.to(convolve.weight)
        weight = torch.einsum("ocyx,viy,hjx->ovhcij", convolve.weight, readers, readers).flatten(0, 2)
        small = picture.contiguous(memory_format=torch.channels_last)
        squares = F.conv2d(small, weight, convolve.bias.repeat_interleave(4), padding=1)
        return F.pixel_shuffle(squares, 2)


class Reconstruction(nn.Module):
    """The encoder and the decoder of an observation space."""

    def __init__(
        self,
        space: spaces.Space,
        *,
        deter_size: int,
        stoch_size: int,
        units: int,
        layers: int,
        cnn_depth: int,
        blocks: int,
    ) -> None:
        super().__init__()
        parts = list(observation_parts(space))
        pictures = {name: part for name, part in parts if is_paintable(part)}
        others = {name: part for name, part in parts if name not in pictures}
        self.picture_names, self.other_names = tuple(pictures), tuple(others)
        cameras = [
            Picture(part, cnn_depth, deter_size, stoch_size, units, blocks) for part in pictures.values()
        ]
        rest = [
            Choices(part) if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) else Vector(part)
            for part in others.values()
        ]
        for name, part in zip([*pictures, *others], [*cameras, *rest], strict=True):
            part.sees = f"{name.replace('obs', 'observation', 1)} {observed(dict(parts)[name])}"
        sizes, features = [part.size for part in rest], deter_size + stoch_size
        self.pictures, self.others = nn.ModuleList(cameras), nn.ModuleList(rest)
        self.encoder = mlp(sum(sizes), units, layers) if sizes else None
        self.decoder = mlp(features, units, layers) if sizes else None
        self.outputs = nn.ModuleList(linear(units, size) for size in sizes)
        self.tokens = (units if sizes else 0) + sum(part.size for part in cameras)

    def encode(self, obs: Tensors) -> Tensor:
        """Observations [..., ...] → tokens [..., F]."""
        leaves = dict(tree_leaves(obs, "obs"))
        cameras: Any = zip(self.picture_names, self.pictures, strict=True)
        tokens = [part.encode(leaves[name]) for name, part in cameras]
        if self.encoder is not None:
            rest: Any = zip(self.other_names, self.others, strict=True)
            tokens.append(self.encoder(torch.cat([part.encode(leaves[name]) for name, part in rest], -1)))
        return torch.cat(tokens, -1)

    def loss(self, features: Tensor, obs: Tensors) -> Tensor:
        """How badly features [..., F] tell the observations: [...], summed over all parts."""
        leaves, total = dict(tree_leaves(obs, "obs")), features.new_zeros(features.shape[:-1])
        for name, part, output in self._outputs(features):
            total = total + part.loss(output, leaves[name])
        return total

    def predict(self, features: Tensor) -> dict[str, Tensor]:
        """The observations that features [..., F] tell of, by name."""
        return {name: part.predict(output) for name, part, output in self._outputs(features)}

    def _outputs(self, features: Tensor) -> Iterator[tuple[str, Any, Tensor]]:
        """Every part with what it is decoded from: all features for a picture, an output layer's for the rest."""
        yield from (
            (name, part, features) for name, part in zip(self.picture_names, self.pictures, strict=True)
        )
        if self.decoder is not None:
            hidden = self.decoder(features)
            for name, part, output in zip(self.other_names, self.others, self.outputs, strict=True):
                yield name, part, output(hidden)
