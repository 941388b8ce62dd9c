"""Behavioural cloning end to end, short: schedules arrive exactly, steps are pairs, nothing is played in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import read_lines

from rl_training import load_config, load_policy, resume
from rl_training.data.demonstrations import Demonstrations, Episode, load_demonstrations, save_demonstrations
from rl_training.envs.environments import Environments
from rl_training.errors import ConfigError, RunError
from rl_training.runtime.bc_trainer import BCConfig, BCTrainer, train_bc
from rl_training.runtime.controls import Controls, resolve
from rl_training.runtime.ppo_trainer import PPOConfig, train_ppo
from rl_training.runtime.workflows import record_demonstrations

SMALL: dict[str, Any] = dict(
    env_id="CartPole-v1",
    demonstrations="gail/cartpole_expert.npz",
    total_timesteps=600,
    batch_size=32,
    num_minibatches=4,
    eval_episodes=2,
    hidden_sizes=[8],
)


def test_schedules_are_applied_and_logged_over_pairs(tmp_path: Path) -> None:
    falling = {"type": "linear", "start": 0.1, "end": 0.02}
    config = BCConfig(**SMALL, ent_coef_schedule=falling, learning_rate_schedule="linear")
    result = train_bc(config, run_dir=tmp_path / "run")
    lines = [line for line in read_lines(result) if "cloning_loss" in line]
    assert [line["step"] for line in lines] == [128, 256, 384, 512, 640]  # 4 batches of 32 pairs each
    for line in lines:
        for name in BCConfig.controls:
            assert line.get(name) == resolve(name, config, step=line["step"])
    assert lines[0]["cloning_loss"] == pytest.approx(np.log(2), abs=0.05)  # of two actions
    assert {"entropy", "grad_norm"} <= lines[0].keys()
    assert result.metrics["ent_coef"] == 0.02 and result.metrics["episodes"] == 0


def test_nothing_but_evaluations_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, played = Environments.step, []

    def stepping(environments: Environments, action: Any) -> Any:
        played.append(environments.stream)
        return step(environments, action)

    monkeypatch.setattr(Environments, "step", stepping)
    train_bc(BCConfig(**SMALL, normalize_observations=True), run_dir=tmp_path / "run")
    assert set(played) == {"evaluate"}


def test_what_needs_an_environment_to_learn_from_is_no_key() -> None:
    for key in ("gamma", "num_envs", "normalize_rewards", "num_steps", "gae_lambda"):
        assert key not in BCConfig.model_fields
    with pytest.raises(ConfigError, match="bc has no knob gamma"):
        load_config("bc/cartpole", ["gamma=0.9"])
    with pytest.raises(ConfigError, match=r"num_envs belongs to ppo, .* not to bc"):
        load_config("bc/cartpole", ["num_envs=2"])


def test_a_subclass_misses_the_same_keys() -> None:
    class Mine(BCConfig):
        margin: float = 1.0

    assert Mine.model_fields.keys() - BCConfig.model_fields.keys() == {"margin"}
    assert Mine.controls.keys() == BCConfig.controls.keys()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_expert_is_imitated_whatever_it_earns(wrong: bool, tmp_path: Path) -> None:
    """One step, in which the action that matches the observation's sign earns 1 and the other -1."""

    def step(sign: float) -> Episode:
        action, obs = np.array([int((sign > 0) != wrong)]), np.array([[sign], [sign]], np.float32)
        return Episode(obs, action, np.zeros(1), np.ones(1, np.bool_), np.zeros(1, np.bool_))

    expert = Demonstrations("probe/RewardByBoth-v0", [step(sign) for sign in (1.0, -1.0) * 8])
    save_demonstrations(expert, str(tmp_path / "demos.npz"))
    own = dict(env_id="probe/RewardByBoth-v0", demonstrations=str(tmp_path / "demos.npz"), learning_rate=1e-2)
    result = train_bc(BCConfig(**SMALL | own | {"total_timesteps": 2000}), run_dir=tmp_path / "run")
    assert result.metrics["eval/mean_return"] == (-1.0 if wrong else 1.0)


def test_continuous_actions_are_cloned(tmp_path: Path) -> None:
    own = dict(env_id="Pendulum-v1", demonstrations="gail/pendulum_expert.npz", normalize_observations=True)
    config = BCConfig(**SMALL | own | dict(total_timesteps=60_000, eval_interval=60_000, hidden_sizes=[32]))
    result = train_bc(config, run_dir=tmp_path / "run")
    policy, expert = load_policy(result.run_dir), load_demonstrations("gail/pendulum_expert.npz").episodes[0]
    acted = np.array([policy.act(obs) for obs in expert.observations[:-1]])
    errors = np.abs(acted - expert.actions).mean(), np.abs(expert.actions).mean()
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("probe/TwoChoices-v0", {}),
        ("probe/Coins-v0", {}),
        ("probe/DictAndPicture-v0", dict(normalize_observations=True, layer_norm=True)),
        ("FrozenLake-v1", dict(expert_keep_every=2)),
        ("Pendulum-v1", dict(state_dependent_std=True)),
    ],
)
def test_every_kind_of_environment_trains(env_id: str, changes: dict[str, Any], tmp_path: Path) -> None:
    short = dict(env_id=env_id, total_timesteps=128, max_episode_steps=50, eval_episodes=1, hidden_sizes=[8])
    expert = train_ppo(PPOConfig(**short, num_envs=2, num_steps=64), run_dir=tmp_path / "expert").run_dir
    record_demonstrations(expert, tmp_path / "demos.npz", episodes=3, sample=True)
    config = BCConfig(
        **short
        | dict(demonstrations=str(tmp_path / "demos.npz"), batch_size=16, learning_rate=1e-2)
        | changes
    )
    lines = read_lines(train_bc(config, run_dir=tmp_path / "run"))
    assert all(np.isfinite(value) for line in lines for value in line.values())
    trainer = BCTrainer(config)
    before = [parameter.clone() for parameter in trainer.agent.network.actor_head.parameters()]
    trainer.iterate(Controls.of(config).at(0))
    moved = zip(before, trainer.agent.network.actor_head.parameters(), strict=True)
    assert all((old != new).any() for old, new in moved)
    assert not trainer.agent.network.critic_head.weight.grad.any()  # which nothing is learned by


def test_other_demonstrations_are_not_resumed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = load_demonstrations("gail/cartpole_expert.npz")
    save_demonstrations(Demonstrations(found.env_id, found.episodes[:2]), "demos.npz")
    train_bc(BCConfig(**SMALL | dict(demonstrations="demos.npz")), run_dir="run")
    for name in ("demos.npz", "demos.json"):
        Path(name).unlink()
    save_demonstrations(Demonstrations(found.env_id, found.episodes[2:4]), "demos.npz")
    with pytest.raises(RunError, match="not the ones that the run was begun with"):
        resume("run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(demonstrations="nowhere.npz"), "demonstrations: nowhere.npz: no such file"),
        (dict(demonstrations="gail/pendulum_expert.npz"), "made in Pendulum-v1, not in CartPole-v1"),
        (dict(expert_episodes=11), "holds 10 episodes, not 11"),
        (
            dict(env_id="Pendulum-v1", demonstrations="gail/pendulum_expert.npz", env_kwargs={"g": 10.0})
            | dict(env_kwargs_schedule={"g": [[0, 2], [9, 10]]}),
            "env_kwargs_schedule: bc does not support it",
        ),
    ],
)
def test_what_cannot_be_cloned_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_bc(BCConfig(**SMALL | changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
