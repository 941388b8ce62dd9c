"""What networks are built of: the layers of their papers, with the weights they begin with."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.kernels.exact import Shortcut
from rl_training.kernels.small_model import SmallModel
from rl_training.networks.adapters import StagedWeight
from rl_training.networks.discriminator import Discriminator
from rl_training.networks.dreamer import Head
from rl_training.networks.encoders import (
    ImpalaCNN,
    NatureCNN,
    ResidualBlock,
    SmallCNN,
    laid_out,
    orthogonal,
    plain_first,
)
from rl_training.networks.muzero import FrameDynamics, FrameRepresentation, MuZeroNetwork
from rl_training.networks.reconstruction import Choices, FoldedPicture, Picture, Vector
from rl_training.networks.rssm import RSSM, BlockLinear, truncated_normal
from rl_training.networks.scalezero import TaskHeads
from rl_training.networks.soft_actor_critic import TwinCritics
from rl_training.networks.transformer import Block, Transformer


def bytes_of(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def layers_of(module: nn.Module) -> list[tuple[Any, ...]]:
    """Inputs, outputs, and of convolutions kernel, stride and padding, in the order of the layers."""
    found: list[tuple[Any, ...]] = []
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            kernel, stride, padding = part.kernel_size, part.stride, part.padding
            assert len({*kernel}) == len({*stride}) == len({*padding}) == 1
            found.append((part.in_channels, part.out_channels, kernel[0], stride[0], padding[0]))  # type: ignore[misc]
        elif isinstance(part, nn.Linear):
            found.append((part.in_features, part.out_features))
    return found


def test_the_nature_cnn_is_that_of_the_paper() -> None:
    """Mnih et al. 2015: 84 → 20 → 9 → 7 pixels a side, and 64 · 7 · 7 numbers into a layer of 512."""
    expected = [(4, 32, 8, 4, 0), (32, 64, 4, 2, 0), (64, 64, 3, 1, 0), (3136, 512)]
    assert layers_of(NatureCNN(bytes_of(4, 84, 84))) == expected
    assert layers_of(NatureCNN(bytes_of(36, 40, 3)))[0] == (3, 32, 8, 4, 0), "the smaller side decides"


def test_small_pictures_have_small_kernels() -> None:
    """35 → 17 → 15 → 13 pixels."""
    expected = [(1, 32, 3, 2, 0), (32, 64, 3, 1, 0), (64, 64, 3, 1, 0), (64 * 13 * 13, 512)]
    assert layers_of(NatureCNN(bytes_of(35, 35, 1))) == expected


def test_the_cnn_of_small_grids() -> None:
    assert layers_of(SmallCNN(bytes_of(10, 9, 4))) == [(4, 16, 3, 1, 1), (16, 32, 3, 1, 1), (32 * 90, 128)]


def test_the_impala_cnn_is_that_of_the_paper() -> None:
    """Espeholt et al. 2018, figure 3: sections of 16, 32 and 32 filters that halve the picture, two residual blocks
    each, and a layer of 256."""
    encoder, expected, channels = ImpalaCNN(bytes_of(3, 64, 64)), [], 3
    for filters in (16, 32, 32):
        expected += [(channels, filters, 3, 1, 1), *[(filters, filters, 3, 1, 1)] * 4]
        channels = filters
    assert layers_of(encoder) == [*expected, (32 * 8 * 8, 256)]
    pools = [part for part in encoder.modules() if isinstance(part, nn.MaxPool2d)]
    assert [(pool.kernel_size, pool.stride, pool.padding) for pool in pools] == [(3, 2, 1)] * 3


def test_a_residual_block_by_hand() -> None:
    """x + conv(relu(conv(relu(x)))) with convolutions that pass their input on, doubled and tripled."""
    block = ResidualBlock(1)
    with torch.no_grad():
        for convolution, factor in ((block.first, 2.0), (block.second, 3.0)):
            convolution.weight.zero_()[0, 0, 1, 1] = factor
    picture = torch.tensor([[[[1.0, -1.0]]]])
    assert block(picture).flatten().tolist() == [7.0, -1.0]


def test_pictures_are_scaled_and_laid_out_alike_whichever_way_they_come() -> None:
    encoder = ImpalaCNN(bytes_of(16, 12, 3))
    first = ImpalaCNN(bytes_of(3, 16, 12))
    first.load_state_dict(encoder.state_dict())
    obs = torch.randint(0, 256, (2, 16, 12, 3), dtype=torch.uint8)
    expected = encoder.convolutions(obs.movedim(-1, 1).float() / 255).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(encoder(obs), encoder.dense(expected), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(first(obs.movedim(-1, 1)), encoder(obs), atol=1e-4, rtol=1e-4)
    encoder.convolutions[0].register_forward_hook(lambda *_: None)  # then no layer may be left uncalled
    torch.testing.assert_close(encoder(obs), encoder.dense(expected), atol=1e-4, rtol=1e-4)


def test_the_first_convolution_is_computed_without_being_called_only_where_it_is_plain() -> None:
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU())
    assert plain_first(plain) is plain[0]
    others: list[dict[str, Any]] = [dict(bias=False), dict(groups=2), dict(dilation=2)]
    others += [dict(padding_mode="reflect", padding=1)]
    for settings in others:
        assert plain_first(nn.Sequential(nn.Conv2d(2, 4, 3, **settings))) is None, settings
    assert plain_first(nn.Sequential(nn.ReLU())) is None and plain_first(nn.Sequential()) is None


def test_frames_go_channels_last_in_memory_and_nothing_else_does() -> None:
    frames = torch.randint(0, 256, (3, 4, 6, 5), dtype=torch.uint8)
    moved = laid_out(frames)
    assert torch.equal(moved, frames) and moved.is_contiguous(memory_format=torch.channels_last)
    assert laid_out(moved) is moved, "once"
    for other in (frames.float(), frames[0], torch.zeros(2, 6, 3, 5, dtype=torch.uint8)):
        assert laid_out(other) is other


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_orthogonal_weights_and_biases_of_zero(shape: tuple[int, int]) -> None:
    layer = orthogonal(nn.Linear(*shape), 0.5)
    rows = layer.weight if shape[0] >= shape[1] else layer.weight.t()
    torch.testing.assert_close(rows @ rows.t(), 0.25 * torch.eye(4))
    assert not layer.bias.any()


def deviation(weight: Tensor) -> float:
    assert abs(weight.mean().item()) < 5 * weight.std().item() / math.sqrt(weight.numel())
    return float(weight.detach().std())


def test_truncated_normals_have_the_variance_that_was_asked_for() -> None:
    torch.manual_seed(0)
    weight = torch.empty(500, 400)
    truncated_normal(weight, 400)
    assert deviation(weight) == pytest.approx(0.05, rel=0.01)
    assert weight.abs().max() <= 2 * 0.05 / 0.87962566
    truncated_normal(weight, 400, 3.0)
    assert deviation(weight) == pytest.approx(0.15, rel=0.01)
    assert not truncated_normal(weight, 400, 0.0) and not weight.any()


def test_what_the_memory_of_a_world_model_begins_with() -> None:
    """The fan-in of a block is its part of the memory and all three inputs, counted for all blocks."""
    torch.manual_seed(0)
    sizes: dict[str, int] = dict(deter_size=96, rssm_hidden=32, num_latents=4, num_classes=5, blocks=4)
    model = RSSM(7, 2, **sizes)
    fan_in = 96 + 3 * 32 * 4
    assert model.own.weight.shape == (4, 24, 24) and model.gates.weight.shape == (4, 24, 72)
    assert model.shared.shape == (96, 96)
    for weight, inputs in ((model.own.weight, fan_in), (model.shared, fan_in), (model.gates.weight, 96)):
        assert deviation(weight) == pytest.approx(inputs**-0.5, rel=0.06)
    assert layers_of(model.prior_layers) == [(96, 32), (32, 32), (32, 20)]
    assert layers_of(model.posterior_layer) == [(103, 32)]
    assert not model.own.bias.any() and bool((model.scale == 1).all())


def test_outputs_begin_at_their_scale() -> None:
    torch.manual_seed(0)
    head = Head(6, 64, 2, 200, 0.25)
    assert layers_of(head) == [(6, 64), (64, 64), (64, 200)]
    assert deviation(head.output.weight) == pytest.approx(0.25 / 8, rel=0.03)
    assert not head.output.bias.any()


def test_a_layer_in_blocks_has_a_bias_per_output() -> None:
    layer = BlockLinear(4, 6, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(12.0).view(2, 2, 3))
        layer.bias.copy_(torch.arange(6.0) * 100)
    found = layer(torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]))
    assert found.tolist() == [[6, 109, 212, 300, 400, 500], [0, 100, 200, 315, 417, 519]]


def test_staged_weights_begin_with_the_deviation_of_their_inputs() -> None:
    torch.manual_seed(0)
    staged: dict[str, Any] = dict(stages=3, rank=4, lora_alpha=8.0)
    weight = StagedWeight(2, 300, 100, **staged)
    assert weight.strength == 2.0 and weight.base.shape == (2, 300, 100)
    assert deviation(weight.base) == pytest.approx(0.1, rel=0.02)
    assert [tuple(part.shape) for part in weight.down] == [(2, 4, 100)] * 2
    assert [tuple(part.shape) for part in weight.up] == [(2, 300, 4)] * 2
    assert [tuple(part.shape) for part in weight.logits] == [(1, 2), (2, 2)]
    assert deviation(weight.down[0]) == pytest.approx(0.01, rel=0.12)
    assert not any(part.any() for part in (*weight.up, *weight.logits))
    assert deviation(StagedWeight(300, 100, **staged, deviation=0.5).base) == pytest.approx(0.5, rel=0.02)


def test_what_is_added_to_the_stream_begins_small() -> None:
    """0.02 / √(2 layers), as GPT-2's."""
    torch.manual_seed(0)
    staged: dict[str, Any] = dict(stages=1, rank=1, lora_alpha=1.0)
    block = Block(64, heads=4, experts=2, hidden=96, layers=8, **staged)
    for weight in (block.project, block.narrow, block.shared_narrow):
        assert deviation(weight.base) == pytest.approx(0.005, rel=0.05)
    for weight in (block.attend, block.gate, block.widen, block.shared_widen):
        assert deviation(weight.base) == pytest.approx(1 / 8, rel=0.05)
    assert block.attend.base.shape == (192, 64) and block.narrow.base.shape == (2, 64, 96)
    for bias in (block.attend_bias, block.project_bias, block.shared_bias, block.narrow_bias):
        assert not bias.any()
    transformer = Transformer(64, 2, 50, heads=4, experts=2, hidden=8, **staged)
    assert deviation(transformer.position) == pytest.approx(0.02, rel=0.1)
    assert deviation(transformer.blocks[0].project.base) == pytest.approx(0.01, rel=0.05)  # type: ignore[union-attr]


