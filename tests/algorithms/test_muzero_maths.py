"""MuZero's equations: numbers made by hand, and identities."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from rl_training.algorithms.gumbel_muzero import improved_policy_loss, mixed_prior
from rl_training.algorithms.muzero import (
    decode,
    policy_loss,
    scale_board,
    scale_gradient,
    scale_latent,
    step_weights,
    two_hot_loss,
    unrolled_loss,
    visit_policy,
)
from rl_training.algorithms.value_transform import compress, expand
from rl_training.policies.search import Plan, SearchPolicy, check_search_settings


def test_the_transform_by_hand() -> None:
    """h(3) = √4 - 1 + 0.003 = 1.003; h(-8) = -(3 - 1) - 0.008 = -2.008."""
    torch.testing.assert_close(compress(torch.tensor([3.0, -8.0, 0.0])), torch.tensor([1.003, -2.008, 0.0]))
    torch.testing.assert_close(expand(torch.tensor([1.003, -2.008, 0.0])), torch.tensor([3.0, -8.0, 0.0]))


def test_the_inverse_is_one() -> None:
    x = torch.cat([torch.logspace(-3, 5, 200), -torch.logspace(-3, 5, 200)])
    torch.testing.assert_close(expand(compress(x)), x, rtol=2e-5, atol=2e-6)


def test_two_hot_by_hand() -> None:
    """h(3) = 1.003 lies between the atoms 1 and 2, 0.003 of it with the 2."""
    logits = torch.randn(5)
    log_p = logits.log_softmax(-1)
    expected = -(0.997 * log_p[3] + 0.003 * log_p[4])  # atoms -2 … 2
    torch.testing.assert_close(two_hot_loss(logits, torch.tensor(3.0)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("target", "atom"), [(1e6, 4), (-1e6, 0)])
def test_what_lies_beyond_the_support_goes_to_its_end(target: float, atom: int) -> None:
    logits = torch.randn(5)
    torch.testing.assert_close(two_hot_loss(logits, torch.tensor(target)), -logits.log_softmax(-1)[atom])


def test_without_the_transform_a_win_is_the_topmost_atom() -> None:
    logits, targets = torch.randn(3, 3), torch.tensor([-1.0, 0.0, 1.0])
    loss = two_hot_loss(logits, targets, compressed=False)
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(logits, torch.arange(3), reduction="none"))
    assert targets.tolist() == [-1, 0, 1]
    assert decode(50 * torch.eye(3), torch.tensor([-1.0, 0, 1]), compressed=False).tolist() == [-1, 0, 1]


def test_the_minimum_of_the_two_hot_loss_decodes_to_the_target() -> None:
    target = torch.tensor([[0.0, 1.0, -1.0], [0.3, 57.0, -259.5]])
    logits = torch.zeros(2, 3, 41, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(400):
        optimizer.zero_grad()
        two_hot_loss(logits, target).sum().backward()
        optimizer.step()
    decoded = decode(logits.detach(), torch.arange(-20.0, 21.0))
    torch.testing.assert_close(decoded, target, rtol=2e-2, atol=2e-2)


def test_the_two_hot_loss_is_the_cross_entropy_with_a_dense_target() -> None:
    logits, target = torch.randn(50, 21), torch.randn(50) * 60
    y = compress(target).clamp(-10, 10) + 10
    dense = torch.clamp(1 - (torch.arange(21.0) - y.unsqueeze(-1)).abs(), min=0)
    torch.testing.assert_close(dense.sum(-1), torch.ones(50))
    torch.testing.assert_close(two_hot_loss(logits, target), -(dense * logits.log_softmax(-1)).sum(-1))


def test_policy_losses_have_the_same_gradient_and_differ_by_the_entropy() -> None:
    logits = torch.randn(6, 4, requires_grad=True)
    target = torch.rand(6, 4)
    target[0, :2] = 0.0  # a forbidden or unvisited action
    target /= target.sum(-1, keepdim=True)
    cross, divergence = policy_loss(logits, target), improved_policy_loss(logits, target)
    entropy = -(target * target.clamp(min=1e-30).log()).sum(-1)
    torch.testing.assert_close(cross - divergence, entropy)
    one = torch.autograd.grad(cross.sum(), logits)[0]
    other = torch.autograd.grad(divergence.sum(), logits)[0]
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, logits.detach().softmax(-1) - target)
    same = improved_policy_loss(target[1:].log(), target[1:])
    torch.testing.assert_close(same, torch.zeros(5), atol=1e-6, rtol=0)


def test_half_of_a_gradient() -> None:
    x = torch.randn(3, requires_grad=True)
    halved = scale_gradient(x, 0.5)
    torch.testing.assert_close(halved, x)
    (halved * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.5, 1.0, 1.5]))


def test_latents_fill_the_unit_interval() -> None:
    scaled = scale_latent(torch.tensor([[2.0, 4.0, 3.0], [-1.0, -1.0, -1.0]]))
    torch.testing.assert_close(scaled, torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]), atol=1e-4, rtol=0)
    nearly_flat = scale_latent(torch.tensor([[0.0, 1e-5]]))
    torch.testing.assert_close(nearly_flat, torch.tensor([[0.0, 0.5]]))
    picture = scale_latent(torch.randn(2, 3, 4, 4))
    assert picture.shape == (2, 3, 4, 4)
    torch.testing.assert_close(picture.flatten(1).amax(1), torch.ones(2), atol=1e-4, rtol=0)


def test_states_of_boards_have_a_mean_square_of_1() -> None:
    """[3, 4, 0, 0] has a mean square of 25 / 4."""
    states = torch.tensor([[[3.0, 4], [0, 0]], [[0, 0], [0, 0]]])
    torch.testing.assert_close(
        scale_board(states), torch.tensor([[[1.2, 1.6], [0, 0]], [[0, 0], [0, 0]]]), atol=1e-4, rtol=0
    )


def test_the_unrolled_loss_by_hand() -> None:
    """K = 2, two rows of weights 1 and 0.5: (1·(1 + 2/2 + 3/2) + 0.5·(4 + 5/2)) / 2, the last of row 2 unknown."""
    losses = torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    known = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    assert step_weights(2).flatten().tolist() == [1.0, 0.5, 0.5]
    total = unrolled_loss(losses, known, torch.tensor([1.0, 0.5]))
    assert total.item() == pytest.approx((3.5 + 0.5 * 6.5) / 2)


def test_visits_and_temperature_by_hand() -> None:
    counts = torch.tensor([[1.0, 3.0, 0.0], [400.0, 200.0, 200.0]])
    torch.testing.assert_close(visit_policy(counts, 1.0)[0], torch.tensor([0.25, 0.75, 0.0]))
    torch.testing.assert_close(visit_policy(counts, 0.5)[0], torch.tensor([0.1, 0.9, 0.0]))
    torch.testing.assert_close(visit_policy(counts, 0.0), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    cold = visit_policy(counts, 0.001)
    assert torch.isfinite(cold).all() and cold[1, 0] > 0.999
    hot = visit_policy(counts, 1e6)
    assert hot[0, 2] == 0 and hot[0, 0].item() == pytest.approx(0.5, abs=1e-4)


def test_noise_in_the_prior_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])  # 0.75, 0.25
    noise = torch.tensor([[0.0, 1.0]])
    mixed = F.softmax(mixed_prior(logits, noise, 0.2), -1)
    torch.testing.assert_close(mixed, torch.tensor([[0.6, 0.4]]))
    masked = (
        torch.tensor([[0.0, 0.0, 5.0]]),
        torch.tensor([[1.0, 0.0, 0.0]]),
        0.25,
        torch.tensor([[False, False, True]]),
    )
    torch.testing.assert_close(F.softmax(mixed_prior(*masked), -1), torch.tensor([[0.625, 0.375, 0.0]]))
    assert mixed_prior(*masked[:2], 1.0).isfinite().all()
    assert mixed_prior(logits, noise, 0.0) is logits


SETTINGS = dict(num_simulations=8, temperature=0.5, root_exploration_fraction=0.25, gamma=0.9)


def test_a_saved_search_is_no_longer_than_the_config_says() -> None:
    settings = dict(SETTINGS)
    check_search_settings(settings, SETTINGS, 8)
    assert settings == SETTINGS
    check_search_settings(settings, SETTINGS, 5)
    assert settings == SETTINGS | dict(num_simulations=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(more=1), "not those of a search"),
        (dict(gamma=float("nan")), "not those of a search"),
        (dict(num_simulations=0), "no search"),
        (dict(temperature=-0.1), "no search"),
        (dict(root_exploration_fraction=1.01), "no share of noise"),
        (dict(root_exploration_fraction=-0.01), "no share of noise"),
    ],
)
def test_settings_of_no_search_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_search_settings(SETTINGS | changes, SETTINGS, 8)
    least = dict(num_simulations=1, temperature=0.0, root_exploration_fraction=1.0)
    check_search_settings(SETTINGS | least, SETTINGS, 8)
    check_search_settings(SETTINGS | dict(root_exploration_fraction=0.0), SETTINGS, 8)


def test_constants_of_searches_that_an_older_run_did_not_save_are_those_of_its_config() -> None:
    first = SETTINGS | dict(c_visit=50.0, max_considered_actions=4)
    settings = SETTINGS | dict(gamma=0.8)
    check_search_settings(settings, first, 8)
    assert settings == first | dict(gamma=0.8)
    for wrong in (dict(c_visit=-1.0), dict(max_considered_actions=0), dict(pb_c_init=1.25)):
        with pytest.raises(ValueError, match="settings"):
            check_search_settings(settings | wrong, first, 8)


@pytest.mark.parametrize("explore", [False, True])
def test_evaluation_searches_without_noise_and_at_temperature_0(explore: bool) -> None:
    asked: dict[str, Any] = {}
    policy: Any = SimpleNamespace(
        settings=dict(SETTINGS), plan=lambda obs, **how: asked.update(how) or Plan(*"abc")
    )  # type: ignore[arg-type]
    assert SearchPolicy.act(policy, None, (), explore) == ({"action": "a"}, ())
    assert asked.pop("repeats") is not explore
    assert asked == SETTINGS | ({} if explore else dict(temperature=0.0, root_exploration_fraction=0.0))
