"""Acting without torch must be acting with torch."""

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.masking import pick_allowed
from rl_training.data.random_rollout import random_action
from rl_training.kernels.acting import InMemory, SmallActorCritic
from rl_training.kernels.exact import unchanging
from rl_training.networks.actor_critic import ActorCritic, action_family
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.q_values import QPolicy
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
    network, family, _ = make(gym.spaces.Discrete(3))
    small = InMemory(network, partial(SmallActorCritic.of, family=family))
    obs = np.ones((1, 5), np.float32)
    small().act(obs, False)
    optimizer = Adam([network])
    for _ in range(3):
        logits, value = network(torch.from_numpy(obs))
        optimizer.step(logits.square().sum() + value.square().sum(), 0.05, None)
        with torch.no_grad():
            expected = network(torch.from_numpy(obs))[1]
        np.testing.assert_allclose(small().act(obs, False)["value"], expected, atol=2e-5)


def test_an_unchanging_network_is_looked_at_once_and_a_change_before_or_after_is_seen():
    settings = dict(hidden_sizes=[8], activation="relu", image_encoder="nature", dueling=False)
    policy = QPolicy(BOX, gym.spaces.Discrete(3), normalize_observations=False, device="cpu", **settings)
    looks, obs = [], np.ones((1, 5), np.float32)
    look = policy.small._changed
    policy.small._changed = lambda: looks.append(1) or look()
    policy.network.head.bias.data = torch.full((3,), 7.0)
    with pytest.raises(ZeroDivisionError), unchanging(policy):
        before = [policy.value(obs, ()) for _ in range(4)][-1]
        1 / 0  # noqa: B018
    assert len(looks) == 1 and (before > 5).all()
    policy.network.register_forward_hook(lambda module, args, output: output + 100)
    assert (policy.value(obs, ()) > 105).all() and len(looks) == 2


def transpose(network):
    weight = network.encoder[1][2].weight
    weight.data = weight.data.t()  # at the same address


def exchange_data(network):
    network.head.bias.data = torch.full((3,), 7.0)


def exchange_parameter(network):
    network.encoder[1][0].weight = torch.nn.Parameter(torch.ones(16, 5))


@pytest.mark.parametrize(
    ("change", "compiled"),
    [
        (torch.nn.Module.half, False),
        (torch.nn.Module.double, False),
        (transpose, False),
        (exchange_data, True),
        (exchange_parameter, True),
    ],
)
def test_parameters_are_read_only_as_what_they_are(change, compiled):
    """Those of another type or layout are left to torch; others in their place are read there."""
    torch.manual_seed(0)
    settings = dict(hidden_sizes=[16, 16], activation="relu", image_encoder="nature", dueling=False)
    policy = QPolicy(BOX, gym.spaces.Discrete(3), normalize_observations=False, device="cpu", **settings)
    first, obs = copy.deepcopy(policy.network.state_dict()), torch.randn(4, 5)
    policy.value(obs.numpy(), None)
    change(policy.network)
    assert (policy.small() is not None) == compiled
    if policy.network.head.bias.dtype == torch.float32:
        expected = policy.network(obs).detach()
        np.testing.assert_allclose(policy.value(obs.numpy(), None), expected, atol=2e-5)
    policy.network.load_state_dict(first, assign=True)
    assert policy.small() is not None


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


def test_dense_networks_with_an_encoder_each_learn_through_their_stacks():
    image = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    assert make(gym.spaces.Discrete(3))[0].stacks is not None
    assert make(gym.spaces.Discrete(3), shared_trunk=True)[0].stacks is None
    assert make(gym.spaces.Discrete(3), observation_space=image)[0].stacks is None


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


def q_policy(q, masked):
    """A policy for which every observation has these values."""
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    mask = gym.spaces.Box(0, 1, (len(q),), np.int8)
    space = gym.spaces.Dict({"action_mask": mask, "seen": box}) if masked else box
    settings = dict(hidden_sizes=[3], activation="relu", image_encoder="nature", dueling=False)
    actions = gym.spaces.Discrete(len(q))
    policy = QPolicy(space, actions, normalize_observations=False, device="cpu", **settings)
    with torch.no_grad():
        policy.network.head.weight.zero_()
        policy.network.head.bias.copy_(torch.tensor(q))
    return policy


def test_the_best_action_is_the_best_of_those_allowed():
    q, seen = [1.0, 5.0, 3.0], np.zeros((2, 2), np.float32)
    action, carry = q_policy(q, False).act(seen, (), explore=False)
    assert action["action"].tolist() == [1, 1] and carry == ()
    masked = {"seen": seen, "action_mask": np.array([[1, 0, 1], [1, 0, 0]], np.int8)}
    assert q_policy(q, True).act(masked, (), explore=False)[0]["action"].tolist() == [2, 0]


