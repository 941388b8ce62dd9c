"""Encoders: from an observation of any supported space to a vector of features."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training import parts
from rl_training.algorithms.masking import MASK
from rl_training.errors import ConfigError, one_line
from rl_training.kernels.convolutions import convolve
from rl_training.kernels.exact import Shortcut, is_exact
from rl_training.parts import Written
from rl_training.trees import Tensors

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)

SMALLEST_SIDE = 11  # pixels that the convolutions of the Nature CNN need, with its smaller strides

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def orthogonal(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Orthogonal weights and zero biases, as in PPO's reference implementation (Huang et al. 2022, detail 2)."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class Own(NamedTuple):
    """What a user puts in the place of our layers, as configs name it (`parts.py`)."""

    network: Written = None  # of the hidden layers: features [N, inputs] → [N, features]
    encoder: Written = None  # of what makes features of observations
    layer_norm: bool = False  # normalise before each activation


OURS = Own()


def mlp(inputs: int, hidden_sizes: Sequence[int], activation: str, layer_norm: bool = False) -> nn.Sequential:
    """Dense layers, each followed by its activation: [..., inputs] → [..., hidden_sizes[-1]]."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        norm = [nn.LayerNorm(size)] if layer_norm else []
        layers += [orthogonal(nn.Linear(inputs, size)), *norm, ACTIVATIONS[activation]()]
        inputs = size
    return nn.Sequential(*layers)


def make_body(
    inputs: int, hidden_sizes: Sequence[int], activation: str, own: Own = OURS, key: str = "network"
) -> tuple[nn.Module, int]:
    """The hidden layers behind so many inputs, a user's own or ours, and how many features they give."""
    if own.network is not None:
        network = parts.make(own.network, inputs, key=key)
        return network, width_of(network, torch.zeros(2, inputs), key, own.network)
    size = hidden_sizes[-1] if hidden_sizes else inputs
    return mlp(inputs, hidden_sizes, activation, own.layer_norm), size


def width_of(module: Any, rows: Any, key: str, written: Written) -> int:
    """The number of features that a user's module makes of two rows; what makes none is refused."""
    named = f"{key} {parts.split(written)[0]!r}"
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{named} returns a {type(module).__name__}, not a torch.nn.Module", (key,))
    training = module.training
    try:
        with torch.no_grad():
            features = module.train(False)(rows)
    except Exception as error:
        raise ConfigError(f"{named} fails on two rows of zeros: {one_line(error)}", (key,)) from error
    finally:
        module.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(f"{named} must map two rows to [2, features], not {shape}", (key,))
    return features.shape[1]


class PlainBox(spaces.Box):
    """A Box as networks saw it before small pictures had encoders: bytes with three dimensions alone are a picture."""


def without_small_pictures(space: spaces.Space) -> spaces.Space:
    """The same space for networks that know no small pictures."""
    if isinstance(space, spaces.Dict):
        parts = [(key, without_small_pictures(part)) for key, part in space.spaces.items()]
        return spaces.Dict(OrderedDict(parts))  # which keeps the order
    if isinstance(space, spaces.Box):
        return PlainBox(space.low, space.high, dtype=space.dtype.type)
    return space


