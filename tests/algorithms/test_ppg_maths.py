"""PPG's loss by hand, its network, and what each phase may and may not move."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.distributions import Categorical
from rl_training.algorithms.ppg import joint_loss
from rl_training.networks.actor_critic import PhasicActorCritic
from rl_training.runtime.controls import Controls
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.optim import Adam
from rl_training.runtime.ppg_trainer import PPGConfig, PPGTrainer
from rl_training.state.seeding import seed_everything


def test_the_joint_loss_by_hand():
    loss, parts = joint_loss(
        torch.tensor([1.0, 2.0]), torch.tensor([2.0, 5.0]), torch.tensor([0.1, 0.3]), beta_clone=2.0
    )
    assert parts["auxiliary_value_loss"].item() == pytest.approx(0.5 * (1 + 9) / 2)
    assert parts["clone_kl"].item() == pytest.approx(0.2)
    assert loss.item() == pytest.approx(2.5 + 2 * 0.2)


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_values_reach_the_trunk_through_the_auxiliary_head_only(shared_trunk):
    network = PhasicActorCritic(
        gym.spaces.Box(-1, 1, (3,), np.float32),
        Categorical(2),
        hidden_sizes=[8],
        activation="tanh",
        shared_trunk=shared_trunk,
        log_std_init=0.0,
    )
    trunk = list(network.actor_encoder.parameters())
    obs = torch.randn(5, 3)
    parameters, value = network(obs)
    again, auxiliary_value, same = network.auxiliary(obs)
    assert (
        torch.equal(parameters, again) and torch.equal(value, same) and torch.equal(value, network.value(obs))
    )
    assert torch.equal(parameters, network.policy(obs))
    for output in (value, same, network.value(obs)):
        assert all(
            slope is None
            for slope in torch.autograd.grad(output.sum(), trunk, allow_unused=True, retain_graph=True)
        )
    assert all(slope.abs().sum() > 0 for slope in torch.autograd.grad(auxiliary_value.sum(), trunk))


def make_trainer(**changes):
    settings = dict(env_id="CartPole-v1", num_envs=4, num_steps=16, hidden_sizes=[16], total_timesteps=10**6)
    settings |= dict(policy_iterations=3, num_minibatches=2, auxiliary_minibatches=3, learning_rate=3e-3)
    seed_everything(1)
    return PPGTrainer(PPGConfig(**settings | changes))


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_the_auxiliary_phase_follows_every_n_pi_th_iteration_and_empties_the_buffer(shared_trunk):
    trainer = make_trainer(shared_trunk=shared_trunk)
    knobs = Controls.of(trainer.config)
    sizes, auxiliary = [], []
    for i in range(7):
        means = trainer.iterate(knobs.at(64 * i)).means()
        sizes.append(len(trainer.kept))
        auxiliary.append("clone_kl" in means)
    assert sizes == [1, 2, 0, 1, 2, 0, 1]
    assert auxiliary == [False, False, True, False, False, True, False]
    assert trainer.auxiliary_optimizer.count == 2 * 6 * 3  # phases, E_aux, minibatches
    assert trainer.policy_optimizer.count == 7 * 2
    assert trainer.critic_optimizer.count == 7 * 2 + 2 * 6 * 3


def test_the_kept_rollouts_are_copies():
    trainer = make_trainer()
    knobs = Controls.of(trainer.config)
    trainer.iterate(knobs.at(0))
    first = trainer.kept[0]["obs"].clone()
    trainer.iterate(knobs.at(64))
    assert torch.equal(trainer.kept[0]["obs"], first)
    assert not torch.equal(trainer.kept[1]["obs"], first)


def test_the_policy_phase_leaves_the_auxiliary_head_alone_and_the_critic_the_policy():
    trainer = make_trainer(policy_iterations=100)
    network = trainer.agent.network
    knobs = Controls.of(trainer.config)
    head = network.auxiliary_head.weight.clone()
    policy = trainer.policy_optimizer.parameters.clone()
    trainer.iterate(knobs.at(0))
    assert torch.equal(network.auxiliary_head.weight, head)
    assert not torch.equal(trainer.policy_optimizer.parameters, policy)


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_the_critics_steps_leave_the_policy_alone(shared_trunk):
    """Also where it reads the policy's trunk; each parameter belongs to one of the two."""
    trainer = make_trainer(shared_trunk=shared_trunk)
    knobs = Controls.of(trainer.config).at(0).after(0)
    rollout, metrics = trainer.collect()
    estimates = trainer.estimate_advantages(rollout, knobs, metrics)
    batch = trainer.flat_batch(rollout, estimates)
    policy = trainer.policy_optimizer.parameters.clone()
    critic = trainer.critic_optimizer.parameters.clone()
    for _ in range(3):
        update = trainer.value_fit()
        update.descend(update.whole(batch), knobs)
    assert torch.equal(trainer.policy_optimizer.parameters, policy)
    assert not torch.equal(trainer.critic_optimizer.parameters, critic)
    owned = len(policy) + len(critic)
    assert owned == sum(parameter.numel() for parameter in trainer.agent.network.parameters())