def test_a_tasks_heads_begin_with_nothing_to_say() -> None:
    torch.manual_seed(0)
    heads = TaskHeads(300, 16, 24, 5)
    assert deviation(heads.action.weight) == pytest.approx(0.5, rel=0.05)
    assert layers_of(heads.of_latent) == [(16, 24), (24, 305)]
    assert layers_of(heads.of_action) == [(16, 24), (24, 21)]
    output = torch.randn(2, 3, 16)
    for part, size in zip(
        (*heads.policy_and_value(output), *heads.reward_and_change(output)), (300, 5, 5, 16), strict=True
    ):
        assert part.shape == (2, 3, size) and not part.any()


def test_twin_critics_begin_as_torchs_own_layers_do() -> None:
    """Uniform within ±1 / √inputs, weights and biases."""
    torch.manual_seed(0)
    critics = TwinCritics(spaces.Box(-1, 1, (60,), np.float32), 4, [400, 100], "relu", "nature")
    assert [tuple(part.shape) for part in critics.weights] == [(2, 64, 400), (2, 400, 100), (2, 1, 100)]
    assert [tuple(part.shape) for part in critics.biases] == [(2, 1, 400), (2, 1, 100), (2, 1)]
    for weight, inputs in zip(critics.weights, (64, 400, 100), strict=True):
        bound = inputs**-0.5
        assert 0.95 * bound < weight.abs().max() <= bound
        assert deviation(weight) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for bias, inputs in zip(critics.biases, (64, 400, 100), strict=True):
        assert bias.abs().max() <= inputs**-0.5
    assert critics.biases[0].abs().max() > 0.9 / 8


