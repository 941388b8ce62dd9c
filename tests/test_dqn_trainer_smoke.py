"""DQN: its maths by hand, its switches, its schedules, and the probes it must solve."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import iterated

from rl_training import evaluate_checkpoint, load_config, load_policy
from rl_training.algorithms.dqn import dueling, q_loss, q_target
from rl_training.envs.making import with_lanes
from rl_training.errors import ConfigError
from rl_training.networks.q_network import QNetwork
from rl_training.runtime.controls import Controls, resolve
from rl_training.runtime.dqn_trainer import DQNConfig, DQNTrainer, train_dqn
from rl_training.runtime.evaluation import evaluate
from rl_training.settings.loading import load_run_config
from rl_training.state.seeding import seed_everything

TINY: dict[str, Any] = dict(
    env_id="CartPole-v1",
    total_timesteps=400,
    learning_starts=80,
    batch_size=16,
    hidden_sizes=[8],
    buffer_size=500,
    target_update_interval=5,
    eval_episodes=1,
    eval_interval=400,
    log_interval=80,
)
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": dict(double=True),
    "dueling": dict(dueling=True),
    "n-step": dict(n_step=3),
    "prioritized": dict(prioritized=True),
    "all": dict(double=True, dueling=True, n_step=3, prioritized=True, num_envs=3),
}


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_target_by_hand() -> None:
    """y₁ = 1 + 0.9 · max(2, 5) = 5.5; y₂ = 3, terminated. Double: the online network prefers action 0, worth 2."""
    next_q = torch.tensor([[2.0, 5.0], [7.0, 1.0]])
    reward, discount = tensor(1, 3), tensor(0.9, 0.0)
    torch.testing.assert_close(q_target(reward, discount, next_q, next_q), tensor(5.5, 3.0))
    online = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    torch.testing.assert_close(q_target(reward, discount, next_q, online), tensor(2.8, 3.0))


def test_the_loss_by_hand() -> None:
    """Errors -0.5 and 3: huber ½ · 0.25 = 0.125 and 3 - ½ = 2.5, with slopes -0.5 and 1 (clipped), over 2 rows."""
    q = torch.tensor([[1.5, 0.0], [9.0, 4.0]])
    loss, slope, error = q_loss(q, torch.tensor([0, 1]), tensor(2.0, 1.0))
    assert loss.item() == pytest.approx((0.125 + 2.5) / 2)
    torch.testing.assert_close(error, tensor(-0.5, 3.0))
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.0], [0.0, 0.5]]))
    weighted, slope, _ = q_loss(q, torch.tensor([0, 1]), tensor(2.0, 1.0), tensor(1.0, 0.2))
    assert weighted.item() == pytest.approx((0.125 + 0.2 * 2.5) / 2)
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.0], [0.0, 0.1]]))


@pytest.mark.parametrize(("delta", "losses", "slopes"), [(2.0, 0.125 + 4.0, 2.0), (None, 0.125 + 4.5, 3.0)])
def test_the_threshold_of_the_loss_by_hand(delta: float | None, losses: float, slopes: float) -> None:
    """Errors -0.5 and 3: beyond δ = 2 it is 2 (3 - 1) = 4 with slope 2; without a threshold ½ · 9 with slope 3."""
    q = torch.tensor([[1.5, 0.0], [9.0, 4.0]])
    loss, slope, _ = q_loss(q, torch.tensor([0, 1]), tensor(2.0, 1.0), None, delta)
    assert loss.item() == pytest.approx(losses / 2)
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.0], [0.0, slopes / 2]]))


def test_dueling_streams_have_hidden_layers_of_their_own() -> None:
    """A hidden layer as wide as the features by default; linear streams are the head of earlier runs."""
    space, settings = spaces.Box(-1, 1, (5,), np.float32), dict(activation="relu", image_encoder="nature")
    network = QNetwork(space, 3, hidden_sizes=(8, 7), dueling=True, **settings)
    sizes = {name: tuple(parameter.shape) for name, parameter in network.head.named_parameters()}
    hidden = {
        f"{name}_hidden.0.{part}": (7, 7)[: 1 + (part == "weight")]
        for name in ("value", "advantage")
        for part in ("weight", "bias")
    }
    assert sizes == hidden | {
        "value.weight": (1, 7),
        "value.bias": (1,),
        "advantage.weight": (3, 7),
        "advantage.bias": (3,),
    }
    obs = torch.randn(4, 5)
    features = network.encoder(obs)
    value = network.head.value(network.head.value_hidden(features))
    advantage = network.head.advantage(network.head.advantage_hidden(features))
    torch.testing.assert_close(network(obs), value + advantage - advantage.mean(-1, keepdim=True))
    linear = QNetwork(space, 3, hidden_sizes=(8, 7), dueling=True, dueling_sizes=(), **settings)
    assert isinstance(linear.head, torch.nn.Linear) and linear.head.weight.shape == (4, 7)


def test_a_run_from_before_dueling_had_hidden_layers_keeps_its_linear_streams() -> None:
    written = {"algo": "dqn", "env_id": "CartPole-v1", "dueling": True}
    assert load_run_config(written).dueling_sizes == ()
    named = written | {"algo": f"{DQNTrainer.__module__}:DQNTrainer"}
    assert load_run_config(named, trust=True).dueling_sizes == ()
    assert load_run_config(written | {"dueling_sizes": None}).dueling_sizes is None
    assert load_config(written).dueling_sizes is None


def test_loss_and_slope_are_torchs_own() -> None:
    chance = torch.Generator().manual_seed(0)
    q = (torch.randn(50, 3, generator=chance) * 3).requires_grad_()
    action, target = torch.randint(3, (50,), generator=chance), torch.randn(50, generator=chance)
    loss, slope, _ = q_loss(q.detach(), action, target)
    expected = torch.nn.functional.smooth_l1_loss(q[torch.arange(50), action], target)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, q.grad)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_written_out_are_those_of_the_graph(activation: str, dueling: bool) -> None:
    space = spaces.Box(-1, 1, (5,), np.float32)
    network = QNetwork(
        space, 3, hidden_sizes=(8, 7), activation=activation, image_encoder="nature", dueling=dueling
    )
    assert (network.stack is not None) == (activation != "elu" and not dueling)
    obs, slope = torch.randn(6, 5), torch.randn(6, 3)
    expected = network(obs)
    expected.backward(slope)
    gradients = [parameter.grad for parameter in network.parameters()]
    network.zero_grad(set_to_none=True)
    q, backward = network.with_backward(obs)
    backward(slope)
    torch.testing.assert_close(q, expected.detach())
    with torch.no_grad():
        torch.testing.assert_close(network(obs), expected.detach())
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_dueling_by_hand() -> None:
    """V = 10, A = (1, 2, 6) with mean 3: Q = (8, 9, 13)."""
    torch.testing.assert_close(
        dueling(torch.tensor([[10.0, 1.0, 2.0, 6.0]])), torch.tensor([[8.0, 9.0, 13.0]])
    )


def training_lines(result: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "epsilon" in line]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_trains_and_its_checkpoint_stands_alone(name: str, tmp_path: Any) -> None:
    result = train_dqn(DQNConfig(**TINY | SWITCHES[name]), run_dir=tmp_path / "run")
    expected = {
        "loss",
        "q_value",
        "grad_norm",
        "epsilon",
        "episode_return",
        "learning_rate",
        "eval/mean_return",
    }
    assert expected <= result.metrics.keys()
    score = evaluate_checkpoint(result.checkpoint_path, episodes=3, seed=4)
    assert score == evaluate_checkpoint(tmp_path / "run", episodes=3, seed=4)
    assert load_policy(result.checkpoint_path).act(np.zeros(4, np.float32)) in (0, 1)


def test_nothing_is_learned_before_learning_starts(tmp_path: Any) -> None:
    result = train_dqn(DQNConfig(**TINY | dict(learning_starts=200)), run_dir=tmp_path / "run")
    learned = {line["step"]: "loss" in line for line in training_lines(result)}
    assert learned == {80: False, 160: False, 240: True, 320: True, 400: True}


@pytest.mark.parametrize("prioritized", [False, True])
def test_nothing_is_learned_from_an_empty_replay(prioritized: bool) -> None:
    """Transitions of five steps are complete after the fifth in each of two environments, not at the first step."""
    settings = dict(learning_starts=1, n_step=5, num_envs=2, replay_ratio=1.0, train_frequency=1)
    config = DQNConfig(**TINY | settings, prioritized=prioritized)
    seed_everything(1)
    trainer = DQNTrainer(config)
    updates, ready = [], []
    for step in range(0, 14, 2):
        trainer.iterate(Controls.of(config).at(step))
        updates.append(trainer.updates)
        ready.append(len(trainer.replay))
    assert ready == [0, 0, 0, 0, 2, 4, 6]
    assert updates == [0, 0, 0, 0, 2, 4, 6]


def test_a_warm_up_of_epsilon_goes_up_from_zero(tmp_path: Any) -> None:
    """ε (step + 1) / 160: at step 80 it is 0.4 · 81 / 160 = 0.2025."""
    config = DQNConfig(**TINY, epsilon=0.4, epsilon_warmup_steps=160)
    result = train_dqn(config, run_dir=tmp_path / "run")
    lines = training_lines(result)
    assert [(line["step"], line["epsilon"]) for line in lines[:3]] == [(80, 0.2025), (160, 0.4), (240, 0.4)]


@pytest.mark.parametrize("spelling", ["epsilon", "exploration_epsilon"])
def test_epsilon_schedule_is_applied_and_logged(spelling: str, tmp_path: Any) -> None:
    changes = {f"{spelling}_schedule": {"type": "linear", "start": 1.0, "end": 0.1, "steps": 300}}
    config = load_config(TINY | changes | {"algo": "dqn"})
    result = train_dqn(config, run_dir=tmp_path / "run")
    for line in training_lines(result):
        assert line["epsilon"] == resolve("epsilon", config, line["step"])
    assert result.metrics["epsilon"] == 0.1
    assert load_config(tmp_path / "run" / "config.yaml") == with_lanes(config)


@pytest.mark.parametrize(
    "knob", ["learning_rate", "replay_ratio", "tau", "priority_exponent", "importance_exponent"]
)
def test_every_knob_can_be_scheduled(knob: str, tmp_path: Any) -> None:
    schedule = {"type": "linear", "start": 0.5, "end": 0.25}
    settings = TINY | dict(total_timesteps=160, prioritized=True)
    config = DQNConfig(**settings, **{f"{knob}_schedule": schedule, f"{knob}_warmup_steps": 50})
    result = train_dqn(config, run_dir=tmp_path / "run")
    for line in training_lines(result):
        assert line[knob] == resolve(knob, config, line["step"])


def test_epsilon_is_the_share_of_random_actions() -> None:
    trainer = DQNTrainer(DQNConfig(**TINY))
    obs = np.zeros((4000, 4), np.float32)
    best = trainer.agent.act(obs, (), explore=False)[0]["action"]
    np.random.seed(0)
    for epsilon in (0.0, 0.3, 1.0):
        trainer.agent.epsilon = epsilon
        action = trainer.agent.act(obs, (), explore=True)[0]["action"]
        # Half of the random actions of two are the best one.
        assert (action != best).mean() == pytest.approx(epsilon / 2, abs=0.03)
        assert set(action.tolist()) <= {0, 1}


def test_the_target_network_follows_every_few_updates() -> None:
    config = DQNConfig(**TINY | dict(learning_rate=0.05, tau=0.25))
    seed_everything(1)
    trainer = DQNTrainer(config)
    knobs = Controls.of(config)
    for step in range(25):
        trainer.gather(knobs.at(step))
    before = trainer.target_weights.clone()
    for update in range(1, 6):
        assert torch.equal(trainer.target_weights, before), "not before the fifth update"
        trainer.update(knobs.at(100).after(0))
        assert trainer.updates == update
    expected = before + 0.25 * (trainer.optimizer.parameters - before)
    torch.testing.assert_close(trainer.target_weights, expected)
    assert not torch.equal(trainer.target_weights, before)


def test_acting_without_torch_is_acting_with_torch() -> None:
    for name in ("plain", "dueling"):
        trainer = DQNTrainer(DQNConfig(**TINY | SWITCHES[name]))
        obs = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        fast = trainer.agent.value(obs, ())
        with torch.no_grad():
            slow = trainer.agent.network(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-6)


def trained(env_id: str, steps: int = 1200, learned: Any = None, **changes: Any) -> DQNTrainer:
    settings: dict[str, Any] = dict(
        learning_starts=100, batch_size=32, hidden_sizes=[32], gamma=0.9, epsilon=0.3
    )
    settings |= dict(learning_rate=3e-3, buffer_size=4000, total_timesteps=10**6, target_update_interval=20)
    settings |= dict(replay_ratio=0.5)
    config = DQNConfig(env_id=f"probe/{env_id}-v0", **settings | changes)
    return iterated(DQNTrainer, config, steps, learned)


def values(trainer: DQNTrainer, *observations: float) -> np.ndarray:
    return trainer.agent.value(np.array(observations, np.float32).reshape(-1, 1), ())


@pytest.mark.parametrize("name", SWITCHES)
def test_values_of_the_probes(name: str) -> None:
    """A delayed reward is discounted, and an action is worth what it earns, whatever is switched on."""
    delayed = trained("DelayedReward", **SWITCHES[name])
    np.testing.assert_allclose(values(delayed, 0.0, 1.0), [[0.9, 0.9], [1.0, 1.0]], atol=0.1)
    both = trained("RewardByBoth", **SWITCHES[name])
    np.testing.assert_allclose(values(both, -1.0, 1.0), [[1, -1], [-1, 1]], atol=0.15)
    assert evaluate(both.agent, both.config, episodes=30, seed=5)["mean_return"] == 1.0


def test_a_picture_in_a_dict_is_seen() -> None:
    def seen(trainer: DQNTrainer) -> None:
        assert evaluate(trainer.agent, trainer.config, episodes=50, seed=5)["mean_return"] > 0.95

    trained("DictAndPicture", 500, seen, learning_rate=1e-3, replay_ratio=0.25, hidden_sizes=[])


def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    """Reward 1 a step: cut off, every step is worth 1 / (1 - γ) = 5; ended, the last one is worth 1."""
    cut = trained("DiscreteCutOff", 2000, replay_ratio=1.0, gamma=0.8, target_update_interval=100)
    np.testing.assert_allclose(values(cut, 0.0, 4.0), 5.0, atol=0.5)
    ended = trained("DiscreteEnding", target_update_interval=100)
    np.testing.assert_allclose(values(ended, 4.0), 1.0, atol=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_id="Pendulum-v1"), "actions must be Discrete"),
        (dict(epsilon=1.5), "at most 1"),
        (dict(n_step=0), "at least 1"),
        (dict(ent_coef=0.1), "dqn has no knob ent_coef"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQNTrainer(DQNConfig(**TINY | changes))
