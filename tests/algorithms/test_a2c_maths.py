"""A2C's loss and its optimizer against numbers made by hand, and A2C against PPO."""

import pytest
import torch
from torch import nn

from rl_training.algorithms.a2c import a2c_loss
from rl_training.runtime.a2c_trainer import A2CConfig, A2CTrainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.optim import Adam, RMSprop, TorchRMSprop
from rl_training.runtime.ppo_trainer import PPOConfig, PPOTrainer
from rl_training.state.seeding import seed_everything


def test_the_loss_by_hand():
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0])
    loss, parts = a2c_loss(
        log_prob,
        torch.tensor([0.5, 0.7]),
        torch.tensor([1.0, 2.0]),
        advantage,
        torch.tensor([2.0, 5.0]),
        ent_coef=0.1,
        vf_coef=0.5,
    )
    assert parts["policy_loss"].item() == pytest.approx((1 * 3 - 2 * 1) / 2)
    assert parts["value_loss"].item() == pytest.approx(0.5 * (1 + 9) / 2)
    assert parts["entropy"].item() == pytest.approx(0.6)
    assert loss.item() == pytest.approx(0.5 + 0.5 * 2.5 - 0.1 * 0.6)


def test_rmsprop_has_epsilon_inside_the_root_and_starts_at_one():
    """v₁ = 0.9 · 1 + 0.1 g², v₂ = 0.9 v₁ + 0.1 g², each step lr · g / √(v + ε)."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    optimizer = RMSprop([layer], decay=0.9, epsilon=0.5)
    expected, square, slope = 2.0, 1.0, 3.0
    for _ in range(3):
        optimizer.step(slope * layer(torch.ones(1, 1)).sum(), 0.1, None)
        square = 0.9 * square + 0.1 * slope**2
        expected -= 0.1 * slope / (square + 0.5) ** 0.5
        assert layer.weight.item() == pytest.approx(expected, rel=1e-6)


def test_the_first_step_for_a_small_gradient_is_small():
    """7e-4 · 1e-4 / √(0.99 + 1e-5) = 7e-8, where torch's RMSprop would move by 3.5e-3."""
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(layer.weight)
    RMSprop([layer]).step(1e-4 * layer(torch.ones(1, 1, dtype=torch.float64)).sum(), 7e-4, None)
    assert -layer.weight.item() == pytest.approx(7e-8, rel=0.01)


def test_torch_rmsprop_is_torchs():
    """Step by step, with gradients from 1e-6 to 10: v from 0, ε outside the root."""
    torch.manual_seed(1)
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    optimizer, reference = TorchRMSprop([ours]), torch.optim.RMSprop(theirs.parameters(), 0.01, 0.99, 1e-5)
    for power in range(-6, 2):
        inputs = torch.randn(5, 3, dtype=torch.float64)
        optimizer.step(10.0**power * ours(inputs).square().sum(), 0.01, None)
        reference.zero_grad()
        (10.0**power * theirs(inputs).square().sum()).backward()
        reference.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "kind"), [("rmsprop", RMSprop), ("torch_rmsprop", TorchRMSprop), ("adam", Adam)]
)
def test_the_optimizer_is_the_one_of_the_config(name, kind):
    trainer = A2CTrainer(A2CConfig(env_id="CartPole-v1", optimizer=name, optimizer_epsilon=1e-3))
    assert type(trainer.optimizer) is kind
    assert trainer.optimizer.epsilon == 1e-3
    trainer.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a2c_is_ppo_with_one_epoch_one_minibatch_and_no_clipping_in_effect(env_id):
    """The ratio is 1 in the only pass, and the gradient of ρ A at ρ = 1 is that of A log π (Huang et al. 2022).

    Step by step: the same rollouts, the same metrics, the same weights, up to the order of sums.
    """
    shared = dict(env_id=env_id, num_envs=4, num_steps=5, gae_lambda=0.9, ent_coef=0.01, total_timesteps=2000)
    shared |= dict(learning_rate=7e-3, learning_rate_schedule="linear", hidden_sizes=[16], max_grad_norm=0.5)
    configs = (
        A2CConfig(**shared),
        PPOConfig(**shared, update_epochs=1, num_minibatches=1, normalize_advantages=False),
    )
    trainers = []
    for config, kind in zip(configs, (A2CTrainer, PPOTrainer), strict=True):
        seed_everything(1)
        trainers.append(kind(config))
    a2c, ppo = trainers
    ppo.optimizer = RMSprop([ppo.agent.network])
    start = a2c.optimizer.parameters.clone()
    for i in range(40):
        means = []
        for trainer in trainers:
            seed_everything(i)
            means.append(trainer.iterate(Controls.of(trainer.config).at(20 * i)).means())
        torch.testing.assert_close(a2c.optimizer.parameters, ppo.optimizer.parameters, rtol=1e-5, atol=1e-6)
        assert means[1]["approx_kl"] == pytest.approx(0, abs=1e-6)
        assert means[1]["clip_fraction"] == 0
        for name in ("value_loss", "entropy", "grad_norm"):
            assert means[0][name] == pytest.approx(means[1][name], rel=1e-3, abs=1e-5)
    assert (a2c.optimizer.parameters - start).abs().max() > 0.01
