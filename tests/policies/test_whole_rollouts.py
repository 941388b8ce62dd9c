"""Whole rollouts in compiled code: what the Python loop does, with chance of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training import load_config
from rl_training.algorithms.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
)
from rl_training.compiling import address
from rl_training.envs.compiled import CompiledEnvironments
from rl_training.envs.making import make_environments
from rl_training.kernels.families import (
    DRAW,
    draw_choices,
    draw_coins,
    drawing,
    family_table,
    likeliest_choices,
    likeliest_coins,
    mean_normals,
    mean_squashed,
    num_actions,
)
from rl_training.policies.in_lanes import WholeRollouts
from rl_training.registry import trainer_class
from rl_training.runtime.optim import RMSprop
from rl_training.state.seeding import seed_everything
from rl_training.trees import tree_leaves, tree_map

DRAWS = {Categorical: draw_choices, MultiCategorical: draw_choices, Bernoulli: draw_coins}
MODES = {
    MultiCategorical((2, 4, 3)): likeliest_choices,
    Bernoulli(3): likeliest_coins,
    Categorical(4): likeliest_choices,
    DiagonalGaussian(3): mean_normals,
    SquashedGaussian(3): mean_squashed,
}

STEPS = 60
CASES: dict[str, dict[str, Any]] = {
    "choices": dict(env_id="CartPole-v1", max_episode_steps=25),
    "normals, normalised": dict(env_id="Pendulum-v1", max_episode_steps=25, normalize_observations=True),
    "one-hot, one trunk": dict(env_id="FrozenLake-v1", shared_trunk=True, activation="relu"),
    "masked choices": dict(env_id="Taxi-v4", max_episode_steps=25),
    "two vectors": dict(algo="trpo", env_id="Pendulum-v1", max_episode_steps=25, normalize_observations=True),
    "an auxiliary head": dict(algo="ppg", env_id="CartPole-v1", max_episode_steps=25),
    "an auxiliary head, one trunk": dict(
        algo="ppg", env_id="Taxi-v4", max_episode_steps=25, shared_trunk=True
    ),
    "layer norm": dict(env_id="CartPole-v1", max_episode_steps=25, layer_norm=True),
    "more lanes than a block": dict(env_id="CartPole-v1", num_envs=150, max_episode_steps=25),
}


def trainer_of(algo: str = "ppo", **changes: Any) -> Any:
    settings = dict(algo=algo, vectorization="compiled", num_envs=5, num_steps=STEPS, hidden_sizes=[16, 8])
    seed_everything(7)
    trainer = trainer_class(algo)(load_config(settings | changes))
    # Orthogonal heads of gain 0.01 would make all actions equally likely, whatever the network says.
    with torch.no_grad():
        for parameter in trainer.agent.network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    if trainer.agent.normalizer is not None:
        trainer.agent.observe(trainer.collector.environments.obs[None] * 1.5 + 0.1)
    return trainer


def rollout_of(trainer: Any, steps: int = STEPS) -> Any:
    columns = trainer.collector.whole(steps)
    assert columns is not None
    return {name: tree_map(np.copy, column) for name, column in columns.items()}


def seen(obs: Any) -> list[bytes]:
    return [part.tobytes() for _, part in tree_leaves(obs, "obs")]


@pytest.mark.parametrize("case", CASES)
def test_its_columns_are_what_the_python_loop_gives_for_its_actions(case: str) -> None:
    trainer = trainer_of(**CASES[case])
    agent, rolled = trainer.agent, rollout_of(trainer)
    again = make_environments(trainer.config, trainer.config.num_envs, trainer.config.seed, "train")
    assert isinstance(again, CompiledEnvironments)
    for t in range(STEPS):
        assert seen(tree_map(lambda column, t=t: column[t], rolled["obs"])) == seen(again.obs)
        value = agent.value(again.obs, ())
        assert np.allclose(rolled["value"][t], value, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            inputs, action = agent.inputs(again.obs), torch.from_numpy(rolled["action"][t])
            log_prob = agent.evaluate(inputs, action)[0].numpy()
        assert np.allclose(rolled["log_prob"][t], log_prob, rtol=1e-4, atol=1e-5)
        step = again.step(rolled["action"][t])
        assert rolled["reward"][t].tobytes() == step.reward.astype(np.float32).tobytes()
        assert rolled["terminated"][t].tobytes() == step.terminated.tobytes()
        assert rolled["truncated"][t].tobytes() == step.truncated.tobytes()
        led_to = np.where(step.truncated, agent.value(step.next_obs, ()), agent.value(again.obs, ()))
        assert np.allclose(rolled["next_value"][t], led_to, rtol=1e-4, atol=1e-5)
    environments = trainer.collector.environments
    assert seen(environments.obs) == seen(again.obs)
    assert environments.take_finished() == again.take_finished() != []
    for mine, other in zip(environments.state, again.state, strict=True):
        assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_a_greedy_one_takes_the_policys_greedy_actions(case: str) -> None:
    trainer = trainer_of(**CASES[case])
    whole = trainer.agent.whole_rollouts(trainer.collector.environments, True)
    columns = whole(STEPS)
    for t in range(STEPS):
        obs = tree_map(lambda column, t=t: column[t], columns["obs"])
        greedy = trainer.agent.act(obs, (), explore=False)[0]["action"]
        np.testing.assert_allclose(columns["action"][t], greedy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", MODES)
def test_the_mode_of_every_family_is_taken(family: Any) -> None:
    torch.manual_seed(1)
    parameters = torch.randn(50, family.num_parameters)
    outputs = np.concatenate([parameters.numpy(), np.zeros((50, 1), np.float32)], 1)
    table, log_probs, chance = family_table(family), np.zeros(50, np.float32), np.array([5, 0], np.uint64)
    actions = np.zeros((50, num_actions(table)), np.float32)
    for (_, first, size, at, scale, *_), where in zip(table.tolist(), drawing(table, True), strict=True):
        assert where == address(MODES[family], DRAW)
        MODES[family](first, size, at, scale, outputs, actions, log_probs, chance)
    expected = family.mode(parameters).numpy().reshape(50, -1)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)


def test_choices_are_drawn_by_their_probabilities() -> None:
    trainer = trainer_of(env_id="Acrobot-v1", num_envs=4000)
    obs = trainer.collector.environments.obs
    with torch.no_grad():
        chances = torch.softmax(trainer.agent.network.policy(trainer.agent.inputs(obs)), -1).numpy()
    rolled = rollout_of(trainer, 1)
    taken = np.eye(3)[rolled["action"][0]]
    # The number of times each is taken, against its mean and its standard deviation.
    spread = np.sqrt((chances * (1 - chances)).sum(0))
    assert (np.abs((taken - chances).sum(0)) < 4 * spread).all() and (taken.sum(0) > 0).all()


def test_normals_are_drawn_with_their_mean_and_deviation() -> None:
    trainer = trainer_of(env_id="Pendulum-v1", num_envs=4000)
    obs = trainer.collector.environments.obs
    with torch.no_grad():
        mean, log_std = trainer.agent.network.policy(trainer.agent.inputs(obs)).chunk(2, -1)
    rolled = rollout_of(trainer, 1)
    noise = ((rolled["action"][0] - mean.numpy()) / log_std.exp().numpy()).ravel()
    assert abs(noise.mean()) < 4 / np.sqrt(4000)
    assert abs(noise.std() - 1) < 4 / np.sqrt(8000)
    assert abs((np.abs(noise) < 0.6745).mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("family", [MultiCategorical((2, 4, 3)), Bernoulli(3), Categorical(4)])
def test_actions_of_every_family_are_drawn_by_their_probabilities(family: Any) -> None:
    torch.manual_seed(1)
    parameters, rows = torch.randn(1, family.num_parameters), 4000
    outputs = np.concatenate([np.repeat(parameters.numpy(), rows, 0), np.zeros((rows, 1), np.float32)], 1)
    table, log_probs = family_table(family), np.zeros(rows, np.float32)
    actions, chance = np.zeros((rows, 3), np.float32), np.array([5, 0], np.uint64)
    for (_, first, size, at, scale, *_), where in zip(table.tolist(), drawing(table), strict=True):
        assert where == address(DRAWS[type(family)], DRAW)
        DRAWS[type(family)](first, size, at, scale, outputs, actions, log_probs, chance)
    drawn = torch.from_numpy(actions).long()
    drawn = drawn[:, 0] if isinstance(family, Categorical) else drawn
    expected = family.log_prob(parameters.expand(rows, -1), drawn)
    np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-4, atol=1e-5)
    # E[log π] is the negative entropy.
    entropy = float(family.log_prob_and_entropy(parameters, drawn[:1])[1])
    assert abs(log_probs.mean() + entropy) < 4 * log_probs.std() / np.sqrt(rows)


def test_an_action_that_a_mask_forbids_is_never_drawn() -> None:
    trainer = trainer_of(env_id="Taxi-v4", num_envs=50)
    rolled = rollout_of(trainer)
    allowed = np.take_along_axis(rolled["obs"]["action_mask"], rolled["action"][..., None], -1)
    assert allowed.all() and not rolled["obs"]["action_mask"].all()


def test_a_rollout_is_a_function_of_the_seed() -> None:
    def actions(seed: int) -> bytes:
        trainer = trainer_of(env_id="CartPole-v1")
        seed_everything(seed)
        return rollout_of(trainer)["action"].tobytes()

    assert actions(1) == actions(1) != actions(2)


def test_the_next_rollout_goes_on_where_the_last_one_ended() -> None:
    trainer = trainer_of(env_id="CartPole-v1")
    rollout_of(trainer)
    before = trainer.collector.environments.obs.copy()
    assert rollout_of(trainer, 7)["obs"][0].tobytes() == before.tobytes()


def test_weights_that_moved_act() -> None:
    trainer = trainer_of(env_id="CartPole-v1")
    first = rollout_of(trainer, 2)["value"]
    with torch.no_grad():
        trainer.agent.network.critic_head.bias += 100
    assert (rollout_of(trainer, 2)["value"] > first + 50).all()


def test_a_hook_sends_acting_through_the_modules() -> None:
    trainer = trainer_of(env_id="CartPole-v1")
    called: list[int] = []
    handle = trainer.agent.network.register_forward_hook(lambda *args: called.append(1))
    assert trainer.collector.whole(STEPS) is None
    trainer.collector.collect(trainer.agent, 3)
    assert len(called) >= 3
    handle.remove()
    assert trainer.collector.whole(STEPS) is not None


@pytest.mark.parametrize("name", ["act", "value"])
def test_a_method_that_is_put_on_an_instance_is_called(name: str) -> None:
    trainer, called = trainer_of(env_id="CartPole-v1"), []
    theirs = getattr(trainer.agent, name)
    setattr(trainer.agent, name, lambda *args, **named: called.append(1) or theirs(*args, **named))
    assert trainer.paths()["rollouts"] == trainer.paths()["evaluations"] == "python"
    trainer.collector.collect(trainer.agent, 3)
    assert called
    assert trainer.agent.whole_rollouts(trainer.collector.environments, greedy=True) is None
    delattr(trainer.agent, name)
    assert trainer.paths()["rollouts"] == "compiled"


@pytest.mark.parametrize(
    "changes",
    [dict(vectorization="sync"), dict(precision="bf16"), dict(algo="recurrent_ppo")],
)
def test_all_else_goes_through_the_python_loop(changes: dict[str, Any]) -> None:
    settings = dict(
        env_id="CartPole-v1", vectorization="compiled", num_envs=2, num_steps=4, num_minibatches=1
    )
    config = load_config(dict(algo="ppo") | settings | changes)
    trainer = trainer_class(config.algo)(config)
    whole: WholeRollouts | None = trainer.collector.whole
    assert whole is None or whole(4) is None
    rollout = trainer.collector.collect(trainer.agent, 4)
    assert rollout["next_value"].shape == (4, 2)


@pytest.mark.parametrize("algo", ["trpo", "ppg"])
def test_every_vector_is_read_anew(algo: str) -> None:
    """Also when the parameters have moved to another one."""
    trainer = trainer_of(algo, env_id="CartPole-v1")
    network = trainer.agent.network
    for move in (lambda: None, lambda: RMSprop([network.critic_encoder, network.critic_head])):
        move()
        for head in (network.actor_head.output, network.critic_head):
            with torch.no_grad():
                head.weight *= 1.5
            rolled = rollout_of(trainer, 1)
            obs, action = trainer.agent.inputs(rolled["obs"][0]), torch.from_numpy(rolled["action"][0])
            with torch.no_grad():
                log_prob, _, value = trainer.agent.evaluate(obs, action)
            np.testing.assert_allclose(rolled["log_prob"][0], log_prob, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(rolled["value"][0], value, rtol=1e-4, atol=1e-5)
