"""The model of MuZero: representation, dynamics and prediction, for vectors and for frames.

    s₀ = h(o)        s' = g(s, a)        p, v, r = f(s)

The reward is read from the state that an action led to, so that all three heads are one network: the learner runs it
once on the states of all unrolled steps, and a search once per simulation. An action is a row of a table that is added
to the first layer of g, which is what a one-hot input beside the state would come to; one that is a vector is a sum of
such rows, weighted by its numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.masking import MASK
from rl_training.algorithms.muzero import Unrolled, decode, scale_board, scale_gradient, scale_latent
from rl_training.kernels.batch_norm import EPSILON, MOMENTUM, normalise
from rl_training.kernels.compiled import fits
from rl_training.kernels.dense import stacked
from rl_training.kernels.exact import Shortcut, is_exact, is_ours, taken
from rl_training.kernels.frame_model import ACTIVATIONS as COMPILED
from rl_training.kernels.frame_model import FrameModel, Head, Moves
from rl_training.kernels.products import PANEL
from rl_training.kernels.small_model import SmallModel
from rl_training.kernels.tiles import has_fused_multiplication
from rl_training.kernels.winograd import BEFORE, INPUT, NOTHING, Layer, convolve, convolve_in_a_row, enter
from rl_training.networks.encoders import (
    ACTIVATIONS,
    OURS,
    Own,
    ResidualBlock,
    brightest,
    has_channels_last,
    is_image,
    is_small_image,
    make_encoder,
    observed,
    orthogonal,
    picture_shape,
)
from rl_training.trees import Tensors

HEAD_CHANNELS = 16  # to which a state of frames is reduced before a head, as in EfficientZero's reference
BOARD_CHANNELS = 8  # to which a state of a board is reduced before a head
FRAMES_AT_ONCE = 32  # in a search

# A convolution with a stride, the layers behind it, and what is added to each of those.
Section = tuple[Layer, list[Layer], tuple[int, ...]]


class Predictions(NamedTuple):
    """What the heads say of N states."""

    policy: Tensor  # logits [N, A], or of vectors what `sampled_muzero.gaussian` reads [N, 2D]
    value: Tensor  # logits [N, 2S + 1]
    reward: Tensor  # logits [N, 2S + 1] of what was earned on the way to the state


class MuZeroNetwork(nn.Module):
    """h, g and f in one module. `latent_size` is the width of a state: units for vectors, channels for frames.

    `num_actions` is what the policy head says: a logit for each action, or with `dimensions` D, where an action is a
    vector of D numbers, 2D numbers.
    """

    transient = ("small", "on_frames", "value_transform")
    atoms: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        num_actions: int,
        *,
        dimensions: int | None = None,
        latent_size: int,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        support_size: int,
        residual_blocks: int,
        batch_norm: bool = False,
        board_tower: bool = False,
        shared_tower: bool = False,
        value_transform: bool = True,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.num_actions, self.support_size = num_actions, support_size
        self.value_transform = value_transform
        self.register_buffer("atoms", torch.arange(-support_size, support_size + 1.0))
        self.representation: nn.Module
        self.dynamics: VectorDynamics | FrameDynamics | BoardDynamics
        self.tower: nn.Module = nn.Identity()  # what representation and dynamics share
        board = board_of(observation_space) if board_tower and dimensions is None else None
        if board and shared_tower and own == OURS:
            self.representation = FrameRepresentation(observation_space, latent_size, 0, board=True)
            self.dynamics = BoardDynamics(num_actions, latent_size, picture_shape(board)[1:])
            self.tower = nn.Sequential(*(ResidualBlock(latent_size) for _ in range(residual_blocks)))
            self.features = self.representation.features
        elif (board or is_image(observation_space)) and own == OURS:
            normalised = FrameNorm if batch_norm else None
            sizes = (latent_size, residual_blocks, normalised)
            self.representation = FrameRepresentation(observation_space, *sizes, board=board is not None)
            squares = picture_shape(board)[1:] if board else None
            self.dynamics = FrameDynamics(num_actions, *sizes, squares, dimensions)
            self.features = self.representation.features
        else:
            encoder, width = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
            self.representation = nn.Sequential(encoder, orthogonal(nn.Linear(width, latent_size)))
            self.dynamics = VectorDynamics(num_actions, latent_size, hidden_sizes, activation, dimensions)
            self.features = latent_size
        atoms = 2 * support_size + 1
        self.prediction: nn.Module
        outputs = (num_actions, atoms, atoms)
        if board is not None and isinstance(self.dynamics, BoardDynamics):
            squares = picture_shape(board)[1:]
            self.prediction = BoardHeads(latent_size, squares, hidden_sizes, activation, outputs)
        elif isinstance(self.dynamics, FrameDynamics) and batch_norm:
            self.prediction = FrameHeads(latent_size, self.features, hidden_sizes, activation, outputs)
        else:
            self.prediction = dense_heads(self.features, hidden_sizes, activation, num_actions + 2 * atoms)
        self.small: Shortcut[SmallModel] | None = Shortcut.of(self, small_model)
        self.on_frames: Shortcut[Callable[[], FrameModel]] | None = Shortcut.of(self, frame_model)

    def represent(self, obs: Tensors) -> Tensor:
        """Observations [N, ...] → states [N, ...], scaled to one range."""
        return self._state(self.representation(obs))

    def transition(self, latent: Tensor, action: Tensor) -> Tensor:
        """States [N, ...] and actions [N], or vectors [N, D] → the states they lead to."""
        return self._state(self.dynamics(latent, action))

    def _state(self, features: Tensor) -> Tensor:
        features = self.tower(features)
        if isinstance(self.dynamics, BoardDynamics):
            return scale_board(features)
        # Frames that are normalised stay as they lie in memory; all others as runs have always had them.
        normalised = getattr(self.representation, "normalised", False)
        return scale_latent(features if normalised else features.contiguous())

    def predict(self, latent: Tensor) -> Predictions:
        """What the heads say of states [N, ...]."""
        atoms = 2 * self.support_size + 1
        return Predictions(*self.prediction(latent).split([self.num_actions, atoms, atoms], -1))

    def unroll(self, obs: Tensors, actions: Tensor) -> Unrolled:
        """Observations [B, ...] and K actions [K, B] after them: the dynamics step by step, the heads all at once."""
        states = [state := self.represent(obs)]
        for action in actions:
            states.append(state := self.transition(state, action))
            # Halved behind each transition, as in the pseudo-code: what comes from later steps does not pile up.
            state = scale_gradient(state, 0.5)
        whole = torch.stack(states)
        return Unrolled(*self.predict(whole.flatten(0, 1)), whole)

    @property
    def sees_frames(self) -> bool:
        """Whether what a state costs is its representation, and `initial` takes states: one's own may not."""
        frames = isinstance(self.representation, FrameRepresentation) and self.representation.normalised
        return frames and is_ours(self, "rl_training.networks.", "initial")

    def initial(self, obs: Tensors | None, latent: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        """Observations [N, ...] → policy logits [N, A], values [N], states, for the roots of a search.

        latent: the observations' states, where they are known
        """
        latent = self.represent(obs) if latent is None else latent  # type: ignore[arg-type]  # one is given
        policy, value, _ = self.predict(latent)
        return policy, self.decode(value), latent

    def recurrent(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States and actions → rewards [N], policy logits [N, A], values [N], the next states, without gradients."""
        small = taken(self.small)
        if small is not None and small.fits:
            return small.recurrent(latent, action)
        latent = self.transition(latent, action)
        policy, value, reward = self.predict(latent)
        return self.decode(reward), policy, self.decode(value), latent

    def searching(self) -> Callable[[Any, Tensor], tuple[Tensor, Tensor, Tensor, Any]]:
        """`recurrent` for one search, during which the weights stay as they are."""
        frames = taken(self.on_frames)
        if frames is None or not fits(self.atoms) or torch.is_autocast_enabled("cpu"):
            return self.recurrent
        learns = any(part.learns for part in self.dynamics.modules() if isinstance(part, FrameNorm))
        return self.recurrent if learns else frames().recurrent

    def decode(self, logits: Tensor) -> Tensor:
        """The scalars [...] that a head's logits [..., 2S + 1] stand for."""
        return decode(logits, self.atoms, self.value_transform)


def board_of(space: spaces.Space) -> spaces.Space | None:
    """The grid of a board game: a small picture that comes with nothing but an action mask."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces or len(space.spaces) != 2:
        return None
    (grid,) = (part for name, part in space.spaces.items() if name != MASK)
    return grid if is_small_image(grid) and not has_channels_last(grid) else None


def small_model(network: MuZeroNetwork) -> SmallModel | None:
    """A step of the model without torch, where states are vectors and all of it is exactly this."""
    ours = is_exact(network, MuZeroNetwork) and is_exact(network.dynamics, VectorDynamics)
    ours = ours and network.value_transform  # which the compiled decoding has in it
    return SmallModel.of(network.dynamics, network.prediction) if ours else None  # type: ignore[arg-type]


def frame_model(network: MuZeroNetwork) -> Callable[[], FrameModel] | None:
    """What makes a step of the model without torch, where states are frames and all of it is exactly this."""
    ours = is_exact(network, MuZeroNetwork) and network.value_transform
    if not (ours and is_exact(network.tower, nn.Identity) and knows(network.dynamics, network.prediction)):
        return None
    return lambda: FrameModel(*parts_of(network))


def knows(dynamics: nn.Module, prediction: nn.Module) -> bool:
    """Whether compiled functions know a transition of frames and its heads."""
    if not (is_exact(dynamics, FrameDynamics) and is_exact(prediction, FrameHeads)):
        return False
    ours = dynamics.is_plain and is_exact(dynamics.action, nn.Embedding)
    kinds = [kinds_of(head) for head in prediction.heads]
    # One activation of all heads, or in none of them a hidden layer.
    ours = ours and None not in kinds and len(set().union(*(kind or set() for kind in kinds))) <= 1
    channels = dynamics.state.out_channels
    return ours and has_fused_multiplication() and channels % PANEL == 0


def kinds_of(head: nn.Module) -> set[type[nn.Module]] | None:
    """The activations between a head's dense layers; None if compiled functions do not know the head."""
    *reduce, dense = head.children()
    if not (is_exact(head, FrameLayers) and reduces(reduce) and is_exact(dense, nn.Sequential)):
        return None
    flat, *layers = dense
    found = stacked(layers) if is_exact(flat, nn.Flatten) else None
    return found[1] if found is not None and found[1] <= set(COMPILED) else None


def reduces(layers: Sequence[nn.Module]) -> bool:
    """Whether these are a convolution of 1 × 1 to a panel of channels, its normalisation and a ReLU, exactly."""
    kinds = (nn.Conv2d, FrameNorm, nn.ReLU)
    if len(layers) != len(kinds) or not all(map(is_exact, layers, kinds)):
        return False
    convolution: Any = layers[0]
    return kernel_of(convolution) == (1, 1) and convolution.out_channels == PANEL


def kernel_of(layer: nn.Module) -> tuple[int, int] | None:
    """Size and stride of a convolution that is exactly as they are made here; None of other layers."""
    if not is_exact(layer, nn.Conv2d) or layer.bias is None:
        return None
    size, stride = layer.kernel_size[0], layer.stride[0]
    ours = ((size, size), (stride, stride), (size // 2, size // 2), (1, 1), 1, "zeros")
    how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode)
    return (size, stride) if how == ours else None


def reduced(layers: nn.Module) -> tuple[Tensor, Tensor]:
    """The convolution that layers begin with as a dense layer, with the normalisation behind it."""
    convolution, norm, *_ = layers.children()
    weight, bias = norm.folded(convolution)  # type: ignore[operator]
    return weight.flatten(1), bias


def parts_of(network: Any) -> tuple[Moves, list[Head], type[nn.Module], Tensor]:
    """What a `FrameModel` is made of."""
    dynamics, heads = network.dynamics, []
    for head in network.prediction.heads:
        layers = [layer for layer in head[-1] if isinstance(layer, nn.Linear)]
        heads.append(Head(reduced(head), [(layer.weight, layer.bias) for layer in layers]))
    layers, added, factor = dynamics._folded()
    moves = Moves(layers, added, factor * dynamics.action.weight)
    kinds = {kind for head in network.prediction.heads for kind in kinds_of(head) or ()}
    return moves, heads, next(iter(kinds), nn.ReLU), network.atoms


def action_rows(num_actions: int, dimensions: int | None, width: int) -> nn.Embedding | nn.Linear:
    """Actions [N] → rows [N, width] of a table, or vectors [N, D] → sums of D such rows, weighted by their numbers."""
    if dimensions is None:
        return nn.Embedding(num_actions, width)
    return nn.Linear(dimensions, width, bias=False)


def dense_heads(features: int, hidden_sizes: Sequence[int], activation: str, outputs: int) -> nn.Sequential:
    """Hidden layers and a last one from zeros: all actions are as good as any other, all values and rewards are 0."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, width in itertools.pairwise([features, *hidden_sizes]):
        layers += [orthogonal(nn.Linear(inputs, width)), ACTIVATIONS[activation]()]
    heads = nn.Linear(hidden_sizes[-1] if hidden_sizes else features, outputs)
    nn.init.zeros_(heads.weight)
    nn.init.zeros_(heads.bias)
    return nn.Sequential(*layers, heads)


class FrameNorm(nn.Module):
    """Batch normalisation of frames [N, C, H, W]: by the batch while learning, by running statistics in a search.

    (x - mean) / √(variance + ε), scaled and shifted, for each channel. The mode is no part of the state: a network is
    in the other one only within `by_the_batch`. In a search it is part of the convolution W, b before it:

        norm(conv(x)) = conv'(x)      W' = factor · W      b' = factor · (b - mean) + bias
    """

    transient = ("learns",)
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.learns = False

    def forward(self, frames: Tensor) -> Tensor:
        learns = self.learns and frames[:, 0].numel() > 1  # one number has no variance
        parts = (self.weight, self.bias, self.mean, self.variance)
        return torch.batch_norm(frames, *parts, learns, MOMENTUM, EPSILON, False)

    def factor(self) -> Tensor:
        """By how much the running statistics scale each channel: weight / √(variance + ε), [C]."""
        return self.weight * (self.variance + EPSILON).rsqrt()

    def behind(self, layer: nn.Module, frames: Tensor) -> Tensor:
        """What this makes of what a layer makes of frames; in a search by one convolution, if the layer is one."""
        kernel, convolution = kernel_of(layer), layer
        if kernel is None or not is_exact(self, FrameNorm):
            return self(layer(frames))
        assert isinstance(convolution, nn.Conv2d) and convolution.bias is not None
        weight, bias = (convolution.weight, convolution.bias) if self.learns else self.folded(convolution)
        if kernel == (3, 1):
            out = convolve(frames, weight, bias)
        else:
            out = F.conv2d(frames, weight, bias, convolution.stride, convolution.padding)
        return self(out) if self.learns else out

    def folded(self, convolution: nn.Conv2d) -> tuple[Tensor, Tensor]:
        """W' and b' of a convolution before this."""
        assert convolution.bias is not None
        factor = self.factor()
        bias = torch.addcmul(self.bias, factor, convolution.bias - self.mean)
        return convolution.weight * factor.view(-1, 1, 1, 1), bias


class FrameLayers(nn.Sequential):
    """Layers, of which each convolution and the normalisation behind it are one step."""

    def forward(self, frames: Tensor) -> Tensor:
        layers = list(self)
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            if isinstance(after, FrameNorm):
                frames = after.behind(layer, frames)
            elif not isinstance(layer, FrameNorm):
                frames = layer(frames)
        return frames


@contextmanager
def by_the_batch(network: nn.Module) -> Iterator[None]:
    """Normalise by the statistics of each batch, and move the running ones by them."""
    norms = [module for module in network.modules() if isinstance(module, FrameNorm)]
    for norm in norms:
        norm.learns = True
    try:
        yield
    finally:
        for norm in norms:
            norm.learns = False


class NormalisedBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))), as in EfficientZero's reference."""

    ADDED = (NOTHING, BEFORE)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = FrameLayers(
            *(orthogonal(nn.Conv2d(channels, channels, 3, padding=1)), FrameNorm(channels)),
            nn.ReLU(inplace=True),
            *(orthogonal(nn.Conv2d(channels, channels, 3, padding=1)), FrameNorm(channels)),
        )

    def forward(self, frames: Tensor) -> Tensor:
        norm = self.layers[1]
        if (isinstance(norm, FrameNorm) and norm.learns) or not self.is_plain:
            return (frames + self.layers(frames)).relu_()
        return convolve_in_a_row(frames, self.folded(), self.ADDED)

    @property
    def is_plain(self) -> bool:
        """Whether it has the layers it was made with, and all are exactly these."""
        kinds = (nn.Conv2d, FrameNorm, nn.ReLU, nn.Conv2d, FrameNorm)
        layers = list(self.layers)
        ours = is_exact(self.layers, FrameLayers) and len(layers) == len(kinds)
        ours = ours and all(map(is_exact, layers, kinds))
        return ours and kernel_of(layers[0]) == kernel_of(layers[3]) == (3, 1)

    def folded(self) -> list[tuple[Tensor, Tensor]]:
        """Both convolutions, each with the normalisation behind it."""
        layers: list[Any] = list(self.layers)
        first, norm, _, second, other = layers
        return [norm.folded(first), other.folded(second)]


class FrameHeads(nn.Module):
    """Heads of their own for policy, value and reward, each behind a convolution of 1 × 1 to fewer channels."""

    def __init__(
        self,
        channels: int,
        features: int,
        hidden_sizes: Sequence[int],
        activation: str,
        outputs: Sequence[int],
    ) -> None:
        super().__init__()
        fewer = min(HEAD_CHANNELS, channels)
        self.heads = nn.ModuleList(
            FrameLayers(
                *(orthogonal(nn.Conv2d(channels, fewer, 1)), FrameNorm(fewer), nn.ReLU(inplace=True)),
                dense_heads(features // channels * fewer, hidden_sizes, activation, width),
            )
            for width in outputs
        )

    def forward(self, latent: Tensor) -> Tensor:
        return torch.cat([head(latent) for head in self.heads], -1)


class BoardHeads(nn.Module):
    """Heads that know no square by its place: what is learned of a line in one corner holds in the others.

        policy(a)      = Σ over the squares of a of w · relu(conv(s))
        value, reward  = dense(sum over the n squares / √n, largest of all squares, of relu(conv(s)))

    A win is a line somewhere, which the largest tells; material is a sum. These see 5 × 5 squares
    at once, all of a short line, so that a line need not be put together by the layers before. The squares of a move
    are those that `named_squares` marks; where moves have none, the policy is pooled as well.
    """

    transient = ("marks",)
    marks: Tensor | None

    def __init__(
        self,
        channels: int,
        squares: tuple[int, int],
        hidden_sizes: Sequence[int],
        activation: str,
        outputs: Sequence[int],
    ) -> None:
        super().__init__()
        marks = named_squares(outputs[0], squares)
        self.register_buffer("marks", None if marks is None else marks.flatten(1), persistent=False)
        if marks is not None:
            last = nn.Conv2d(BOARD_CHANNELS, 1, 1)
            for weight in last.parameters():  # all moves are as good as any other
                nn.init.zeros_(weight)
            first = orthogonal(nn.Conv2d(channels, BOARD_CHANNELS, 1))
            self.squares = nn.Sequential(first, nn.ReLU(), last, nn.Flatten())
        pooled = outputs if marks is None else outputs[1:]
        self.lines = orthogonal(nn.Conv2d(channels, len(pooled) * BOARD_CHANNELS, 5, padding=2))
        self.dense = nn.ModuleList(
            dense_heads(2 * BOARD_CHANNELS, hidden_sizes, activation, width) for width in pooled
        )

    def forward(self, latent: Tensor) -> Tensor:
        latent = F.relu(latent)  # the last block ends without one
        said = [] if self.marks is None else [self.squares(latent) @ self.marks.t()]
        lines = F.relu(self.lines(latent)).flatten(2)  # [N, C, H · W]
        # What few squares have makes a small mean: as large as the others it is when it is the sum over √(H · W).
        mean, largest = lines.mean(2, keepdim=True), lines.amax(2, keepdim=True)
        pooled = torch.cat([mean * lines.shape[2] ** 0.5, largest], 2)
        parts = pooled.split(BOARD_CHANNELS, 1)
        said += [head(part) for part, head in zip(parts, self.dense, strict=True)]
        return torch.cat(said, -1)


class VectorDynamics(nn.Module):
    """s + W₂ f(W₁ s + row(a)), with more hidden layers in between if there are."""

    def __init__(
        self,
        num_actions: int,
        latent_size: int,
        hidden_sizes: Sequence[int],
        activation: str,
        dimensions: int | None = None,
    ) -> None:
        super().__init__()
        first, *others = hidden_sizes or (latent_size,)
        self.state = orthogonal(nn.Linear(latent_size, first))
        self.action = action_rows(num_actions, dimensions, first)
        layers: list[nn.Module] = [ACTIVATIONS[activation]()]
        for inputs, outputs in itertools.pairwise([first, *others]):
            layers += [orthogonal(nn.Linear(inputs, outputs)), ACTIVATIONS[activation]()]
        width = others[-1] if others else first
        self.rest = nn.Sequential(*layers, orthogonal(nn.Linear(width, latent_size), 1.0))

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        return latent + self.rest(self.state(latent) + self.action(action))


class FrameRepresentation(nn.Module):
    """Residual convolutions that make frames [N, C, H, W] a sixteenth as wide, as in the paper's Atari network.

    Grids of less than 11 pixels a side keep their size. Of a `board`, whose action mask is not seen, there is one
    convolution and then the blocks, as in the paper's board games.
    """

    transient = ("scale", "sees", "key", "normalised")
    title = "residual CNN"

    def __init__(
        self,
        space: spaces.Space,
        channels: int,
        residual_blocks: int,
        normalised: type[FrameNorm] | None = None,
        *,
        board: bool = False,
    ) -> None:
        super().__init__()
        self.key = (
            next((name for name in space.spaces if name != MASK), "")
            if isinstance(space, spaces.Dict)
            else ""
        )
        space = space[self.key] if isinstance(space, spaces.Dict) else space
        assert space.shape is not None
        self.channels_last = has_channels_last(space)
        self.scale, self.normalised = brightest(space), normalised is not None
        self.sees = f"observation {observed(space)}"
        inputs, stride = picture_shape(space)[0], 1 if is_small_image(space) else 2
        layers: list[nn.Module] = []
        for outputs in (channels,) if board else (channels // 2, channels, channels):
            layers.append(orthogonal(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)))
            layers += [normalised(outputs), nn.ReLU(inplace=True)] if normalised else []
            block = NormalisedBlock if normalised else ResidualBlock
            layers += [block(outputs) for _ in range(residual_blocks)]
            inputs = outputs
        pool = [] if stride == 1 else [nn.AvgPool2d(3, stride=2, padding=1)]
        self.layers = FrameLayers(*layers, *pool)
        with torch.no_grad():
            self.features = self._encode(torch.zeros(1, *space.shape)).numel()

    def forward(self, obs: Any) -> Tensor:
        frames = obs[self.key] if self.key else obs
        parts = None if torch.is_grad_enabled() else self._parts()
        if parts is None:
            return self._encode(frames)
        picture = frames.permute(0, 3, 1, 2) if self.channels_last else frames
        if parts[0][1].learns:
            return self._by_the_batch(parts, picture)
        sections = self._folded(parts)
        # Some at a time: what one section makes of them is still in the cache for the next one.
        return torch.cat([self._through(sections, some) for some in picture.split(FRAMES_AT_ONCE)])

    def _through(self, sections: list[Section], picture: Tensor) -> Tensor:
        for entry, layers, added in sections:
            picture = convolve_in_a_row(picture, layers, added, entry)
        return self.layers[-1](picture)

    def _by_the_batch(self, parts: list[list[Any]], picture: Tensor) -> Tensor:
        scale = 1 / self.scale
        for convolution, norm, *blocks in parts:
            picture = normalise(enter(picture, convolution.weight * scale, convolution.bias), norm)
            for block in blocks:
                first, norm, _, second, other = block.layers
                inside = normalise(convolve(picture, first.weight, first.bias), norm)
                picture = normalise(convolve(inside, second.weight, second.bias), other, picture)
            scale = 1.0
        return self.layers[-1](picture)

    def _parts(self) -> list[list[Any]] | None:
        """The layers by sections, a convolution with a stride of 2 and the blocks behind it.

        None where there are no such sections, or layers that are not exactly ours, in single precision on the CPU.
        """
        layers: list[Any] = list(self.layers)
        if not (self.normalised and isinstance(layers[-1], nn.AvgPool2d)):
            return None
        if not (is_exact(self.layers, FrameLayers) and all(map(is_plain, layers[:-1]))):
            return None
        if kernel_of(layers[0]) is None or not fits(layers[0].weight):
            return None
        parts: list[list[Any]] = []
        for layer in layers[:-1]:
            if isinstance(layer, nn.Conv2d):
                parts.append([layer])
            elif isinstance(layer, FrameNorm | NormalisedBlock):
                parts[-1].append(layer)
        return parts

    def _folded(self, parts: list[list[Any]]) -> list[Section]:
        """With running statistics, and with the scale of the pixels, in the weights."""
        sections: list[Section] = []
        for convolution, norm, *blocks in parts:
            weight, bias = norm.folded(convolution)
            scale = 1.0 if sections else 1 / self.scale
            behind = [layer for block in blocks for layer in block.folded()]
            sections.append(((weight * scale, bias), behind, len(blocks) * NormalisedBlock.ADDED))
        return sections

    def _encode(self, frames: Any) -> Tensor:
        picture = frames.permute(0, 3, 1, 2) if self.channels_last else frames
        if self.normalised:  # the layout that torch's convolutions need not be brought into
            picture = picture.to(torch.float32, memory_format=torch.channels_last)
        return self.layers(picture.float() / self.scale)


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer of a representation is exactly ours, with all of its parts."""
    if is_exact(layer, NormalisedBlock):
        return layer.is_plain
    return is_exact(layer, FrameNorm, nn.ReLU) or kernel_of(layer) == (3, 2)


def named_squares(num_actions: int, squares: tuple[int, int]) -> Tensor | None:
    """Planes [A, 1, H, W] with ones where a move is made: a square each, or a column each; None of other moves."""
    rows, columns = squares
    if num_actions == rows * columns:
        return torch.eye(num_actions).view(num_actions, 1, rows, columns)
    if num_actions == columns:
        return torch.eye(columns).view(columns, 1, 1, columns).repeat(1, 1, rows, 1)
    return None


class BoardMoves(nn.Module):
    """Moves [N] of a board game → planes [N, C, H, W] for the state.

    Where each square or each column has a move, it is marked on a plane, and a convolution sees it beside the state, as
    in the paper: what a move does there holds elsewhere. Of other games each move has a plane that is learned.
    """

    transient = ("marks",)
    marks: Tensor | None

    def __init__(self, num_actions: int, channels: int, squares: tuple[int, int]) -> None:
        super().__init__()
        marks = named_squares(num_actions, squares)
        self.register_buffer("marks", marks, persistent=False)
        if marks is None:
            # As small as what the state adds: larger planes would drown it in the first updates.
            self.planes = nn.Parameter(0.1 * torch.randn(num_actions, channels, *squares))
        else:
            self.convolution = nn.Conv2d(1, channels, 3, padding=1, bias=False)
            nn.init.orthogonal_(self.convolution.weight, math.sqrt(2))

    def forward(self, action: Tensor) -> Tensor:
        planes = self.planes if self.marks is None else self.convolution(self.marks)
        return planes[action]


class BoardDynamics(nn.Module):
    """conv(relu(conv(s) + plane(a))): the board after a move, for the tower that boards are represented by.

    Because representation and dynamics end in the same tower, a state that moves led to is made as one that was seen.
    """

    def __init__(self, num_actions: int, channels: int, squares: tuple[int, int]) -> None:
        super().__init__()
        self.state = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.action = BoardMoves(num_actions, channels, squares)
        self.board = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), 1.0)

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        return self.board(F.relu(self.state(latent) + self.action(action)))


class FrameDynamics(nn.Module):
    """s + blocks(conv(s) + row(a)); the row of an action is added at every place of a state [N, C, H, W].

    On a board of `squares` (H, W) a move is not the same everywhere: there it has a plane, see `BoardMoves`.
    With normalisation blocks(relu(s + norm(conv(s) + row(a)))), as in EfficientZero's reference.
    """

    def __init__(
        self,
        num_actions: int,
        channels: int,
        residual_blocks: int,
        normalised: type[FrameNorm] | None = None,
        squares: tuple[int, int] | None = None,
        dimensions: int | None = None,
    ) -> None:
        super().__init__()
        self.state = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.action: nn.Module
        if squares is None:
            self.action = action_rows(num_actions, dimensions, channels)
        else:
            self.action = BoardMoves(num_actions, channels, squares)
        self.norm = normalised(channels) if normalised else None
        block = NormalisedBlock if normalised else ResidualBlock
        self.blocks = nn.Sequential(*(block(channels) for _ in range(residual_blocks)))

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        moved = self.action(action)
        moved = moved if moved.ndim == 4 else moved[..., None, None]
        if self.norm is None:
            return latent + self.blocks(self.state(latent) + moved)
        ours = is_exact(self.norm, FrameNorm) and kernel_of(self.state) == (3, 1)
        if not ours or self.norm.learns:
            return self.blocks(F.relu(latent + self.norm(self.state(latent) + moved)))
        if moved.shape[2:] == (1, 1) and self.is_plain:
            layers, added, factor = self._folded()
            layers[0] = (layers[0][0], layers[0][1] + factor * moved.flatten(1))
            return convolve_in_a_row(latent, layers, added)
        weight, bias = self.norm.folded(self.state)
        change = convolve(latent, weight, bias) + self.norm.factor().view(-1, 1, 1) * moved
        return self.blocks((latent + change).relu_())

    @property
    def is_plain(self) -> bool:
        """Whether its convolutions and normalisations are exactly ours."""
        blocks: Any = self.blocks
        ours = is_exact(self.norm, FrameNorm) and is_exact(blocks, nn.Sequential)
        ours = ours and kernel_of(self.state) == (3, 1)
        return ours and all(is_exact(block, NormalisedBlock) and block.is_plain for block in blocks)

    def _folded(self) -> tuple[list[Layer], tuple[int, ...], Tensor]:
        """All layers with the normalisations behind them, what is added to each, and what an action's row is scaled by.

        norm(conv(s) + row) = norm(conv(s)) + factor · row
        """
        blocks: Any = self.blocks
        assert self.norm is not None
        layers = [self.norm.folded(self.state), *(layer for block in blocks for layer in block.folded())]
        return layers, (INPUT, *len(blocks) * NormalisedBlock.ADDED), self.norm.factor()
