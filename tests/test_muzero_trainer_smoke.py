"""MuZero: its schedules, what really ran, its checkpoints, reanalysis, and the probes it must solve."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import BOARD_GAME, iterated, knobs_in_training_lines, read_lines

from rl_training import evaluate_checkpoint, load_config, load_policy
from rl_training.errors import ConfigError
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies import search as search_policy
from rl_training.runtime.controls import Controls
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.muzero_trainer import MuZeroConfig, MuZeroTrainer, train_muzero
from rl_training.runtime.optim import Adam
from rl_training.state.seeding import seed_everything

TINY: dict[str, Any] = dict(
    env_id="CartPole-v1",
    total_timesteps=240,
    num_envs=2,
    learning_starts=60,
    replay_ratio=0.1,
    batch_size=8,
    hidden_sizes=[8],
    latent_size=8,
    support_size=10,
    buffer_size=500,
    target_update_interval=5,
    eval_episodes=1,
    eval_interval=240,
    log_interval=40,
    num_simulations=4,
)
SCHEDULES: dict[str, Any] = dict(
    num_simulations_schedule={"type": "linear", "start": 2, "end": 6},
    temperature_schedule={"type": "linear", "start": 1.0, "end": 0.25},
    root_exploration_fraction_schedule={"type": "linear", "start": 0.5, "end": 0.1},
    reanalyse_ratio_schedule={"type": "linear", "start": 0.0, "end": 0.5},
    priority_exponent_schedule={"type": "linear", "start": 1.0, "end": 0.5},
    importance_exponent_schedule={"type": "linear", "start": 0.4, "end": 1.0},
    learning_rate_schedule={"type": "cosine", "start": 1e-2, "end": 1e-3},
)

# For the probes: enough to solve them in some hundred steps.
PROBED: dict[str, Any] = dict(
    learning_starts=60,
    batch_size=32,
    hidden_sizes=[16],
    latent_size=8,
    gamma=0.9,
    learning_rate=5e-3,
    buffer_size=4000,
    total_timesteps=10**6,
    target_update_interval=20,
    replay_ratio=0.5,
    num_simulations=8,
    support_size=5,
    num_envs=4,
    unroll_steps=3,
    td_steps=3,
)


def counted(monkeypatch: Any, name: str, module: Any = search_policy) -> list[tuple[int, int]]:
    """(asked, ran) of every search from now on: how many simulations it was told, and calls of the model."""
    real, searches = getattr(module, name), []

    def search(root: Any, recurrent: Any, **options: Any) -> Any:
        calls = 0

        def counting(*inputs: Any) -> Any:
            nonlocal calls
            calls += 1
            return recurrent(*inputs)

        result = real(root, counting, **options)
        searches.append((options["num_simulations"], calls))
        return result

    monkeypatch.setattr(module, name, search)
    return searches


def check_budgets(kind: Any, settings: dict[str, Any], searches: list[tuple[int, int]]) -> None:
    """Ten searches of 3 simulations, ten of 7 and ten of 1, as scheduled; then an evaluation's."""
    schedule = {"type": "step", "points": [[0, 3], [20, 7], [40, 1]]}
    config = kind.config_class(**settings | dict(num_simulations_schedule=schedule, learning_starts=1000))
    trainer, knobs = kind(config), Controls.of(config)
    for step in range(0, 60, 2):
        trainer.iterate(knobs.at(step))
    assert searches == [(3, 3)] * 10 + [(7, 7)] * 10 + [(1, 1)] * 10
    assert trainer.agent.settings["num_simulations"] == 1
    searches.clear()
    trainer.agent.act(np.zeros((1, 4), np.float32), (), explore=False)
    assert searches == [(1, 1)], "evaluation searches as long as training did last"


def check_schedules(train: Any, config: Any, folder: Path) -> dict[str, float]:
    """The metrics of a run with SCHEDULES: every value that is scheduled is there, exactly, and was used."""
    result = train(config, run_dir=folder / "run")
    assert result.metrics["num_simulations"] == 6
    assert result.metrics["temperature"] == 0.25
    assert result.metrics["root_exploration_fraction"] == 0.1
    assert result.metrics["reanalyse_ratio"] == 0.5
    lines = [line for line in read_lines(result) if "num_simulations" in line]
    budgets = [line["num_simulations"] for line in lines]
    assert budgets == [3, 3, 4, 5, 5, 6], "a half goes to the even neighbour"
    knobs_in_training_lines(result, config)
    assert {"policy_loss", "value_loss", "reward_loss", "loss", "value", "grad_norm"} <= result.metrics.keys()
    # The checkpoint stands alone, and searches as long as its step did.
    score = evaluate_checkpoint(result.checkpoint_path, episodes=2, seed=4)
    assert score == evaluate_checkpoint(folder / "run", episodes=2, seed=4)
    policy = load_policy(result.checkpoint_path)
    assert policy.agent.settings["num_simulations"] == 6
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    return result.metrics