def with_kept_rollouts(**changes):
    """A trainer with three rollouts of a policy that is not near uniform, and its knobs."""
    trainer = make_trainer(**changes)
    with torch.no_grad():
        trainer.agent.network.actor_head.output.weight.mul_(100)
    now = Controls.of(trainer.config).at(0).after(0)
    for _ in range(3):
        rollout, metrics = trainer.collect()
        estimates = trainer.estimate_advantages(rollout, now, metrics)
        trainer.kept.append({"obs": rollout["obs"].clone(), "return": estimates["return"].clone()})
    return trainer, now


def phase(beta_clone, **changes):
    """An auxiliary phase; how far the policy went, and the distillation's loss before and after."""
    trainer, now = with_kept_rollouts(**changes)
    obs = torch.cat([part["obs"].flatten(0, 1) for part in trainer.kept])
    target = torch.cat([part["return"].flatten() for part in trainer.kept])
    network, family = trainer.agent.network, trainer.agent.family
    with torch.no_grad():
        old, before, _ = network.auxiliary(obs)
    now.beta_clone = beta_clone
    trainer.auxiliary_phase(now, Metrics(0, []))
    with torch.no_grad():
        new, after, _ = network.auxiliary(obs)
    return family.kl(old, new).mean().item(), *((v - target).square().mean().item() for v in (before, after))


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_the_auxiliary_phase_learns_values_and_the_clone_term_holds_the_policy(shared_trunk):
    settings = dict(shared_trunk=shared_trunk, auxiliary_epochs=30, learning_rate=1e-2, max_grad_norm=None)
    free, before, after = phase(0.0, **settings)
    held, _, after_held = phase(100.0, **settings)
    assert after < 0.5 * before and after_held < 0.5 * before
    assert held < 0.1 * free


def test_the_old_policy_is_the_one_before_the_phase():
    """Were it computed anew in each epoch, the clone term would stay at 0 from the first minibatch of each."""
    trainer, now = with_kept_rollouts(auxiliary_epochs=20, learning_rate=1e-2, beta_clone=0.0)
    metrics = Metrics(0, [])
    trainer.auxiliary_phase(now, metrics)
    divergence = [float(value) for value in metrics.values["clone_kl"]]
    assert divergence[0] == pytest.approx(0, abs=1e-7)
    assert min(divergence[30:]) > 1e-5


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rate", [None, 0.0, 1e-4])
def test_the_auxiliary_phase_has_a_learning_rate_of_its_own(rate, compiled):
    """The first step of an Adam is lr · sign(g), but for ε: the furthest that any parameter moves."""
    one_step = dict(auxiliary_epochs=1, auxiliary_minibatches=1, max_grad_norm=None)
    trainer, now = with_kept_rollouts(**one_step, auxiliary_learning_rate=rate, compiled_updates=compiled)
    optimizers = (trainer.policy_optimizer, trainer.critic_optimizer)
    before = [each.parameters.clone() for each in optimizers]
    trainer.auxiliary_phase(now, Metrics(0, []))
    for optimizer, old in zip(optimizers, before, strict=True):
        expected = 3e-3 if rate is None else rate
        assert (optimizer.parameters - old).abs().max().item() == pytest.approx(expected, rel=1e-2)
    assert now.learning_rate == 3e-3  # that of the policy phase


def test_two_adams_over_the_same_parameters_have_moments_of_their_own():
    layer = torch.nn.Linear(2, 2)
    one = Adam([layer])
    other = one.beside()
    one.step(layer(torch.ones(1, 2)).sum(), 0.1, None)
    assert one.count == 1 and other.count == 0 and other.mean.abs().sum() == 0
    before = layer.weight.clone()
    other.step(layer(torch.ones(1, 2)).sum(), 0.1, None)
    torch.testing.assert_close(layer.weight, before - 0.1)  # the first step of an Adam is lr · sign(g)
