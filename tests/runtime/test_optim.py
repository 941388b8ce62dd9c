"""The optimizer against its formula and against torch's own."""

import pytest
import torch
from torch import nn

from rl_training.errors import NonFiniteError
from rl_training.runtime.optim import Adam, LaProp, RMSprop


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("limit", [None, 0.05, 100.0])
def test_steps_are_those_of_torch(limit):
    ours, theirs = network(), network()
    optimizer = Adam([ours], epsilon=1e-5)
    peer = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    inputs = torch.randn(16, 3)
    for step in range(20):
        rate = 1e-2 / (step + 1)
        norm = optimizer.step(ours(inputs).square().mean(), rate, limit)["grad_norm"]
        peer.zero_grad()
        theirs(inputs).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), limit if limit is not None else float("inf"))
        assert norm == pytest.approx(expected.item(), rel=1e-5)
        peer.param_groups[0]["lr"] = rate
        peer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_first_step_by_hand():
    """m / (1 - β₁) = g and v / (1 - β₂) = g², so the first step is lr · g / (|g| + ε)."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    Adam([layer], epsilon=1e-2).step(layer(torch.ones(1, 1)).sum() * 0.03, 0.1, None)
    assert layer.weight.item() == pytest.approx(2.0 - 0.1 * 0.03 / (0.03 + 0.01), rel=1e-5)


def test_parameters_are_views_of_one_vector_and_stay_so_when_loaded():
    layer = network()
    optimizer = Adam([layer])
    saved = optimizer.state_dict()
    optimizer.step(layer(torch.ones(2, 3)).sum(), 0.1, None)
    optimizer.load_state_dict(saved)
    assert optimizer.count == 0
    optimizer.parameters.fill_(7.0)
    assert all((parameter == 7).all() for parameter in layer.parameters())


def test_what_is_not_finite_is_named_and_moves_nothing():
    layer = network()
    optimizer = Adam([layer])
    before = optimizer.parameters.clone()
    with pytest.raises(NonFiniteError, match="loss"):
        optimizer.step(layer(torch.full((1, 3), float("nan"))).sum(), 0.1, None)
    bad = layer[2].weight.sum() * 0 + (layer[2].weight[0, 0] - layer[2].weight[0, 0].detach()).abs().sqrt()
    with pytest.raises(NonFiniteError, match=r"gradient of 2\.weight"):
        optimizer.step(bad, 0.1, None)
    assert torch.equal(optimizer.parameters, before)
    assert optimizer.count == 0


@pytest.mark.parametrize("kind", [Adam, RMSprop, LaProp])
def test_a_second_moment_may_have_faded_to_0_and_is_never_below(kind):
    """After ten thousand gradients of 0, it has."""
    optimizer = kind([network()])
    state = optimizer.state_dict()
    state["square"].zero_()
    optimizer.load_state_dict(state)
    assert not optimizer.square.any()
    state["square"][3] = -1e-9
    with pytest.raises(ValueError, match="a negative second moment"):
        optimizer.load_state_dict(state)