def test_scheduled_values_are_used_and_logged_exactly(tmp_path: Path) -> None:
    metrics = check_schedules(train_muzero, MuZeroConfig(**TINY | SCHEDULES), tmp_path)
    assert metrics["num_simulations"] == 6 and metrics["temperature"] == 0.25


def test_as_many_simulations_run_as_the_schedule_says_at_every_step(monkeypatch: Any) -> None:
    check_budgets(MuZeroTrainer, TINY, counted(monkeypatch, "muzero_search"))


def test_a_fixed_value_still_works(tmp_path: Any) -> None:
    result = train_muzero(MuZeroConfig(**TINY | dict(total_timesteps=40)), run_dir=tmp_path / "run")
    assert result.metrics["num_simulations"] == 4 and result.metrics["temperature"] == 1.0


def test_training_draws_by_visits_and_evaluation_takes_the_most_visited() -> None:
    seed_everything(0)
    trainer = MuZeroTrainer(MuZeroConfig(**TINY))
    torch.nn.init.normal_(
        trainer.agent.network.prediction[-1].weight
    )  # from zeros all actions would be alike
    obs = np.repeat(np.random.standard_normal((1, 4)).astype(np.float32), 2000, 0)
    settings = dict(num_simulations=8, root_exploration_fraction=0.0, gamma=0.99)
    plan = trainer.agent.plan(obs, temperature=1.0, **settings)
    np.testing.assert_allclose(plan.policy, np.repeat(plan.policy[:1], 2000, 0))  # no noise: all the same
    assert abs(plan.policy[0, 1] - 0.5) > 0.1
    assert plan.action.mean() == pytest.approx(plan.policy[0, 1], abs=0.05)
    greedy = trainer.agent.plan(obs, temperature=0.0, **settings)
    assert (greedy.action == plan.policy[0].argmax()).all()
    noisy = trainer.agent.plan(obs, temperature=0.0, **settings | dict(root_exploration_fraction=0.9))
    assert len(np.unique(noisy.policy, axis=0)) > 1


def make_network(space: spaces.Space[Any], activation: str = "relu") -> MuZeroNetwork:
    sizes: dict[str, Any] = dict(latent_size=6, hidden_sizes=(8, 5), support_size=7, residual_blocks=1)
    return MuZeroNetwork(space, 4, activation=activation, image_encoder="nature", **sizes)


@torch.no_grad()
def test_the_model_for_a_search_is_the_model_that_is_learned() -> None:
    """`initial` and `recurrent` decode what `represent`, `transition` and `predict` say."""
    network = make_network(spaces.Box(-1, 1, (3,), np.float32))
    policy, value, latent = network.initial(torch.randn(5, 3))
    assert not policy.any() and value.abs().max() < 1e-6, "from zeros"
    assert latent.min() == 0 and latent.max() == pytest.approx(1, abs=1e-3)
    torch.nn.init.normal_(network.prediction[-1].weight)
    action = torch.tensor([0, 1, 2, 3, 0])
    reward, logits, value, following = network.recurrent(latent, action)
    expected = network.transition(latent, action)
    torch.testing.assert_close(following, expected)
    said = network.predict(expected)
    torch.testing.assert_close(logits, said.policy)
    distribution = said.value.softmax(-1) @ torch.arange(-7.0, 8.0)
    torch.testing.assert_close(torch.sign(value), torch.sign(distribution))
    assert not torch.equal(reward, value) and reward.shape == value.shape == (5,)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 3)])
