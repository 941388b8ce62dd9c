"""Behavioural cloning's equations against numbers worked out by hand, one iteration term by term, and its epochs."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from updates import ByHand, actions_of, knobs_unlike, perturb, warmed

from rl_training.algorithms.bc import BC_SLOPES, bc_loss
from rl_training.data.imitation import Epochs


def test_the_loss_is_the_experts_surprise_less_the_bonus() -> None:
    log_prob, entropy = torch.tensor([-1.0, -3.0]), torch.tensor([0.5, 1.5])
    loss, numbers = bc_loss(log_prob, entropy, ent_coef=0.1)
    assert loss.item() == pytest.approx(2.0 - 0.1 * 1.0)
    assert (numbers["cloning_loss"].item(), numbers["entropy"].item()) == (2.0, 1.0)


def test_the_slopes_are_those_of_the_loss() -> None:
    said = torch.randn(5, 3, requires_grad=True)
    log_prob, entropy, _ = said.unbind(1)
    loss, numbers = bc_loss(log_prob, entropy, ent_coef=0.3)
    (theirs,) = torch.autograd.grad(loss, said)
    ours, sums, rows = np.zeros((5, 3), np.float32), np.zeros(3), np.zeros((5, 0), np.float32)
    BC_SLOPES.function(said.detach().numpy(), rows, 1 / 5, np.array([0.3]), ours, sums)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
    expected = [loss.item(), *(numbers[name].item() for name in BC_SLOPES.numbers)]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_an_iteration(env_id: str, compiled: bool) -> None:
    discrete = env_id == "CartPole-v1"
    trainer = warmed(
        "bc",
        2,
        env_id=env_id,
        total_timesteps=10_000,
        demonstrations=f"gail/{env_id.partition('-')[0].lower()}_expert.npz",
        batch_size=50,
        num_minibatches=1,
        hidden_sizes=[4],
        max_grad_norm=1.0,
        normalize_observations=True,
        compiled_updates=compiled,
    )
    assert trainer.update.path == ("compiled" if compiled else "torch")
    perturb(trainer.agent.network)
    network, pairs = copy.deepcopy(trainer.agent.network), trainer.expert.pairs
    hand, rows = ByHand(trainer.optimizer, network), copy.deepcopy(trainer.epochs).take(50)
    metrics = trainer.iterate(
        knobs_unlike(trainer.config, learning_rate=0.02, ent_coef=0.3, max_grad_norm=0.4)
    )
    mean, std = pairs["obs"].mean(0), pairs["obs"].std(0)
    inputs = torch.from_numpy(((pairs["obs"][rows] - mean) / std).astype(np.float32))
    actions = actions_of(network.policy(inputs), discrete)
    log_prob = actions.log_prob(torch.as_tensor(pairs["action"][rows]))
    hand.adam(-log_prob.mean() - 0.3 * actions.entropy().mean(), 0.02, 0.4)
    hand.assert_same(0.02)
    assert metrics.steps == 50
    assert metrics.means()["cloning_loss"] == pytest.approx(-log_prob.mean().item(), rel=1e-3)


def test_every_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    epochs = Epochs(10, seed=3)
    rows = np.concatenate([epochs.take(number) for number in (4, 13, 3)])  # two epochs, cut anywhere
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert list(rows[:10]) != list(rows[10:])
    assert list(Epochs(10, seed=4).take(10)) != list(rows[:10])


def test_epochs_go_on_where_they_were_saved() -> None:
    one, other = Epochs(7, seed=1), Epochs(7, seed=1)
    one.take(12)
    other.load_state_dict(one.state_dict())
    assert one.state_dict() == {"taken": 12}
    assert list(one.take(9)) == list(other.take(9))


def test_a_clone_of_a_coin_is_the_coin() -> None:
    """The best that can be done with observations that say nothing is the expert's own frequency."""
    logits = torch.zeros(2, requires_grad=True)
    chosen = torch.tensor([0, 1, 1, 1])
    for _ in range(500):
        loss, _ = bc_loss(logits.log_softmax(0)[chosen], torch.zeros(4), ent_coef=0.0)
        (slope,) = torch.autograd.grad(loss, logits)
        logits = (logits - slope).detach().requires_grad_()
    assert logits.softmax(0)[1].item() == pytest.approx(0.75, abs=1e-3)
    assert loss.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=1e-4)