def test_random_actions_are_uniform_over_those_allowed():
    """With ε = ½, the best action has half of all draws and its share of the other half."""
    np.random.seed(0)
    count, seen = 30_000, np.zeros((30_000, 2), np.float32)
    for masked, expected in ((False, [1 / 6, 2 / 3, 1 / 6]), (True, [3 / 4, 0, 1 / 4])):
        policy = q_policy([1.0, 5.0, 0.5], masked)
        policy.epsilon = 0.5
        obs = {"seen": seen, "action_mask": np.tile([1, 0, 1], (count, 1))} if masked else seen
        action = policy.act(obs, (), explore=True)[0]["action"]
        np.testing.assert_allclose(np.bincount(action, minlength=3) / count, expected, atol=0.01)


def test_the_largest_draw_is_an_action(monkeypatch):
    """Rounded up, a draw just below ε would be one action too many."""
    for epsilon in (1.0, 0.3):
        monkeypatch.setattr(np.random, "random", lambda size, e=epsilon: np.full(size, np.nextafter(e, 0)))
        policy = q_policy([9.0, 5.0, 3.0], False)
        policy.epsilon = epsilon
        assert policy.act(np.zeros((1, 2), np.float32), (), explore=True)[0]["action"].tolist() == [2]


def test_allowed_actions_are_picked_by_rank():
    """Three of five are allowed, and thirds of [0, 1) are theirs; 1, which rounding may give, is the last."""
    mask = np.tile([0, 1, 1, 0, 1], (7, 1))
    noise = np.array([0.0, 0.33, 0.34, 0.66, 0.67, 0.999, 1.0])
    assert pick_allowed(noise, mask).tolist() == [1, 1, 2, 2, 4, 4, 4]
    assert pick_allowed(np.array([0.0, 0.9]), np.array([[0, 0, 1], [1, 0, 0]])).tolist() == [2, 0]


def test_values_of_half_precision_are_those_that_were_acted_with():
    """Bootstrapped in another precision, values would not be those of the same network."""
    torch.manual_seed(0)
    settings = dict(
        hidden_sizes=[16], activation="tanh", shared_trunk=False, image_encoder="nature", log_std_init=0.0
    )
    obs, space = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32), gym.spaces.Discrete(3)
    policy = ActorCriticPolicy(
        BOX, space, normalize_observations=False, device="cpu", precision="bf16", **settings
    )
    with torch.no_grad():
        exact = policy.network.value(torch.from_numpy(obs)).numpy()
    value = policy.value(obs, ())
    np.testing.assert_array_equal(value, policy.act(obs, (), explore=False)[0]["value"])
    assert 0 < np.abs(value - exact).max() < 0.05


def test_batches_are_small_by_the_number_of_their_multiplications(monkeypatch):
    _, _, small = make(gym.spaces.Discrete(3))
    assert small.multiplications == 2 * (5 * 64 + 64 * 32) + 32 * 3 + 32 * 1
    monkeypatch.setattr("rl_training.kernels.acting.MOST_MULTIPLICATIONS", 10 * small.multiplications)
    assert small.fits(10) and not small.fits(11)
    values = q_policy([1.0, 5.0, 3.0], False).small()
    assert values.multiplications == 2 * 3 + 3 * 3
    monkeypatch.setattr("rl_training.kernels.acting.MOST_MULTIPLICATIONS", 10 * values.multiplications)
    assert values.fits(10) and not values.fits(11)


def test_random_actions_of_every_space_are_for_one_environment():
    chance = np.random.default_rng(0)

    def drawn(space, obs=None):
        return np.concatenate([random_action(space, obs, chance) for _ in range(300)])

    box = drawn(gym.spaces.Box(-5, 5, (2, 3), np.float32))
    assert (
        box.shape == (300, 6) and box.dtype == np.float32 and -1 <= box.min() < -0.9 and 0.9 < box.max() <= 1
    )
    bits = drawn(gym.spaces.MultiBinary(3))
    assert bits.shape == (300, 3) and set(bits.ravel()) == {0, 1}
    assert drawn(gym.spaces.Discrete(3)).shape == (300,) and set(drawn(gym.spaces.Discrete(3))) == {0, 1, 2}
    several = drawn(gym.spaces.MultiDiscrete([2, 3]))
    assert several.shape == (300, 2) and [set(column) for column in several.T] == [{0, 1}, {0, 1, 2}]
    mask = {"action_mask": np.array([[0, 1, 1, 0, 1]])}
    assert [set(column) for column in drawn(gym.spaces.MultiDiscrete([2, 3]), mask).T] == [{1}, {0, 2}]
    assert set(drawn(gym.spaces.Discrete(5), mask)) == {1, 2, 4}
