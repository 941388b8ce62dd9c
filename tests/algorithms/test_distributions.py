"""Action distributions against torch.distributions, and against their own samples."""

import math

import pytest
import torch
from torch import distributions as reference

from rl_training.algorithms.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical


def normals(parameters):
    mean, log_std = parameters.chunk(2, -1)
    return reference.Independent(reference.Normal(mean, log_std.exp()), 1)


CASES = {
    "categorical": (Categorical(4), lambda p: reference.Categorical(logits=p)),
    "bernoulli": (Bernoulli(3), lambda p: reference.Independent(reference.Bernoulli(logits=p), 1)),
    "gaussian": (DiagonalGaussian(2), normals),
}


@pytest.mark.parametrize("name", CASES)
def test_log_prob_and_entropy_are_those_of_torch(name):
    torch.manual_seed(0)
    family, make = CASES[name]
    parameters = torch.randn(5, 7, family.num_parameters)
    action = family.sample(parameters)
    expected = make(parameters)
    log_prob = expected.log_prob(action.float() if name == "bernoulli" else action)
    torch.testing.assert_close(family.log_prob(parameters, action), log_prob)
    torch.testing.assert_close(family.entropy(parameters), expected.entropy())
    both = family.log_prob_and_entropy(parameters, action)
    torch.testing.assert_close(both, (log_prob, expected.entropy()))


@pytest.mark.parametrize("name", CASES)
def test_divergences_are_those_of_torch_and_zero_from_oneself(name):
    torch.manual_seed(0)
    family, make = CASES[name]
    one, other = torch.randn(2, 5, 7, family.num_parameters)
    torch.testing.assert_close(family.kl(one, other), reference.kl_divergence(make(one), make(other)))
    torch.testing.assert_close(family.kl(one, one), torch.zeros(5, 7), atol=1e-6, rtol=0)


def test_the_divergence_of_several_choices_is_the_sum_of_theirs():
    torch.manual_seed(0)
    one, other = torch.randn(2, 6, 5)
    pairs = zip(one.split([2, 3], -1), other.split([2, 3], -1), strict=True)
    parts = [Categorical(p.shape[-1]).kl(p, q) for p, q in pairs]
    torch.testing.assert_close(MultiCategorical((2, 3)).kl(one, other), sum(parts))


def test_several_choices_are_independent():
    torch.manual_seed(0)
    family = MultiCategorical((2, 3))
    parameters = torch.randn(6, 5)
    action = family.sample(parameters)
    parts = [reference.Categorical(logits=part) for part in parameters.split([2, 3], -1)]
    log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(family.log_prob(parameters, action), log_prob)
    torch.testing.assert_close(family.entropy(parameters), sum(part.entropy() for part in parts))
    assert family.mode(parameters).tolist() == torch.stack([p.probs.argmax(-1) for p in parts], -1).tolist()


def test_samples_have_the_right_frequencies():
    torch.manual_seed(0)
    n = 200_000
    probability = torch.tensor([0.1, 0.2, 0.7])
    drawn = Categorical(3).sample(probability.log().expand(n, 3))
    share = drawn.bincount(minlength=3) / n
    torch.testing.assert_close(share, probability, atol=4 * math.sqrt(0.25 / n), rtol=0)
    coins = Bernoulli(1).sample(torch.full((n, 1), math.log(0.25 / 0.75))).float().mean().item()
    assert abs(coins - 0.25) < 4 * math.sqrt(0.25 / n)
    normal = DiagonalGaussian(1).sample(torch.tensor([1.0, math.log(2.0)]).expand(n, 2))
    assert abs(normal.mean().item() - 1) < 4 * 2 / math.sqrt(n) and abs(normal.std().item() - 2) < 0.02


def test_modes():
    assert Categorical(3).mode(torch.tensor([0.0, 2.0, 1.0])).item() == 1
    assert Bernoulli(2).mode(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]
    assert DiagonalGaussian(2).mode(torch.tensor([1.0, 2.0, 0.0, 0.0])).tolist() == [1.0, 2.0]


def test_a_coin_that_cannot_fall_on_heads_never_does(monkeypatch):
    """A forbidden action has probability exactly 0, and uniform noise may be exactly 0."""
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    assert Bernoulli(2).sample(torch.tensor([-1e8, -50.0])).tolist() == [0, 1]