@pytest.mark.parametrize("spectral", [False, True])
def test_a_discriminator_begins_undecided(spectral: bool) -> None:
    """The observation, the action as one-hot, and the flag of the absorbing state."""
    network = Discriminator(
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Discrete(4),
        hidden_sizes=[6, 5],
        image_encoder="nature",
        spectral_norm=spectral,
    )
    assert layers_of(network) == [(8, 6), (6, 5), (5, 1)]
    assert not network.output.weight.any() and not network.output.bias.any()
    inputs = network.inputs(torch.randn(2, 3), torch.tensor([0, 3]))
    assert inputs[:, 3:].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    assert network.absorbing().tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]]
    assert network(inputs).tolist() == [0, 0]


def test_the_networks_of_frames_halve_and_keep() -> None:
    """Frames of 96: three convolutions of stride 2 and a pooling of 2; grids of games keep their size."""
    large = FrameRepresentation(bytes_of(4, 96, 96), 8, 1)
    block = [(8, 8, 3, 1, 1)] * 2
    expected = [(4, 4, 3, 2, 1), *[(4, 4, 3, 1, 1)] * 2, (4, 8, 3, 2, 1), *block, (8, 8, 3, 2, 1), *block]
    assert layers_of(large) == expected
    assert large.features == 8 * 6 * 6 and large(torch.zeros(2, 4, 96, 96)).shape == (2, 8, 6, 6)
    small = FrameRepresentation(spaces.Box(0, 1, (9, 9, 2), np.float32), 8, 0)
    assert layers_of(small) == [(2, 4, 3, 1, 1), (4, 8, 3, 1, 1), (8, 8, 3, 1, 1)]
    assert small(torch.zeros(1, 9, 9, 2)).shape == (1, 8, 9, 9)
    assert (large.scale, small.scale) == (255, 1)
    dynamics = FrameDynamics(3, 8, 1)
    assert layers_of(dynamics) == [(8, 8, 3, 1, 1)] * 3
    latent = torch.rand(2, 8, 5, 5)
    with torch.no_grad():
        for part in (dynamics.state, *dynamics.blocks):  # nothing but the rows of the actions is left
            for parameter in part.parameters():
                parameter.zero_()
    rows = dynamics.action.weight[torch.tensor([2, 0])][..., None, None]
    torch.testing.assert_close(dynamics(latent, torch.tensor([2, 0])), latent + rows)


