"""A step of a model of frames in compiled code, beside the network's own; and where the network itself is asked."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.kernels.frame_model import FrameModel
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.muzero import FrameNorm, MuZeroNetwork, by_the_batch

HORIZON = 3
DRAWN = {  # states, side of the frames, channels, blocks, hidden layers, S, memory, actions
    "of Atari": (9, 84, 32, 1, [128], 50, 256, 4),
    "one state": (1, 32, 16, 1, [8], 3, 4, 2),
    "no hidden layer": (5, 24, 16, 2, [], 5, 12, 18),
    "two hidden layers": (35, 40, 48, 0, [24, 9], 8, 20, 3),
    "no memory": (17, 36, 16, 1, [33], 10, None, 5),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network_of(shape: tuple[Any, ...] = DRAWN["one state"], **changes: Any) -> MuZeroNetwork:
    """One whose every weight and statistic matters."""
    _, side, channels, blocks, hidden, support, memory, actions = shape
    torch.manual_seed(3)
    sizes: dict[str, Any] = dict(latent_size=channels, hidden_sizes=hidden, support_size=support)
    sizes |= dict(residual_blocks=blocks, activation="relu", image_encoder="nature", batch_norm=True)
    sizes |= dict(value_prefix=memory is not None, prefix_size=memory or 1, prefix_horizon=HORIZON)
    space = spaces.Box(0, 255, (4, side, side), np.uint8)
    sizes |= dict(consistency=False, projection_size=8) | changes
    network = EfficientZeroNetwork(space, actions, **sizes)
    for part in network.modules():
        if isinstance(part, FrameNorm):
            nn.init.uniform_(part.weight, 0.5, 2.0)
            nn.init.uniform_(part.bias, -1.0, 1.0)
            part.mean.uniform_(-1.0, 1.0)
            part.variance.uniform_(0.5, 2.0)
        elif isinstance(part, nn.Linear | nn.LSTM | nn.Conv2d):
            for name, weight in part.named_parameters():
                nn.init.normal_(weight, std=0.3 if "bias" in name else weight[0].numel() ** -0.5)
    return network


def kept(latent: Any) -> dict[str, Tensor]:
    """As a search keeps it: what is returned is overwritten."""
    latent = latent if isinstance(latent, dict) else {"latent": latent}
    return {name: part.clone() for name, part in latent.items()}


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("shape", DRAWN.values(), ids=DRAWN)
def test_a_step_is_the_networks(shape: tuple[Any, ...], activation: str) -> None:
    """Over a reset, and where some memories are empty and others are not."""
    count, side, actions = shape[0], shape[1], shape[-1]
    network = network_of(shape, activation=activation)
    step = network.searching()
    assert isinstance(step.__self__, FrameModel)  # type: ignore[attr-defined]
    obs = torch.randint(0, 256, (count, 4, side, side), dtype=torch.uint8)
    slow = fast = network.initial(obs)[2]
    for number in range(HORIZON + 2):
        action = torch.randint(actions, (count,))
        *expected, slow = network.recurrent(slow, action)
        *said, fast = step(fast, action)
        fast = kept(fast)
        pairs = [
            *zip(said, expected, strict=True),
            *((fast[name], part) for name, part in kept(slow).items()),
        ]
        for one, other in pairs:
            assert one.shape == other.shape and one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)
        assert count == 1 or min(part.std() for part in expected) > 1e-3
        if shape[-2] is None:
            fast = fast["latent"]
        elif number == 0 and count > 1:  # a memory that is empty beside others
            for latent in (slow, fast):
                latent["steps"][0] = latent["hidden"][0] = latent["cell"][0] = latent["prefix"][0] = 0


@torch.inference_mode()
def test_a_step_reads_the_weights_as_they_are_when_the_search_begins() -> None:
    network = network_of()
    latent = network.initial(torch.zeros(2, 4, 32, 32, dtype=torch.uint8))[2]
    action = torch.tensor([0, 1])
    before = [part.clone() for part in network.searching()(latent, action)[:3]]
    for part in network.parameters():
        part.mul_(1.1)
    for buffer in (part.mean for part in network.modules() if isinstance(part, FrameNorm)):
        buffer += 0.1
    for one, other, old in zip(
        network.searching()(latent, action)[:3], network.recurrent(latent, action)[:3], before, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(one, old, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def test_what_is_no_number_stays_none() -> None:
    network = network_of()
    latent = network.initial(torch.zeros(3, 4, 32, 32, dtype=torch.uint8))[2]
    latent["latent"][1, 0, 0, 0] = float("nan")
    for part in network.searching()(latent, torch.tensor([0, 1, 0]))[:3]:
        assert part.isnan().view(3, -1).any(1).tolist() == [False, True, False]
        assert part[[0, 2]].isfinite().all()


@torch.inference_mode()
def test_a_network_that_is_not_exactly_ours_is_asked_itself() -> None:
    def asked(network: MuZeroNetwork) -> bool:
        return network.searching() == network.recurrent

    class Own(EfficientZeroNetwork):
        pass

    assert not asked(network_of())
    assert asked(network_of(activation="elu")) and asked(network_of(latent_size=8))
    assert asked(network_of(batch_norm=False)) and asked(network_of(value_transform=False))
    assert asked(network_of(prefix_size=6)), "gates that do not fill whole panels"
    network = network_of()
    network.__class__ = Own
    assert asked(network)
    for name in ("prediction.heads.2.0", "dynamics.norm", "dynamics.blocks.0.layers.3", "prefix.cell"):
        network = network_of()
        handle = network.get_submodule(name).register_forward_hook(lambda *_: None)
        assert asked(network)
        handle.remove()
        assert not asked(network)
    network = network_of()
    network.prediction.heads[1][-1].append(nn.ReLU())  # type: ignore[index,union-attr]
    assert asked(network)
    network = network_of().double()
    assert asked(network)


def test_frames_that_are_learned_from_are_not_taken_for_those_of_a_search() -> None:
    """Where normalisation is by the batch, the network is asked itself."""
    network = network_of()
    with by_the_batch(network), torch.no_grad():
        assert network.searching() == network.recurrent