def is_image(space: spaces.Space) -> bool:
    """Whether a space holds pictures: numbers of any type with three dimensions, of which one is the channels.

    Bytes always are some; of other numbers a grid of less than 3 × 3 is a vector in disguise.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    grid = not isinstance(space, PlainBox) and min(picture_shape(space)[1:]) >= 3
    return space.dtype == "uint8" or grid


def is_small_image(space: spaces.Space) -> bool:
    """Whether a space holds pictures that no stride may shrink: grids of a game, more often than photographs."""
    small = is_image(space) and min(picture_shape(space)[1:]) < SMALLEST_SIDE
    return small and not isinstance(space, PlainBox)


def has_channels_last(space: spaces.Space) -> bool:
    """Channels stand first (stacked frames) or last (pictures): beside two equal sides, or else the smaller end."""
    first, middle, last = space.shape or (0, 0, 0)
    square = (first == middle) != (middle == last)
    if square and not isinstance(space, PlainBox):
        return first == middle
    # As many channels as pixels a side: planes of a game, which have them last.
    return last < first or (last == first and space.dtype != "uint8")


def picture_shape(space: spaces.Space) -> tuple[int, int, int]:
    """Channels, height and width."""
    assert space.shape is not None
    first, middle, last = space.shape
    return (last, first, middle) if has_channels_last(space) else (first, middle, last)


def brightest(space: spaces.Space) -> int:
    """The number that stands for 1 in a picture: 255 for bytes, and for other numbers with the bounds of bytes."""
    bounded_like_bytes = (
        isinstance(space, spaces.Box)
        and not isinstance(space, PlainBox)
        and bool((space.low == 0).all() and (space.high == 255).all())
    )
    return 255 if space.dtype == "uint8" or bounded_like_bytes else 1


def observed(space: spaces.Space) -> str:
    """A space in short: `84×84×3 uint8`, `4 float32`, `Discrete(5)`."""
    if not isinstance(space, spaces.Box):
        return str(space)
    return f"{'×'.join(map(str, space.shape)) or 'number'} {space.dtype}"


def make_encoder(
    space: spaces.Space,
    hidden_sizes: Sequence[int],
    activation: str,
    image_encoder: str,
    own: Own = OURS,
) -> tuple[nn.Sequential, int]:
    """The encoder of an observation space, and how many features it gives.

    Vectors go through `hidden_sizes` dense layers; an image goes through a CNN first; the parts of a Dict
    are encoded by kind, joined, and go through the dense layers together.
    """
    inputs = make_inputs(space, image_encoder, own=own.encoder)
    body, size = make_body(inputs.features, hidden_sizes, activation, own)
    return nn.Sequential(inputs, body), size


def make_inputs(
    space: spaces.Space,
    image_encoder: str,
    name: str = "observation",
    own: Written = None,
    key: str = "encoder",
) -> Inputs:
    """What turns observations of a space into features, `own` or ours; `name` is what they are called."""
    if own is not None:
        return OwnInputs(space, own, key)
    if isinstance(space, spaces.Dict):
        return Joined(space, image_encoder, name)
    inputs = _make_plain_inputs(space, image_encoder)
    inputs.sees = f"{name} {observed(space)}"
    return inputs


def _make_plain_inputs(space: spaces.Space, image_encoder: str) -> Inputs:
    if is_image(space):
        small = image_encoder == "nature" and is_small_image(space)
        return SmallCNN(space) if small else IMAGE_ENCODERS[image_encoder](space)
    if isinstance(space, spaces.Discrete):
        return OneHot([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return OneHot(space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist())
    return Flat(space)


def encoder_lines(modules: Iterable[nn.Module]) -> list[str]:
    """Which encoder sees what, a line for each part of an observation."""
    parts = [part for module in modules for part in module.modules() if getattr(part, "sees", "")]
    return list(dict.fromkeys(f"encoder: {part.title} for {part.sees}" for part in parts))


class Inputs(nn.Module):
    """Turns one kind of observation [N, ...] into [N, features] floats."""

    transient: tuple[str, ...] = ("sees",)
    features: int
    sees = ""  # what it encodes, in words

    @property
    def title(self) -> str:
        """What it is called in the first lines of a run."""
        return "MLP"


class OwnInputs(Inputs):
    """A user's own encoder, made from the observation space; it sees observations as they are."""

    def __init__(self, space: spaces.Space, written: Written, key: str) -> None:
        super().__init__()
        self.module = parts.make(written, space, key=key)
        self.features = width_of(self.module, zeros_of(space), key, written)
        self.sees = f"observation {observed(space)}"

    @property
    def title(self) -> str:
        return type(self.module).__name__

    def forward(self, obs: Any) -> Tensor:
        return self.module(obs)


def zeros_of(space: spaces.Space) -> Any:
    """Two observations of a space, zeros where it has them."""
    if isinstance(space, spaces.Dict):
        return {key: zeros_of(part) for key, part in space.spaces.items()}
    first = np.asarray(getattr(space, "start", 0))
    return torch.as_tensor(np.zeros((2, *(space.shape or ())), space.dtype) + first.astype(space.dtype))