def test_frames(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    network = make_network(space)
    policy, value, latent = network.initial(torch.randint(0, 255, (2, *shape), dtype=torch.uint8))
    assert policy.shape == (2, 4) and value.shape == (2,) and latent.shape == (2, 6, 6, 6)
    one = network.recurrent(latent, torch.tensor([0, 1]))
    other = network.recurrent(latent, torch.tensor([1, 1]))
    assert one[3].shape == latent.shape
    assert not torch.equal(one[3][0], other[3][0]) and torch.equal(one[3][1], other[3][1])


def trained(env_id: str, steps: int = 700, learned: Any = None, **changes: Any) -> MuZeroTrainer:
    config = MuZeroConfig(env_id=f"probe/{env_id}-v0", **PROBED | changes)
    return iterated(MuZeroTrainer, config, steps, learned)


def values(trainer: MuZeroTrainer, *observations: float) -> np.ndarray:
    return trainer.agent.value(np.array(observations, np.float32).reshape(-1, 1), ())


def finds_the_best_action(trainer: Any) -> None:
    assert evaluate(trainer.agent, trainer.config, episodes=30, seed=5)["mean_return"] == 1.0


def test_values_of_the_probes() -> None:
    np.testing.assert_allclose(values(trained("DelayedReward", 1400), 0.0, 1.0), [0.9, 1.0], atol=0.1)
    trained("RewardByBoth", learned=finds_the_best_action)


def finds_the_target(trainer: Any) -> None:
    """-(a - 2)² of a in [-1, 3], a step long: at random -2.3 on average, and 0 at best."""
    assert evaluate(trainer.agent, trainer.config, episodes=20, seed=5)["mean_return"] > -0.1


CONTINUOUS: dict[str, Any] = dict(sampled_actions=8, num_simulations=16, learning_rate=1e-2, ent_coef=0.01)


def test_a_continuous_action_is_learned() -> None:
    """By searches with samples, and by the policy that they are drawn from: its mode alone is near the best."""
    trainer = trained("Target", 800, finds_the_target, **CONTINUOUS)
    action, said, _ = trainer.agent.greedy(trainer.agent.inputs(np.zeros((1, 1), np.float32)), ())
    assert action.item() == pytest.approx(0.5, abs=0.15), "2 in [-1, 3]"
    assert said.keys() == {"mean", "log_std"}


def test_samples_are_searched_anew_with_their_policies() -> None:
    trainer = trained("Target", 200, **CONTINUOUS)
    now = Controls.of(trainer.config).at(0).after(0)
    batch = trainer.draw(now)
    stored, acted = batch["samples"].clone(), batch["acted"] > 0
    plain = trainer.targets(batch, now)
    assert plain.samples is batch["samples"] and plain.policy is batch["policy"]
    now.__dict__["reanalyse_ratio"] = 1.0
    searched = trainer.targets(batch, now)
    assert searched.samples is not None and torch.equal(batch["samples"], stored)
    assert (searched.samples[acted] != stored[acted]).all()
    torch.testing.assert_close(searched.policy[acted].sum(-1), torch.ones(int(acted.sum())))
    # The policy belongs to its samples: those nearer to the best action, 0.5, have more of it.
    far = (searched.samples[acted][..., 0] - 0.5).abs()
    assert (searched.policy[acted] * far).sum(-1).mean() < 0.8 * far.mean()


def test_a_time_limit_bootstraps_and_an_end_does_not() -> None:
    """Reward 1 a step: cut off, every step is worth 1 / (1 - γ) = 5; ended, the last one is worth 1."""
    cut = trained("DiscreteCutOff", 1200, gamma=0.8)
    np.testing.assert_allclose(values(cut, 0.0, 4.0), 5.0, atol=0.6)
    ended = trained("DiscreteEnding", 1000)
    np.testing.assert_allclose(values(ended, 4.0), 1.0, atol=0.3)


def test_the_entropy_bonus_is_of_allowed_actions_alone() -> None:
    """Of equal logits it is the log of their number; a symmetry turns the mask with the logits."""
    trainer = trained("Masked", 120, ent_coef=0.1)
    batch = trainer.draw(Controls.of(trainer.config).at(0).after(0))
    acted, allowed = batch["acted"] > 0, trainer.replay.seen_at(batch["places"])["action_mask"] > 0
    entropy = trainer.entropy(torch.zeros(acted.numel(), 5), batch).view_as(acted)
    expected = torch.from_numpy(np.log(allowed.sum(-1), dtype=np.float32))
    torch.testing.assert_close(entropy[acted], expected[acted])
    assert not acted.all() and not allowed.all()
    game = dict(env_id="rl_training/TicTacToe-v0", symmetries=True, learning_starts=1000)
    board = iterated(MuZeroTrainer, MuZeroConfig(**BOARD_GAME | game), 40, None)
    batch = board.draw(Controls.of(board.config).at(0).after(0))
    acted, logits = batch["acted"] > 0, torch.randn(*batch["acted"].shape, 9)
    turn = torch.arange(4) + 1
    turned = board.symmetries.policy(logits, turn).flatten(0, 1)
    found = board.entropy(turned, {**batch, "turn": turn}).view_as(acted)
    torch.testing.assert_close(found[acted], board.entropy(logits.flatten(0, 1), batch).view_as(acted)[acted])


@pytest.mark.parametrize("where", ["info", "obs"])
def test_forbidden_actions_are_never_taken(where: str) -> None:
    """The probe raises when one is; no search gives one a share, and the best allowed one is learned.

    Three steps, each with an allowed action that earns 1: allowed ones at random earn about 1.6 in all.
    """
    trainer = trained("Masked", 400, env_kwargs={"where": where}, temperature=1.0)
    replay = trainer.replay
    taken = replay.happened[: replay.head] > 0
    allowed = replay.observations["action_mask"][: replay.head][taken] > 0
    assert taken.sum() == 400 and not replay.policy[: replay.head][taken][~allowed].any()
    assert allowed[np.arange(400), replay.action[: replay.head][taken]].all()
    evaluate(trainer.agent, trainer.config, episodes=20, seed=5, sample=True)
    assert evaluate(trainer.agent, trainer.config, episodes=20, seed=5)["mean_return"] > 2.3


def test_reanalysed_targets_come_from_the_target_network() -> None:
    """With the ratio 1 policies and bootstraps are those of a new search; with 0 those that were stored."""
    trainer = trained("DiscreteCutOff", 200)
    now = Controls.of(trainer.config).at(0).after(0)
    np.random.seed(3)
    stored = trainer.draw(now)
    policy = stored["policy"].clone()
    plain = trainer.targets(stored, now)
    assert torch.equal(plain.policy, policy)
    now.__dict__["reanalyse_ratio"] = 1.0
    searched = trainer.targets(stored, now)
    assert torch.equal(stored["policy"], policy), "what was drawn stays as it was"
    acted = stored["acted"] > 0
    obs = trainer.replay.seen_at(stored["places"][acted.numpy()])
    quiet = dict(num_simulations=8, temperature=0.0, root_exploration_fraction=0.0, gamma=0.9)
    expected = trainer.agent.plan(obs, **quiet, network=trainer.target)
    torch.testing.assert_close(searched.policy[acted], torch.from_numpy(expected.policy))
    assert not searched.policy[~acted].any()
    ends = stored["discount"] == 0
    assert not torch.equal(plain.value, searched.value)
    assert torch.equal(plain.value[ends], searched.value[ends])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_id="probe/TwoChoices-v0"), "actions must be Discrete, Box"),
        (dict(env_id="probe/Unbounded-v0"), "has no bounds; muzero acts between bounds"),
        (dict(sampled_actions=1), "sampled_actions"),
        (dict(num_simulations=0), "at least 1"),
        (dict(root_exploration_fraction=1.5), "at most 1"),
        (dict(reanalyse_ratio=-0.5), "at least 0"),
        (dict(buffer_size=20), "need a buffer_size of at least"),
        (dict(epsilon=0.1), "muzero has no knob epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MuZeroTrainer(MuZeroConfig(**TINY | changes))


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_planning_without_torch_is_planning_with_torch(activation: str) -> None:
    """Also for a copy of the network, and after an optimizer has moved the parameters."""
    space = spaces.Box(-1, 1, (3,), np.float32)
    network = make_network(space, activation=activation)
    torch.nn.init.normal_(network.prediction[-1].weight)
    assert (network.small is not None) == (activation != "elu")
    for model in (network, copy.deepcopy(network)):
        Adam([model]).parameters.mul_(1.1)
        with torch.no_grad():
            states = [(model.represent(torch.randn(n, 3)), torch.randint(0, 4, (n,))) for n in (1, 5, 16, 37)]
            fast = [model.recurrent(*each) for each in states]
            model.small = None
            for each, found in zip(states, fast, strict=True):
                for one, other in zip(found, model.recurrent(*each), strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_frames_of_a_game_are_learned_from(tmp_path: Any) -> None:
    """Stacks rebuilt from frames that are stored once go through the residual model; all losses are finite."""
    pytest.importorskip("ale_py")
    small = "total_timesteps=60 learning_starts=30 num_envs=2 batch_size=4 num_simulations=2 latent_size=4 "
    small += "support_size=5 buffer_size=3000 max_episode_steps=40 hidden_sizes=[8] eval_interval=60 eval_episodes=1"
    config = load_config("muzero/breakout", ["env_kwargs={frame_size: 36}", *small.split()])
    result = train_muzero(config, run_dir=tmp_path / "run")
    assert {"policy_loss", "value_loss", "reward_loss", "eval/mean_return"} <= result.metrics.keys()
