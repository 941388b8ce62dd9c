"""Acting without torch must be acting with torch."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.networks.acting import SmallActorCritic
from rl_training.networks.actor_critic import ActorCritic, action_family
from rl_training.runtime.optim import Adam

BOX = gym.spaces.Box(-1, 1, (5,), np.float32)


def make(action_space, **changes):
    torch.manual_seed(0)
    family = action_family(action_space)
    settings = (
        dict(
            hidden_sizes=[64, 32],
            activation="tanh",
            image_encoder="nature",
            shared_trunk=False,
            log_std_init=-0.3,
        )
        | changes
    )
    network = ActorCritic(settings.pop("observation_space", BOX), family, **settings)
    with torch.no_grad():  # the first head is nearly zero, which would hide mistakes
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network, family, SmallActorCritic.of(network, family)


@pytest.mark.parametrize("action_space", [gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))])
@pytest.mark.parametrize("changes", [{}, {"shared_trunk": True}, {"activation": "relu"}])
def test_log_probabilities_values_and_modes_agree(action_space, changes):
    network, family, small = make(action_space, **changes)
    obs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    with torch.no_grad():
        parameters, value = network(torch.from_numpy(obs))
        for explore in (True, False):
            acted = small.act(obs, explore)
            log_prob = family.log_prob(parameters, torch.from_numpy(acted["action"]))
            np.testing.assert_allclose(acted["log_prob"], log_prob, atol=2e-5)
            np.testing.assert_allclose(acted["value"], value, atol=2e-5)
            np.testing.assert_array_equal(small.value(obs), acted["value"])
        np.testing.assert_allclose(acted["action"], family.mode(parameters), atol=2e-5)


def test_samples_have_the_right_distribution():
    network, _, small = make(gym.spaces.Discrete(3))
    np.random.seed(0)
    obs = np.repeat(np.ones((1, 5), np.float32), 50_000, 0)
    share = np.bincount(small.act(obs, True)["action"], minlength=3) / len(obs)
    probability = network(torch.ones(1, 5))[0].softmax(-1)[0].detach().numpy()
    np.testing.assert_allclose(share, probability, atol=4 * np.sqrt(0.25 / len(obs)))
    network, _, small = make(gym.spaces.Box(-1, 1, (1,)))
    drawn = small.act(obs, True)["action"]
    mean = network(torch.ones(1, 5))[0][0, 0].item()
    std = network.actor_head.log_std.exp().item()
    assert abs(drawn.mean() - mean) < 4 * std / np.sqrt(len(obs))
    assert abs(drawn.std() - std) < 0.02 * std


def test_the_weights_are_never_out_of_date():
    """Not after an optimizer has moved them into one vector, and not after it has changed them."""
    network, _, small = make(gym.spaces.Discrete(3))
    obs = np.ones((1, 5), np.float32)
    small.act(obs, False)
    optimizer = Adam([network])
    for _ in range(3):
        logits, value = network(torch.from_numpy(obs))
        optimizer.step(logits.square().sum() + value.square().sum(), 0.05, None)
        with torch.no_grad():
            expected = network(torch.from_numpy(obs))[1]
        np.testing.assert_allclose(small.act(obs, False)["value"], expected, atol=2e-5)


def test_a_nan_is_not_lost():
    _, _, small = make(gym.spaces.Discrete(3))
    assert np.isnan(small.act(np.full((1, 5), np.nan, np.float32), True)["value"]).all()


def test_other_networks_are_left_to_torch():
    image = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    assert make(gym.spaces.Discrete(3), observation_space=image)[2] is None
    assert make(gym.spaces.MultiBinary(3))[2] is None
    assert make(gym.spaces.Discrete(3), activation="silu")[2] is None
    assert make(gym.spaces.Discrete(3), hidden_sizes=[])[2] is None
    assert not make(gym.spaces.Discrete(3), hidden_sizes=[512, 512])[2].fits(16)


@pytest.mark.parametrize("action_space", [gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))])
@pytest.mark.parametrize(
    "changes", [{}, {"shared_trunk": True}, {"activation": "relu"}, {"activation": "elu"}]
)
def test_gradients_written_out_are_those_of_the_graph(action_space, changes):
    """Also when they are added to what is there: two losses, one after the other."""
    network, _, _ = make(action_space, **changes)
    obs = torch.randn(7, 5)
    gradients = []
    for forward in (network, network.for_loss):
        network.zero_grad()
        for factor in (1.0, -0.3):
            parameters, value = forward(obs)
            (factor * (parameters.tanh() * (1 + parameters)).sum() + value.square().mean()).backward()
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in network.parameters()]))
    assert gradients[0].norm() > 1
    torch.testing.assert_close(*gradients)