class Flat(Inputs):
    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        assert space.shape is not None
        self.features = math.prod(space.shape)

    def forward(self, obs: Tensor) -> Tensor:
        return obs.reshape(obs.shape[0], -1).float()


class OneHot(Inputs):
    def __init__(self, sizes: Sequence[int], starts: Sequence[int]) -> None:
        super().__init__()
        self.sizes, self.starts = tuple(sizes), tuple(starts)
        self.features = sum(sizes)

    def forward(self, obs: Tensor) -> Tensor:
        columns = obs.long().reshape(obs.shape[0], -1).unbind(-1)
        parts = zip(columns, self.sizes, self.starts, strict=True)
        return torch.cat([F.one_hot(column - start, size) for column, size, start in parts], -1).float()


class ImageInputs(Inputs):
    """Convolutions and a dense layer; pixels of 0 to 255 are scaled to [0, 1] here and nowhere else."""

    transient = ("first", "alternating", "scale")

    def __init__(self, space: spaces.Space, features: int) -> None:
        super().__init__()
        assert space.shape is not None
        self.channels_last = has_channels_last(space)
        self.scale = 1 / brightest(space)
        channels, height, width = picture_shape(space)
        self.convolutions = nn.Sequential(*self.layers(channels, min(height, width)))
        self.first = Shortcut(self.convolutions, plain_first)
        self.alternating = Shortcut(self.convolutions, plain_convolutions)
        with torch.no_grad():
            flat = self.convolutions(self._picture(torch.zeros(1, *space.shape))).numel()
        self.dense = nn.Sequential(orthogonal(nn.Linear(flat, features)), nn.ReLU())
        self.features = features

    @property
    def title(self) -> str:
        return type(self).__name__

    def layers(self, channels: int, side: int) -> list[nn.Module]:
        raise NotImplementedError

    def _picture(self, obs: Tensor) -> Tensor:
        return obs.movedim(-1, 1) if self.channels_last else obs

    def forward(self, obs: Tensor) -> Tensor:
        # In memory the channels go last: a quarter off the time of the convolutions on a CPU.
        picture = self.convolved(laid_out(self._picture(obs)))
        # Flat in the order of memory, which costs no copy.
        return self.dense(picture.permute(0, 2, 3, 1).flatten(1))

    def convolved(self, picture: Tensor) -> Tensor:
        """Pictures [N, C, H, W] of bytes or numbers through all convolutions."""
        picture, first = picture.to(torch.float32, memory_format=torch.channels_last), self.first()
        if first is None:
            return self.convolutions(picture * self.scale)
        # The scale goes into the first weights: they are fewer than the pixels.
        picture = F.conv2d(picture, first.weight * self.scale, first.bias, first.stride, first.padding)
        for layer in islice(self.convolutions, 1, None):
            picture = layer(picture)
        return picture


