"""Steps for a replay in one compiled call: what the Python loop does, with chance of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import EXAMPLES
from updates import perturb

from rl_training import load_config
from rl_training.data.replay import Replay
from rl_training.envs.making import make_environments
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls, Now
from rl_training.runtime.dqn_trainer import DQNTrainer
from rl_training.state.seeding import seed_everything
from rl_training.trees import tree_leaves

STEPS = 60
OWN_NETWORK = {f"{EXAMPLES}/residual.py:Residual": {"width": 8}}
CASES: dict[str, dict[str, Any]] = {
    "choices": dict(algo="dqn", env_id="CartPole-v1", max_episode_steps=25),
    "dueling, normalised": dict(
        algo="dqn", env_id="CartPole-v1", max_episode_steps=25, dueling=True, normalize_observations=True
    ),
    "one-hot": dict(algo="dqn", env_id="FrozenLake-v1", n_step=3, prioritized=True),
    "squashed": dict(algo="sac", env_id="Pendulum-v1", max_episode_steps=25),
    "squashed, normalised": dict(
        algo="sac", env_id="Pendulum-v1", max_episode_steps=25, normalize_observations=True
    ),
    "more lanes than a block": dict(algo="dqn", env_id="CartPole-v1", num_envs=150, max_episode_steps=25),
    "layer norm": dict(algo="dqn", env_id="CartPole-v1", max_episode_steps=25, layer_norm=True),
    "squashed, layer norm": dict(algo="sac", env_id="Pendulum-v1", max_episode_steps=25, layer_norm=True),
}


def trainer_of(**changes: Any) -> Any:
    settings = dict(vectorization="compiled", num_envs=5, train_frequency=STEPS, hidden_sizes=[16, 8])
    config = load_config(settings | dict(learning_starts=10, buffer_size=40_000) | changes)
    seed_everything(7)
    trainer = trainer_class(config.algo)(config)
    perturb(trainer.agent.network if config.algo == "dqn" else trainer.agent.actor)
    return trainer


def network_of(trainer: Any) -> Any:
    return getattr(trainer.agent, "network", None) or trainer.agent.actor


def gathered(trainer: Any, share: float, steps: int = STEPS) -> Any:
    columns = trainer.whole(np.full(steps, share))
    assert columns is not None
    return {name: column.copy() for name, column in columns.items()}


@pytest.mark.parametrize("case", CASES)
def test_evaluations_take_the_best_actions_and_leave_the_policy_as_it_is(case: str) -> None:
    trainer, other = trainer_of(**CASES[case]), trainer_of(**CASES[case])
    for each in (trainer, other):
        each.agent.observe(each.environments.obs * 1.5)
    before = trainer.agent.state_dict()
    assert trainer.paths()["evaluations"] == "compiled"
    whole = trainer.agent.whole_rollouts(trainer.environments, greedy=True)
    columns = whole(STEPS)
    for t in range(STEPS):
        best = other.agent.act(other.environments.obs, (), explore=False)[0]["action"]
        np.testing.assert_allclose(columns["action"][t], best, atol=1e-6)
        step = other.environments.step(columns["action"][t])
        assert columns["reward"][t].tobytes() == step.reward.astype(np.float32).tobytes()
    assert trainer.environments.take_finished() == other.environments.take_finished() != []
    for mine, theirs in zip(
        tree_leaves(before, ""), tree_leaves(trainer.agent.state_dict(), ""), strict=True
    ):
        assert np.array_equal(mine[1], theirs[1])


def test_sampled_evaluations_take_steps_one_by_one() -> None:
    trainer = trainer_of(**CASES["choices"])
    assert trainer.agent.whole_rollouts(trainer.environments, greedy=False) is None


@pytest.mark.parametrize("case", CASES)
def test_its_columns_are_what_the_python_loop_gives_for_its_actions(case: str) -> None:
    trainer, other = trainer_of(**CASES[case]), trainer_of(**CASES[case])
    columns = gathered(trainer, 0.5 if case != "squashed" else 0.0)
    config = trainer.config
    again = make_environments(config, config.num_envs, config.seed, "train")
    for t in range(STEPS):
        step = again.step(columns["action"][t])
        assert columns["next_obs"][t].tobytes() == step.next_obs.tobytes()
        assert columns["obs"][t].tobytes() == again.obs.tobytes()
        assert columns["reward"][t].tobytes() == step.reward.astype(np.float32).tobytes()
        assert columns["terminated"][t].tobytes() == step.terminated.tobytes()
        assert columns["truncated"][t].tobytes() == step.truncated.tobytes()
        other.agent.observe(step.next_obs)
    environments = trainer.environments
    assert environments.obs.tobytes() == again.obs.tobytes()
    assert environments.take_finished() == again.take_finished() != []
    for mine, theirs in zip(environments.state, again.state, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    if config.normalize_observations:
        moments = [each.agent.normalizer.moments for each in (trainer, other)]
        for name in ("mean", "variance", "count"):
            np.testing.assert_allclose(*(getattr(each, name) for each in moments), rtol=1e-9)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case["algo"] == "dqn"])
def test_without_chance_it_takes_the_best_action(case: str) -> None:
    trainer, other = trainer_of(**CASES[case]), trainer_of(**CASES[case])
    obs, columns = trainer.environments.obs, gathered(trainer, 0.0)
    for t in range(STEPS):
        q = other.agent.value(obs, ())
        best, taken = q.max(-1), np.take_along_axis(q, columns["action"][t][:, None], -1)[:, 0]
        assert (best - taken <= 1e-5 * (1 + np.abs(best))).all()  # two that are as good to rounding
        other.agent.observe(columns["next_obs"][t])
        obs = columns["obs"][t]


def test_a_share_of_actions_is_at_random_and_all_are_as_likely() -> None:
    trainer = trainer_of(algo="dqn", env_id="Acrobot-v1", num_envs=4000, buffer_size=100_000)
    best = trainer.agent.value(trainer.environments.obs, ()).argmax(-1)
    taken = gathered(trainer, 0.6, 1)["action"][0]
    for choice in range(3):
        expected = 0.2 + 0.4 * (best == choice)
        spread = np.sqrt((expected * (1 - expected)).sum())
        assert abs((taken == choice).sum() - expected.sum()) < 4 * spread


def test_squashed_actions_have_their_mean_and_deviation() -> None:
    trainer = trainer_of(algo="sac", env_id="Pendulum-v1", num_envs=4000, buffer_size=100_000)
    with torch.no_grad():
        mean, log_std = trainer.agent.actor(trainer.agent.inputs(trainer.environments.obs))
    action = gathered(trainer, 0.0, 1)["action"][0]
    inside = np.abs(action) < 0.999  # beyond, single precision does not tell what was squashed
    noise = ((np.arctanh(action, dtype=np.float64) - mean.numpy()) / log_std.exp().numpy())[inside]
    assert inside.mean() > 0.9
    middle = np.abs(noise) < 0.6745  # of a normal, half is here
    assert abs(middle.sum() / 4000 - 0.5) < 4 * 0.5 / np.sqrt(4000) + (1 - inside.mean())
    assert abs(np.median(noise)) < 0.1


def test_the_first_actions_are_uniform() -> None:
    trainer = trainer_of(algo="sac", env_id="Pendulum-v1", num_envs=4000, buffer_size=100_000)
    action = gathered(trainer, 1.0, 1)["action"][0].ravel()
    assert action.dtype == np.float32
    assert -1 <= action.min() < -0.99 and 0.99 < action.max() <= 1
    assert abs(action.mean()) < 4 * np.sqrt(1 / 3 / 4000)
    assert abs((np.abs(action) < 0.5).mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("case", CASES)
def test_a_trainer_stores_what_the_call_gives(case: str) -> None:
    trainer, asked = trainer_of(**CASES[case]), []
    whole, extend = trainer.whole, trainer.replay.extend
    trainer.replay.extend = lambda **columns: asked.append(columns["action"].shape[:2]) or extend(**columns)
    assert trainer.paths()["rollouts"] == "compiled" and whole.is_ready
    knobs, count = Controls.of(trainer.config), trainer.config.num_envs
    for number in range(2):
        metrics = trainer.gather(knobs.at(number * STEPS * count))
    assert asked == [(STEPS, count)] * 2
    assert trainer.steps == 2 * STEPS * count and metrics.steps == STEPS * count
    assert len(trainer.replay) > STEPS * count
    assert metrics.episodes


def test_epsilon_is_that_of_each_step() -> None:
    schedule = {"type": "linear", "start": 1.0, "end": 0.0, "steps": 600}
    trainer = trainer_of(algo="dqn", env_id="CartPole-v1", learning_starts=100, epsilon_schedule=schedule)
    seen: list[Any] = []
    whole = trainer.whole.__call__
    trainer.whole = type(
        "Told", (), {"is_ready": True, "__call__": lambda _, s: seen.append(s) or whole(s)}
    )()
    trainer.gather(Controls.of(trainer.config).at(0))
    expected = [1.0 if 5 * t < 100 else 1 - 5 * t / 600 for t in range(STEPS)]
    assert seen[0] == pytest.approx(expected)
    assert trainer.agent.epsilon == pytest.approx(expected[-1])


def test_it_is_a_function_of_the_seed() -> None:
    def actions(seed: int) -> bytes:
        trainer = trainer_of(**CASES["choices"])
        seed_everything(seed)
        return gathered(trainer, 0.5)["action"].tobytes()

    assert actions(1) == actions(1) != actions(2)


def test_weights_that_moved_act() -> None:
    trainer = trainer_of(**CASES["choices"])
    with torch.no_grad():
        trainer.agent.network.head.bias += torch.tensor([1e6, 0.0])
    assert (gathered(trainer, 0.0, 2)["action"] == 0).all()
    with torch.no_grad():
        trainer.agent.network.head.bias += torch.tensor([0.0, 1e7])
    assert (gathered(trainer, 0.0, 2)["action"] == 1).all()


@pytest.mark.parametrize("case", ["choices", "squashed"])
def test_a_hook_sends_acting_through_the_modules(case: str) -> None:
    trainer, called = trainer_of(**CASES[case], learning_starts=1), []
    handle = network_of(trainer).register_forward_hook(lambda *args: called.append(1))
    assert trainer.paths()["rollouts"] == "python"
    trainer.gather(Controls.of(trainer.config).at(0))
    assert len(called) == STEPS - 1  # after a first step at random
    handle.remove()
    assert trainer.paths()["rollouts"] == "compiled"


@pytest.mark.parametrize(
    "changes",
    [dict(vectorization="sync"), dict(env_id="rl_training/TicTacToe-v0"), dict(network=OWN_NETWORK)],
)
def test_all_else_goes_through_the_python_loop(changes: dict[str, Any]) -> None:
    trainer = trainer_of(**CASES["choices"] | changes)
    assert trainer.paths()["rollouts"] == "python"
    trainer.gather(Controls.of(trainer.config).at(0))
    assert trainer.steps == STEPS * 5


class Timid(DQNTrainer):
    """Which explores in its own way."""

    def explore(self, obs: Any, now: Now) -> np.ndarray:
        return np.zeros(len(obs), np.int64)


def test_a_trainer_that_explores_in_its_own_way_is_asked() -> None:
    config = trainer_of(**CASES["choices"], learning_starts=1).config
    trainer = Timid(config)
    assert trainer.whole is None
    trainer.gather(Controls.of(config).at(0))
    assert not trainer.replay.action[trainer.replay.happened > 0][5:].any()  # after a first step at random


@pytest.mark.parametrize("method", ["explore", "choose", "step", "agent.act", "agent.observe"])
def test_a_method_that_is_put_on_an_instance_is_called(method: str) -> None:
    trainer = trainer_of(**CASES["choices"], learning_starts=1)
    assert trainer.paths()["rollouts"] == "compiled"
    *owners, name = method.split(".")
    owner, called = (trainer.agent if owners else trainer), []
    theirs = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: called.append(1) or theirs(*args, **named))
    assert trainer.paths()["rollouts"] == "python"
    trainer.gather(Controls.of(trainer.config).at(0))
    assert len(called) >= STEPS - 1  # after a first step at random


class Counting(Replay[Any]):
    """Which does something of its own with each step."""

    added = 0

    def add(self, *args: Any, **columns: Any) -> Any:
        self.added += 1
        return super().add(*args, **columns)


class Counted(DQNTrainer):
    def make_replay(self, obs: Any, **settings: Any) -> Counting:
        return Counting(self.config.buffer_size, obs, **settings)


def test_a_replay_of_ones_own_is_given_every_step() -> None:
    config = trainer_of(**CASES["choices"]).config
    trainer = Counted(config)
    trainer.gather(Controls.of(config).at(0))
    assert trainer.replay.added == STEPS


def test_a_replay_that_is_put_there_later_is_given_every_step() -> None:
    trainer = trainer_of(**CASES["choices"])
    trainer.replay = Counting(trainer.config.buffer_size, trainer.environments.obs)
    assert trainer.paths()["rollouts"] == "python"
    trainer.gather(Controls.of(trainer.config).at(0))
    assert trainer.replay.added == STEPS
