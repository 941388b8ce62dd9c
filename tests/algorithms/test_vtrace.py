"""V-trace against the paper's sum, its special cases, and numbers made by hand."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.impala import impala_loss
from rl_training.algorithms.returns import gae
from rl_training.algorithms.vtrace import ratio_statistics, vtrace

T, B = 12, 5


def random_batch(seed, ends=0.2):
    rng = np.random.default_rng(seed)
    columns = [rng.normal(size=(T, B)).astype(np.float32) for _ in range(4)]
    terminated = rng.random((T, B)) < ends / 2
    truncated = ~terminated & (rng.random((T, B)) < ends / 2)
    log_ratio, reward, value, next_value = columns
    going = ~(terminated | truncated)[:-1]
    next_value[:-1][going] = value[1:][going]  # where the episode goes on, the next row is the next state
    return [torch.from_numpy(part) for part in (log_ratio, reward, value, next_value, terminated, truncated)]


def brute_force(log_ratio, reward, value, next_value, terminated, truncated, gamma, rho_bar, c_bar, decay):
    """v_s = V(x_s) + Σ_t γ^(t-s) (Π_{i<t} c_i) δ_t, term by term, up to the end of the episode."""
    ratio = log_ratio.double().exp()
    rho, c = ratio.clamp(max=rho_bar), decay * ratio.clamp(max=c_bar)
    target, advantage = torch.empty(T, B), torch.empty(T, B)
    for lane in range(B):
        for s in range(T):
            total, weight = 0.0, 1.0
            for t in range(s, T):
                ahead = 0.0 if terminated[t, lane] else gamma * float(next_value[t, lane])
                delta = float(rho[t, lane]) * (float(reward[t, lane]) + ahead - float(value[t, lane]))
                total += weight * delta
                weight *= gamma * float(c[t, lane])
                if terminated[t, lane] or truncated[t, lane]:
                    break
            target[s, lane] = float(value[s, lane]) + total
    for lane in range(B):
        for s in range(T):
            follows = s + 1 < T and not (terminated[s, lane] or truncated[s, lane])
            ahead = float(next_value[s, lane])
            if follows:
                ahead += decay * float(target[s + 1, lane] - value[s + 1, lane])
            ahead = 0.0 if terminated[s, lane] else gamma * ahead
            advantage[s, lane] = float(rho[s, lane]) * (
                float(reward[s, lane]) + ahead - float(value[s, lane])
            )
    return target, advantage


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rho_bar", "c_bar", "decay"), [(1.0, 1.0, 1.0), (2.0, 0.7, 1.0), (1.5, 1.2, 0.9)])
def test_the_recursion_is_the_sum(seed, rho_bar, c_bar, decay):
    batch = random_batch(seed)
    assert (batch[0] > 0).any() and (batch[0] < 0).any() and batch[4].any() and batch[5].any()
    found = vtrace(*batch, gamma=0.9, rho_bar=rho_bar, c_bar=c_bar, trace_decay=decay)
    target, advantage = brute_force(*batch, 0.9, rho_bar, c_bar, decay)
    torch.testing.assert_close(found["return"], target, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["advantage"], advantage, atol=1e-5, rtol=1e-5)


def n_step_return(reward, next_value, terminated, truncated, gamma):
    """R_t = r_t + γ R_{t+1}, from the value of where the last action led; nothing after an end."""
    out, following = torch.empty_like(reward), next_value[-1]
    for t in reversed(range(T)):
        following = torch.where(truncated[t], next_value[t], following)
        following = torch.where(terminated[t], 0.0, following)
        following = reward[t] + gamma * following
        out[t] = following
    return out


def test_on_policy_it_is_the_n_step_return():
    _, reward, value, next_value, terminated, truncated = random_batch(4)
    found = vtrace(
        torch.zeros(T, B),
        reward,
        value,
        next_value,
        terminated,
        truncated,
        gamma=0.95,
        rho_bar=1.0,
        c_bar=1.0,
    )
    expected = n_step_return(reward, next_value, terminated, truncated, 0.95)
    torch.testing.assert_close(found["return"], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["advantage"], expected - value, atol=1e-5, rtol=1e-5)


def test_on_policy_with_a_decay_it_is_gae():
    _, *rest = random_batch(5)
    estimate = vtrace(torch.zeros(T, B), *rest, gamma=0.95, rho_bar=1.0, c_bar=1.0, trace_decay=0.8)
    expected = gae(*rest, gamma=0.95, gae_lambda=0.8)
    for name in ("return", "advantage"):
        torch.testing.assert_close(estimate[name], expected[name], atol=1e-5, rtol=1e-5)


def test_the_policy_gradient_has_a_bound_of_its_own():
    """The targets keep rho_bar; an advantage is its bracket times min(policy_rho_bar, π / μ)."""
    batch = random_batch(6)
    settings = {"gamma": 0.9, "rho_bar": 1.0, "c_bar": 1.0}
    usual, wider = vtrace(*batch, **settings), vtrace(*batch, **settings, policy_rho_bar=3.0)
    assert torch.equal(usual["return"], wider["return"])
    ratio = batch[0].exp()
    assert (ratio > 3.0).any()
    weights = ratio.clamp(max=3.0) / ratio.clamp(max=1.0)
    torch.testing.assert_close(wider["advantage"], usual["advantage"] * weights, atol=1e-5, rtol=1e-5)


def test_numbers_made_by_hand():
    """Two steps, γ = ½, V = (1, 2), V after = 4, r = (1, 3); ratios 2 and ½, both bounds 1.

    δ₁ = ½ (3 + ½·4 - 2) = 1.5, v₁ = 3.5;  δ₀ = 1 (1 + ½·2 - 1) = 1, v₀ = 1 + 1 + ½·1·1.5 = 2.75
    A₁ = ½ (3 + ½·4 - 2) = 1.5;  A₀ = 1 + ½·3.5 - 1 = 1.75
    """
    column = lambda *numbers: torch.tensor(numbers)[:, None]  # noqa: E731
    never = column(False, False)
    found = vtrace(
        column(2.0, 0.5).log(),
        column(1.0, 3.0),
        column(1.0, 2.0),
        column(2.0, 4.0),
        never,
        never,
        gamma=0.5,
        rho_bar=1.0,
        c_bar=1.0,
    )
    assert found["return"].flatten().tolist() == [2.75, 3.5]
    assert found["advantage"].flatten().tolist() == [1.75, 1.5]


def test_rho_bar_of_zero_learns_nothing():
    batch = random_batch(6)
    found = vtrace(*batch, gamma=0.9, rho_bar=0.0, c_bar=1.0)
    assert torch.equal(found["return"], batch[2]) and not found["advantage"].any()


def test_ratio_statistics():
    found = ratio_statistics(torch.tensor([0.5, 1.0, 2.0, 4.5]).log(), 1.5)
    assert found["rho_mean"].item() == pytest.approx(2.0) and found["rho_clipped"].item() == 0.5


def test_the_loss_by_hand():
    log_prob, entropy, value = (
        torch.tensor(x, requires_grad=True) for x in ([-1.0, -2.0], [0.5, 0.7], [1.0, 3.0])
    )
    targets = {"advantage": torch.tensor([2.0, -1.0]), "return": torch.tensor([2.0, 1.0])}
    loss, parts = impala_loss(log_prob, entropy, value, targets, ent_coef=0.1, vf_coef=0.5)
    # policy -(-2 + 2)/2 = 0; value ½ (1 + 4)/2 = 1.25; entropy 0.6
    assert loss.item() == pytest.approx(0.0 + 0.5 * 1.25 - 0.1 * 0.6)
    assert {name: round(part.item(), 6) for name, part in parts.items()} == {
        "policy_loss": 0.0,
        "value_loss": 1.25,
        "entropy": 0.6,
    }
    loss.backward()
    assert log_prob.grad.tolist() == [-1.0, 0.5]
