"""The on-policy family on environments whose right answers are known."""

import numpy as np
import pytest
import torch
from runs import LOOKS, holds

from rl_training import load_config
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.ppo_trainer import PPOConfig, PPOTrainer
from rl_training.state.seeding import fold, seed_everything

# What each algorithm needs more or other than the settings below, and how many times their iterations.
ALGORITHMS = {
    "ppo": (1, {}),
    "trpo": (0.5, dict(num_envs=16, target_kl=0.05, cg_damping=1e-3, num_minibatches=4)),
    "recurrent_ppo": (0.8, dict(num_minibatches=2, recurrent_size=16, learning_rate=6e-3, shared_trunk=True)),
    "ppg": (
        1,
        dict(policy_iterations=8, policy_epochs=4, value_epochs=4, num_minibatches=4, auxiliary_epochs=2),
    ),
    "impala": (
        3,
        dict(num_actors=1, num_steps=4, fleet="inline", optimizer="adam", learning_rate=1e-2, ent_coef=0.0),
    ),
    "appo": (0.5, dict(num_actors=1, fleet="inline", learning_rate=6e-3)),
    "a2c": (10, dict(num_steps=4, learning_rate=3e-2)),
}


@pytest.fixture(params=ALGORITHMS)
def train_until(request):
    """A function that trains one algorithm on a probe until it knows the answer."""

    def train(env_id, learned, iterations=40, looks=LOOKS, **changes):
        """Train until `learned(trainer)` holds twice in a row, with iterations in between, or to the end."""
        times, own = ALGORITHMS[request.param]
        settings = dict(
            num_envs=8, num_steps=16, learning_rate=3e-3, hidden_sizes=[32], gamma=0.9, total_timesteps=10**6
        )
        names = dict(algo=request.param, env_id=f"probe/{env_id}-v0")
        config = load_config(names | settings | own | changes)
        seed_everything(1)
        trainer, knobs = trainer_class(config.algo)(config), Controls.of(config)
        most, in_a_row = int(times * iterations), 0
        for i in range(most):
            seed_everything(fold(1, i))
            trainer.iterate(knobs.at(i * config.steps_per_iteration))
            if (i + 1) % max(1, most // looks) == 0:
                in_a_row = in_a_row + 1 if holds(learned, trainer) else 0
            if in_a_row == 2:
                break
        learned(trainer)

    return train


def values(trainer, *observations):
    rows = np.array(observations, np.float32).reshape(len(observations), -1)
    return trainer.agent.value(rows, trainer.agent.initial(len(rows)))


def mean_return(trainer, episodes, **options):
    return evaluate(trainer.agent, trainer.config, episodes=episodes, seed=5, **options)["mean_return"]


# Values are looked at in the end only: one that grows too far passes the right one on its way.


def test_a_constant_reward_is_its_own_value(train_until):
    def learned(trainer):
        np.testing.assert_allclose(values(trainer, 0.0), [1.0], atol=0.05)

    train_until("ConstantReward", learned, looks=1)


def test_the_value_follows_the_observation(train_until):
    def learned(trainer):
        np.testing.assert_allclose(values(trainer, -1.0, 1.0), [-1, 1], atol=0.1)

    train_until("RewardByObservation", learned, looks=1)


def test_a_delayed_reward_is_discounted(train_until):
    first, second = np.array([[[0.0]], [[1.0]]], np.float32)

    def learned(trainer):
        agent = trainer.agent
        carry = agent.initial(1)
        np.testing.assert_allclose(agent.value(first, carry), [0.9], atol=0.1)
        _, carry = agent.act(first, carry, explore=False)
        np.testing.assert_allclose(agent.value(second, carry), [1.0], atol=0.1)

    train_until("DelayedReward", learned, looks=1)


@pytest.mark.parametrize(
    ("env_id", "best"), [("RewardByAction", 1.0), ("RewardByBoth", 1.0), ("TwoChoices", 2.0), ("Coins", 3.0)]
)
def test_the_best_action_is_found(env_id, best, train_until):
    def learned(trainer):
        assert mean_return(trainer, 30) == best
        assert mean_return(trainer, 200, sample=True) > 0.9 * best

    train_until(env_id, learned)


def test_a_continuous_action_reaches_its_target_inside_asymmetric_bounds(train_until):
    def learned(trainer):
        assert mean_return(trainer, 10) > -0.02

    train_until("Target", learned, iterations=120)


def test_a_picture_in_a_dict_is_seen(train_until):
    def learned(trainer):
        assert mean_return(trainer, 50) > 0.95

    train_until("DictAndPicture", learned, iterations=25, normalize_observations=True)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_ratio_is_one_before_the_first_step(env_id):
    """Acting and learning must see the same observations through the same network, or the ratio leaves 1."""
    config = PPOConfig(
        env_id=env_id, normalize_observations=True, normalize_rewards=True, total_timesteps=10**6
    )
    trainer = PPOTrainer(config)
    knobs = Controls.of(config)
    for i in range(3):  # the statistics have moved by then
        trainer.iterate(knobs.at(512 * i))
    rollout = trainer.collector.collect(trainer.agent, 64)
    with torch.no_grad():
        inputs = trainer.agent.inputs(rollout["obs"].flatten(0, 1))
        log_prob, _, value = trainer.agent.evaluate(inputs, rollout["action"].flatten(0, 1))
    assert ((log_prob - rollout["log_prob"].flatten()).exp() - 1).abs().max() < 1e-5
    torch.testing.assert_close(value, rollout["value"].flatten(), atol=1e-5, rtol=1e-5)