def is_plain_convolution(layer: object) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is what its weight, bias, stride and padding say."""
    if not is_exact(layer, nn.Conv2d) or layer.bias is None:
        return False
    return layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"


def plain_first(convolutions: object) -> nn.Conv2d | None:
    """The first layer, where it can be computed without being called."""
    first = convolutions[0] if is_exact(convolutions, nn.Sequential) and len(convolutions) else None
    return first if first is not None and is_plain_convolution(first) else None


def plain_convolutions(convolutions: object) -> list[nn.Conv2d] | None:
    """All convolutions, where each has no padding and the ReLU behind it; None for all other layers."""
    layers = list(convolutions) if is_exact(convolutions, nn.Sequential) else []
    pairs = list(zip(layers[::2], layers[1::2], strict=False))
    if not pairs or len(layers) % 2 or not all(is_exact(relu, nn.ReLU) for _, relu in pairs):
        return None
    plain = [layer for layer, _ in pairs if is_plain_convolution(layer) and layer.padding == (0, 0)]
    return plain if len(plain) == len(pairs) else None


def laid_out(obs: Tensor) -> Tensor:
    """Stacked frames [N, C, H, W] with their channels last in memory, once for all minibatches drawn from them."""
    frames = obs.ndim == 4 and obs.dtype == torch.uint8 and obs.shape[1] <= obs.shape[-1]
    if not frames or obs.is_contiguous(memory_format=torch.channels_last):
        return obs
    # Plane by plane: a sixth of the time of torch's general copy.
    return torch.stack(obs.unbind(1), -1).movedim(-1, 1)


class NatureCNN(ImageInputs):
    """The three convolutions of Mnih et al. 2015 and a dense layer of 512."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space, 512)

    def layers(self, channels: int, side: int) -> list[nn.Module]:
        # Small pictures would vanish under Atari's strides.
        kernels, strides = ((8, 4, 3), (4, 2, 1)) if side >= 36 else ((3, 3, 3), (2, 1, 1))
        layers: list[nn.Module] = []
        for filters, kernel, stride in zip((32, 64, 64), kernels, strides, strict=True):
            layers += [orthogonal(nn.Conv2d(channels, filters, kernel, stride)), nn.ReLU(inplace=True)]
            channels = filters
        return layers

    def convolved(self, picture: Tensor) -> Tensor:
        layers = self.alternating()
        if layers is None:
            return super().convolved(picture)
        for index, layer in enumerate(layers):  # each with the ReLU behind it
            weight = layer.weight * self.scale if index == 0 else layer.weight
            picture = convolve(picture, weight, layer.bias, layer.stride)  # type: ignore[arg-type]  # always a pair
        return picture


class SmallCNN(ImageInputs):
    """Two convolutions of 3 × 3 without a stride and a dense layer of 128, for the grids of small games.

    The network of MinAtar (Young & Tian 2019) with a second layer. The bytes of a small picture are codes more often
    than colours, small numbers that dividing by 255 would make all alike: log₂(1 + x) / 8 has the same range [0, 1].
    """

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space, 128)

    def layers(self, channels: int, side: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for filters in (16, 32):
            layers += [orthogonal(nn.Conv2d(channels, filters, 3, padding=1)), nn.ReLU(inplace=True)]
            channels = filters
        return layers

    def convolved(self, picture: Tensor) -> Tensor:
        coded = self.scale != 1.0
        picture = picture.to(torch.float32, memory_format=torch.channels_last)
        return self.convolutions(picture.log1p() * (1 / math.log(256)) if coded else picture)


class ImpalaCNN(ImageInputs):
    """The residual network of Espeholt et al. 2018 (figure 3, right): sections of 16, 32, 32 filters, dense 256."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space, 256)

    def layers(self, channels: int, side: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for filters in (16, 32, 32):
            section = orthogonal(nn.Conv2d(channels, filters, 3, padding=1), 1.0)  # no ReLU follows
            layers += [section, nn.MaxPool2d(3, 2, padding=1), ResidualBlock(filters), ResidualBlock(filters)]
            channels = filters
        return [*layers, nn.ReLU()]


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), which begins as x: with a gain in six branches values would grow with depth."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(filters, filters, 3, padding=1))
        self.second = orthogonal(nn.Conv2d(filters, filters, 3, padding=1), 0.0)

    def forward(self, picture: Tensor) -> Tensor:
        return picture + self.second(F.relu(self.first(F.relu(picture))))


IMAGE_ENCODERS: dict[str, Callable[[spaces.Space], ImageInputs]] = {
    "nature": NatureCNN,
    "impala": ImpalaCNN,
}


class Joined(Inputs):
    """The parts of a Dict observation side by side, in the space's own order; an action mask is no part of it."""

    def __init__(self, space: spaces.Dict, image_encoder: str, name: str = "observation") -> None:
        super().__init__()
        self.keys = tuple(key for key in space.spaces if key != MASK)
        parts = [make_inputs(space.spaces[key], image_encoder, f"{name}[{key!r}]") for key in self.keys]
        self.parts = nn.ModuleList(parts)
        self.features = sum(part.features for part in parts)

    def forward(self, obs: dict[str, Tensors]) -> Tensor:
        return torch.cat([part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)], -1)
