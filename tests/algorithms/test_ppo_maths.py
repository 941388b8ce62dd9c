"""PPO's equations against numbers made by hand, and against what they must be equal to."""

import math

import pytest
import torch

from rl_training.algorithms.ppo import clipped_surrogate, normalize_advantage, ppo_loss, value_loss
from rl_training.algorithms.returns import explained_variance, gae


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def flags(*values):
    return column(*values, dtype=torch.bool)


def test_gae_by_hand():
    # γ = 0.5, λ = 0.5, so the trace decays by 0.25 a step.
    # δ2 = 4 + 0.5·8 - 2 = 6; δ1 = 2 + 0.5·2 - 1 = 2; δ0 = 1 + 0.5·1 - 0.5 = 1
    # A2 = 6; A1 = 2 + 0.25·6 = 3.5; A0 = 1 + 0.25·3.5 = 1.875
    out = gae(
        column(1, 2, 4),
        column(0.5, 1, 2),
        column(1, 2, 8),
        flags(0, 0, 0),
        flags(0, 0, 0),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert out["advantage"].squeeze(1).tolist() == [1.875, 3.5, 6.0]
    assert out["return"].squeeze(1).tolist() == [2.375, 4.5, 8.0]


def test_termination_drops_the_bootstrap_and_truncation_keeps_it_and_both_cut_the_trace():
    reward, value, next_value = column(1, 1), column(0, 0), column(10, 100)
    args = dict(gamma=0.5, gae_lambda=1.0)
    ended = gae(reward, value, next_value, flags(1, 0), flags(0, 0), **args)["advantage"]
    cut = gae(reward, value, next_value, flags(0, 0), flags(1, 0), **args)["advantage"]
    going = gae(reward, value, next_value, flags(0, 0), flags(0, 0), **args)["advantage"]
    assert ended[0].item() == 1.0  # r
    assert cut[0].item() == 1.0 + 0.5 * 10  # r + γ V(final)
    assert going[0].item() == 1.0 + 0.5 * 10 + 0.5 * (1 + 0.5 * 100)
    # A step both terminated and truncated has ended: no bootstrap.
    both = gae(reward, value, next_value, flags(1, 0), flags(1, 0), **args)["advantage"]
    assert both[0].item() == 1.0


def test_gae_with_lambda_1_is_return_minus_value_and_with_lambda_0_the_td_error():
    torch.manual_seed(0)
    steps, lanes, gamma = 20, 3, 0.9
    reward, value = torch.randn(steps, lanes), torch.randn(steps, lanes)
    terminated = torch.rand(steps, lanes) < 0.1
    truncated = torch.rand(steps, lanes) < 0.1
    next_value = torch.randn(steps, lanes)
    done = terminated | truncated
    next_value[:-1] = torch.where(done[:-1], next_value[:-1], value[1:])
    discounted = torch.zeros(steps, lanes)
    for t in reversed(range(steps)):
        bootstrap = torch.where(done[t] | (t == steps - 1), next_value[t], discounted[min(t + 1, steps - 1)])
        discounted[t] = reward[t] + gamma * torch.where(terminated[t], 0.0, bootstrap)
    monte_carlo = gae(reward, value, next_value, terminated, truncated, gamma, 1.0)["advantage"]
    torch.testing.assert_close(monte_carlo, discounted - value)
    td = gae(reward, value, next_value, terminated, truncated, gamma, 0.0)["advantage"]
    torch.testing.assert_close(td, reward + gamma * next_value * ~terminated - value)


def test_an_endless_reward_of_one_is_worth_its_geometric_sum_only_if_truncation_bootstraps():
    value = torch.full((50, 1), 1 / (1 - 0.9))
    truncated = torch.arange(50).unsqueeze(1) % 10 == 9
    never = torch.zeros(50, 1, dtype=torch.bool)
    right = gae(torch.ones(50, 1), value, value, never, truncated, 0.9, 0.95)
    torch.testing.assert_close(right["return"], value)
    wrong = gae(torch.ones(50, 1), value, value, truncated, never, 0.9, 0.95)
    assert (wrong["return"] < value - 0.5).any()


def test_clipped_surrogate_by_hand():
    # ρ = 1.5 with A = 2 is clipped to 1.2·2; with A = -2 the unclipped -3 is the smaller; ρ = 0.5, A = 2: 1;
    # A = -2: clipped to 0.8·-2 = -1.6.
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0])
    expected = (2.4 - 3.0 + 1.0 - 1.6) / 4
    assert clipped_surrogate(ratio, advantage, 0.2).item() == pytest.approx(expected)