def muzero() -> MuZeroNetwork:
    return MuZeroNetwork(
        spaces.Box(-1, 1, (3,), np.float32),
        num_actions=2,
        latent_size=4,
        hidden_sizes=[5],
        activation="relu",
        image_encoder="nature",
        support_size=3,
        residual_blocks=1,
    )


def test_the_heads_of_muzero_are_a_policy_and_two_supports() -> None:
    network = muzero()
    assert layers_of(network.prediction) == [(4, 5), (5, 2 + 7 + 7)]
    assert network.atoms.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    heads = network.prediction[-1]
    assert isinstance(heads, nn.Linear) and not heads.weight.any() and not heads.bias.any()
    parts = network.predict(torch.zeros(6, 4))
    assert [tuple(part.shape) for part in parts] == [(6, 2), (6, 7), (6, 7)]


def test_models_are_small_by_the_number_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 · 5 and 5 · 4 of the dynamics, 4 · 5 and 5 · 16 of the heads."""
    network = muzero()
    model = SmallModel.of(network.dynamics, network.prediction)  # type: ignore[arg-type]
    assert model is not None and model.count == 140 and model.fits
    for most in (140, 139):
        monkeypatch.setattr("rl_training.kernels.small_model.MOST_WEIGHTS", most)
        assert model.fits == (most == 140)


class OwnLinear(nn.Linear):
    pass


class OwnEmbedding(nn.Embedding):
    pass


def test_planning_takes_its_shortcut_for_exactly_our_layers() -> None:
    """Each part that is another class sends planning through the modules, whatever the other parts are."""
    network = muzero()
    assert isinstance(SmallModel.of(network.dynamics, network.prediction), SmallModel)  # type: ignore[arg-type]
    changes: list[tuple[nn.Module, str, nn.Module]] = [
        (network.dynamics, "state", OwnLinear(4, 5)),
        (network.dynamics, "action", OwnEmbedding(2, 5)),
        (network.dynamics, "rest", nn.ModuleList(network.dynamics.rest)),  # type: ignore[union-attr, arg-type]
        (network.prediction, "0", nn.Identity()),
        (network.prediction, "2", nn.Sigmoid()),
        (network.prediction, "3", OwnLinear(5, 16)),
    ]
    for holder, name, part in changes:
        kept = holder._modules[name]
        holder._modules[name] = part
        assert SmallModel.of(network.dynamics, network.prediction) is None, name  # type: ignore[arg-type]
        holder._modules[name] = kept
    assert SmallModel.of(network.dynamics, network.prediction) is not None  # type: ignore[arg-type]


def test_a_shortcut_looks_at_once_and_again_when_something_changed() -> None:
    network, made = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    shortcut: Shortcut[int] = Shortcut(network, lambda module: made.append(module) or len(made))  # type: ignore[func-returns-value]
    assert shortcut.path == 1 and len(shortcut.hooks) == 3 * 4
    assert shortcut() == shortcut() == 1, "nothing changed"
    network[0] = nn.Linear(2, 2)
    assert shortcut() == 2
    hook = network[1].register_forward_hook(lambda *_: None)
    assert shortcut() is None
    hook.remove()
    assert shortcut() == 3


def test_vectors_and_choices_of_a_world_model_in_any_dimensions() -> None:
    vector = Vector(spaces.Box(-9, 9, (2, 3), np.float32))
    obs = torch.randn(5, 4, 2, 3)
    assert vector.encode(obs).shape == (5, 4, 6)
    torch.testing.assert_close(vector.predict(vector.encode(obs)), obs)
    assert Vector(spaces.Box(-9, 9, (), np.float32)).predict(torch.zeros(5, 1)).shape == (5, 1)
    single = Choices(spaces.Discrete(3, start=5))
    assert single.encode(torch.tensor([[5, 7]])).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    assert single.predict(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [[6]]
    several = Choices(spaces.MultiDiscrete([2, 3], start=[0, 4]))
    code = several.encode(torch.tensor([[[1, 6]], [[0, 4]]]))
    assert code.tolist() == [[[0, 1, 0, 0, 1]], [[1, 0, 1, 0, 0]]]
    assert several.predict(code).tolist() == [[[1, 6]], [[0, 4]]]
    logits = torch.zeros(1, 5)
    # A coin and one of three: log 2 + log 3.
    assert several.loss(logits, torch.tensor([[1, 6]])).item() == pytest.approx(math.log(6))


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_the_stages_of_a_world_models_pictures(last: bool) -> None:
    """64 × 48 → 32 × 24 → 16 × 12 → 8 × 6 → 4 × 3, each 5 × 5 and deeper, and the same way back."""
    shape = (64, 48, 3) if last else (3, 64, 48)
    picture = Picture(bytes_of(*shape), 4, 16, 6, 10, 2)
    assert picture.sizes == ((64, 48), (32, 24), (16, 12), (8, 6), (4, 3))
    depths = [3, 8, 12, 16, 16]
    there = [(a, b, 5, 1, 2) for a, b in itertools.pairwise(depths)]
    assert layers_of(picture.inwards) == there
    assert layers_of(picture.outwards) == [(b, a, 5, 1, 2) for a, b, *_ in reversed(there)]
    assert [len(norm.scale) for norm in picture.inward_norms] == [8, 12, 16, 16]  # type: ignore[arg-type]
    assert [len(norm.scale) for norm in picture.outward_norms] == [16, 12, 8]  # type: ignore[arg-type]
    assert picture.size == 16 * 4 * 3 and layers_of(picture.from_stoch) == [(6, 20), (20, 192)]
    assert picture.from_deter.weight.shape == (2, 8, 96)
    assert Picture(bytes_of(*shape), 4, 15, 6, 10, 5).from_deter.weight.shape == (1, 15, 192), (
        "16 is no multiple of 5"
    )
    obs = torch.randint(0, 256, (2, 1, *shape), dtype=torch.uint8)
    assert picture.encode(obs).shape == (2, 1, 192)
    told = picture.predict(torch.randn(2, 1, 22))
    assert told.shape == obs.shape and told.dtype is torch.uint8
    planes = obs.float().flatten(0, 1) / 255
    torch.testing.assert_close(picture.pixels(obs), planes.movedim(-1, 1) if last else planes)


@pytest.mark.parametrize("shape", [(64, 48, 3), (50, 44, 2), (4, 4, 1)])
def test_a_folded_decoder_paints_the_same_pictures_and_has_the_same_gradients(shape: tuple[int, ...]) -> None:
    """Also where a stage does not double: 50 × 44 comes from 25 × 22, that from 12 × 11; 4 × 4 has one stage."""
    torch.manual_seed(1)
    plain = Picture(bytes_of(*shape), 4, 16, 6, 10, 2).double()
    for convolve in plain.outwards:
        torch.nn.init.normal_(convolve.bias)  # type: ignore[arg-type]
    folded = object.__new__(FoldedPicture)
    folded.__dict__.update(plain.__dict__)
    features, weights = torch.randn(3, 22).double(), list(plain.outwards.parameters())
    painted = [each.decode(features) for each in (folded, plain)]
    assert painted[0].shape == (3, shape[2], *shape[:2])
    slopes = [torch.autograd.grad((each**2).sum(), weights) for each in painted]
    torch.testing.assert_close(painted[0], painted[1])
    torch.testing.assert_close(slopes[0], slopes[1])