def test_value_loss_by_hand():
    value, old, target = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 2.0]), torch.tensor([2.0, 2.0])
    assert value_loss(value, old, target, None).item() == pytest.approx(0.5 * (1 + 1) / 2)
    # Clipped at 0.5: V becomes 0.5 and 2.5, with errors 2.25 and 0.25; the larger of each pair counts.
    assert value_loss(value, old, target, 0.5).item() == pytest.approx(0.5 * (2.25 + 1) / 2)


def test_ppo_at_ratio_one_is_the_policy_gradient():
    torch.manual_seed(0)
    logits = torch.randn(6, 3, requires_grad=True)
    action = torch.randint(3, (6, 1))
    advantage = torch.randn(6)
    log_prob = logits.log_softmax(-1).gather(1, action).squeeze(1)
    old = {
        "log_prob": log_prob.detach(),
        "advantage": advantage,
        "value": torch.zeros(6),
        "return": torch.zeros(6),
    }
    loss, parts = ppo_loss(
        log_prob, torch.zeros(6), torch.zeros(6), old, clip_coef=0.2, ent_coef=0.0, vf_coef=0.0
    )
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (reinforce,) = torch.autograd.grad(-(log_prob * advantage).mean(), logits)
    torch.testing.assert_close(ours, reinforce)
    assert parts["approx_kl"].item() == 0 and parts["clip_fraction"].item() == 0


def test_ppo_loss_adds_its_parts_with_their_weights():
    old = {
        "log_prob": torch.log(torch.tensor([0.5, 0.5])),
        "advantage": torch.tensor([1.0, 1.0]),
        "value": torch.tensor([0.0, 0.0]),
        "return": torch.tensor([2.0, 2.0]),
    }
    log_prob = torch.log(torch.tensor([0.75, 0.55]))  # ratios 1.5 and 1.1
    loss, parts = ppo_loss(
        log_prob,
        torch.tensor([0.3, 0.5]),
        torch.tensor([1.0, 1.0]),
        old,
        clip_coef=0.2,
        ent_coef=0.1,
        vf_coef=0.5,
    )
    assert parts["policy_loss"].item() == pytest.approx(-(1.2 + 1.1) / 2)
    assert parts["value_loss"].item() == pytest.approx(0.5)
    assert parts["entropy"].item() == pytest.approx(0.4)
    assert parts["clip_fraction"].item() == 0.5
    kl = ((1.5 - 1 - math.log(1.5)) + (1.1 - 1 - math.log(1.1))) / 2
    assert parts["approx_kl"].item() == pytest.approx(kl, rel=1e-4)
    assert loss.item() == pytest.approx(-1.15 + 0.5 * 0.5 - 0.1 * 0.4)


def test_advantages_are_normalised_per_minibatch_and_a_single_one_stays():
    out = normalize_advantage(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(out, torch.tensor([-1.0, 0.0, 1.0]))
    assert normalize_advantage(torch.tensor([7.0])).tolist() == [7.0]
    assert normalize_advantage(torch.tensor([1.0, 3.0])).tolist() == pytest.approx(
        [-0.70711, 0.70711], abs=1e-5
    )
    # Equal ones have no spread, and a spread of √2 · 10⁻⁸ counts as one of 2.414 · 10⁻⁸.
    assert normalize_advantage(torch.tensor([3.0, 3.0, 3.0])).tolist() == [0.0, 0.0, 0.0]
    tiny = normalize_advantage(torch.tensor([1e-8, -1e-8]))
    assert tiny.tolist() == pytest.approx([0.41421, -0.41421], abs=1e-4)


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1
    assert explained_variance(torch.full((3,), 2.0), target) == 0
    assert explained_variance(target, torch.ones(3)) == 0  # nothing to explain
