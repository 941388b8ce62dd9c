"""ScaleZero: its schedules, what really ran, several tasks at once, the solved pool, and policies that are named."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from runs import iterated, knobs_in_training_lines, read_lines
from test_muzero_trainer_smoke import TINY as PLANNER
from test_muzero_trainer_smoke import counted

from rl_training import evaluate_checkpoint, load_config, load_policy
from rl_training.errors import ConfigError
from rl_training.policies import scalezero as scalezero_policy
from rl_training.runtime.controls import Controls
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.scalezero_trainer import LOSSES, ScaleZeroConfig, ScaleZeroTrainer, train_scalezero
from rl_training.state.seeding import seed_everything
from rl_training.tools.playing import play_run

TWO = ("CartPole-v1", "Acrobot-v1")
TINY: dict[str, Any] = {
    name: value for name, value in PLANNER.items() if name not in ("env_id", "target_update_interval")
} | dict(
    env_ids=TWO,
    max_episode_steps=40,
    unroll_steps=3,
    td_steps=3,
    context_steps=1,
    heads=2,
    experts=2,
    expert_size=8,
    stages=3,
    rank=2,
    solved_returns={"CartPole-v1": None, "Acrobot-v1": None},
)
SCHEDULES: dict[str, Any] = dict(
    num_simulations_schedule={"type": "linear", "start": 2, "end": 6},
    temperature_schedule={"type": "linear", "start": 1.0, "end": 0.25},
    root_exploration_fraction_schedule={"type": "linear", "start": 0.5, "end": 0.1},
    learning_rate_schedule={"type": "cosine", "start": 1e-2, "end": 1e-3},
    policy_coef_schedule={"type": "linear", "start": 1.0, "end": 0.5},
    vf_coef_schedule={"type": "linear", "start": 0.25, "end": 0.5},
    reward_coef_schedule={"type": "linear", "start": 1.0, "end": 2.0},
    latent_coef_schedule={"type": "linear", "start": 10.0, "end": 5.0},
    tau_schedule={"type": "linear", "start": 0.1, "end": 0.05},
)


def test_scheduled_values_are_used_and_logged_exactly(tmp_path: Any) -> None:
    config = ScaleZeroConfig(**TINY | SCHEDULES)
    result = train_scalezero(config, run_dir=tmp_path / "run")
    assert result.metrics["num_simulations"] == 6
    assert result.metrics["temperature"] == 0.25
    assert result.metrics["root_exploration_fraction"] == 0.1
    assert result.metrics["latent_coef"] == 5.0 and result.metrics["reward_coef"] == 2.0
    lines = [line for line in read_lines(result) if "num_simulations" in line]
    assert [line["num_simulations"] for line in lines] == [
        3,
        3,
        4,
        5,
        5,
        6,
    ]  # a half goes to the even neighbour
    assert [line["temperature"] for line in lines] == [1 - 0.75 * line["step"] / 240 for line in lines]
    knobs_in_training_lines(result, config)
    losses = {"policy_loss", "value_loss", "reward_loss", "latent_loss"}
    assert losses | {"loss", "grad_norm", "stage", "env_steps", "saved_share"} <= result.metrics.keys()
    for task in TWO:
        assert {f"task/{task}/{name}" for name in (*losses, "steps", "solved")} <= result.metrics.keys()
        assert f"eval/task/{task}/mean_return" in result.metrics
        assert result.metrics[f"task/{task}/steps"] == 120
    mean = np.mean([result.metrics[f"eval/task/{task}/mean_return"] for task in TWO])
    assert result.metrics["eval/mean_return"] == pytest.approx(mean)


def test_evaluation_and_policies_name_their_task(tmp_path: Any) -> None:
    result = train_scalezero(ScaleZeroConfig(**TINY | dict(total_timesteps=80)), run_dir=tmp_path / "run")
    scores = evaluate_checkpoint(tmp_path / "run", episodes=2, seed=4)
    assert scores["episodes"] == 4 and scores["task/Acrobot-v1/episodes"] == 2
    for task in TWO:
        alone = evaluate_checkpoint(result.checkpoint_path, episodes=2, seed=4, task=task)
        assert alone["mean_return"] == scores[f"task/{task}/mean_return"]
    pole, acrobot = (load_policy(result.checkpoint_path, task=task) for task in TWO)
    assert pole.act(np.zeros(4, np.float32)) in (0, 1)
    assert pole.act(np.zeros((3, 4), np.float32)).shape == (3,)
    assert acrobot.act(np.zeros(6, np.float32)) in (0, 1, 2) and acrobot.action_space.n == 3
    assert acrobot.agent.settings["num_simulations"] == 4
    with pytest.raises(ValueError, match="expects"):
        acrobot.act(np.zeros(4, np.float32))
    for call in (load_policy, play_run):
        with pytest.raises(ConfigError, match=r"plays CartPole-v1, Acrobot-v1: name one of them"):
            call(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no task 'Acrobot-v2'; did you mean Acrobot-v1\?"):
        load_policy(tmp_path / "run", task="Acrobot-v2")


def test_one_task_needs_no_name(tmp_path: Any) -> None:
    config = ScaleZeroConfig(**TINY | dict(env_ids=["CartPole-v1"], solved_returns={}, total_timesteps=60))
    assert config == ScaleZeroConfig(
        **{name: value for name, value in TINY.items() if name != "env_ids"}
        | dict(env_id="CartPole-v1", solved_returns={}, total_timesteps=60)
    )
    train_scalezero(config, run_dir=tmp_path / "run")
    assert load_policy(tmp_path / "run").act(np.zeros(4, np.float32)) in (0, 1)


def test_as_many_simulations_run_as_the_schedule_says_at_every_step(monkeypatch: Any) -> None:
    """One search for both tasks, of as many simulations as the knob says at that step."""
    searches = counted(monkeypatch, "gumbel_muzero_search", scalezero_policy)
    schedule = {"type": "step", "points": [[0, 3], [20, 7], [40, 1]]}
    config = ScaleZeroConfig(**TINY | dict(num_simulations_schedule=schedule, learning_starts=1000))
    trainer, knobs = ScaleZeroTrainer(config), Controls.of(config)
    for step in range(0, 60, 4):
        trainer.iterate(knobs.at(step))
    assert searches == [(3, 3)] * 5 + [(7, 7)] * 5 + [(1, 1)] * 5
    searches.clear()
    policy = trainer.agent.for_task("CartPole-v1")
    policy.act(np.zeros((1, 4), np.float32), policy.initial(1), explore=False)
    assert searches == [(1, 1)], "evaluation searches as long as training did last"


def test_a_search_has_noise_where_it_explores_and_none_where_it_does_not(monkeypatch: Any) -> None:
    real, drawn = scalezero_policy.gumbel_muzero_search, []

    def search(*inputs: Any, **options: Any) -> Any:
        drawn.append(float(np.abs(options["gumbel"]).max()))
        return real(*inputs, **options)

    monkeypatch.setattr(scalezero_policy, "gumbel_muzero_search", search)
    policy = ScaleZeroTrainer(ScaleZeroConfig(**TINY)).agent.for_task("CartPole-v1")
    for explore in (True, False):
        policy.act(np.zeros((3, 4), np.float32), policy.initial(3), explore)
    assert drawn[0] > 0 and drawn[1:] == [0.0]


@pytest.mark.parametrize(("persistence", "share"), [(0.0, 0.0), (0.75, 0.75)])
def test_noise_lasts_as_long_as_it_should(persistence: float, share: float, monkeypatch: Any) -> None:
    """What the searches got, times the temperature, from one step to the next in each environment."""
    real, drawn = scalezero_policy.gumbel_muzero_search, []

    def search(*inputs: Any, **options: Any) -> Any:
        drawn.append(options["gumbel"])
        return real(*inputs, **options)

    monkeypatch.setattr(scalezero_policy, "gumbel_muzero_search", search)
    changes = dict(
        noise_persistence=persistence, num_envs=10, temperature=0.5, buffer_size=2000, learning_starts=9999
    )
    config = ScaleZeroConfig(**TINY | changes)
    seed_everything(3)
    trainer, knobs = ScaleZeroTrainer(config), Controls.of(config)
    for step in range(0, 800, 20):
        trainer.iterate(knobs.at(step))
    same = [(one == other).all(1) for one, other in itertools.pairwise(drawn)]
    assert np.mean(same) == pytest.approx(share, abs=0.05)
    assert np.std(drawn) == pytest.approx(0.5 * np.pi / 6**0.5, rel=0.1)


def test_the_loss_is_the_weighed_sum_of_its_parts() -> None:
    trainer = ScaleZeroTrainer(ScaleZeroConfig(**TINY))
    now = Controls.of(trainer.config).at(0).after(0)
    now.__dict__ |= dict(policy_coef=2.0, vf_coef=3.0, reward_coef=5.0, latent_coef=7.0)
    names = ("policy_loss", "value_loss", "reward_loss", "latent_loss")
    parts = {name: torch.tensor(10.0**i) for i, name in enumerate(names)}
    assert trainer.weighed(parts, now).item() == 7532.0


def filled(**changes: Any) -> tuple[ScaleZeroTrainer, Any]:
    """A trainer with some episodes in its replays and no update yet, and the knobs as they stand."""
    config = ScaleZeroConfig(**TINY | dict(learning_starts=10**6, total_timesteps=10**6) | changes)
    trainer = iterated(ScaleZeroTrainer, config, 400)
    return trainer, Controls.of(config).at(400).after(0)


def test_tasks_weigh_what_they_are_given() -> None:
    names = ScaleZeroConfig(**TINY).env_ids
    trainer, now = filled(task_weights={names[1]: 3.0})
    found = trainer.update(now)
    one, other = (
        trainer.weighed({part: found[f"task/{name}/{part}"] for part in LOSSES}, now) for name in names
    )
    assert len(names) == 2 and found["loss"] == pytest.approx(one + 3 * other, rel=1e-5)
    assert found["loss"] != pytest.approx(one + other, rel=1e-2)


def test_the_copy_follows_by_tau_also_what_does_not_learn() -> None:
    trainer, now = filled()
    trainer.update(now)  # heads begin at zero, and let nothing through to the transformer
    before = {name: weights.clone() for name, weights in trainer.target_weights.items()}
    now.__dict__ |= dict(tau=0.25)
    trainer.update(now)
    for name, weights in trainer.target_weights.items():
        learned = trainer.optimizer.groups[name].parameters
        torch.testing.assert_close(weights, before[name] + 0.25 * (learned - before[name]))
    assert not torch.equal(trainer.target_weights["stage 0"], before["stage 0"])


def test_value_targets_bootstrap_from_the_copy_of_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, now = filled(batch_size=64)
    batches = [trainer.draw(task, now) for task in trainer.tasks]
    assert all((batch["discount"] != 0).any() for batch in batches)
    assert (batches[0]["discount"] == 0).any(), "a pole falls, and nothing is earned after it"
    told = {0: 10.0, 1: 20.0}

    def values(rows: Any, *context: Any) -> torch.Tensor:
        return torch.cat(
            [torch.full((n,), told[task]) for task, n in zip(rows.tasks, rows.counts, strict=True)]
        )

    monkeypatch.setattr(trainer.target, "values", values)
    targets = trainer.value_targets(trainer.tasks, batches)
    for task, target, batch in zip(trainer.tasks, targets, batches, strict=True):
        torch.testing.assert_close(target, batch["returns"] + batch["discount"] * told[task.number])


def test_bootstraps_see_what_acting_sees() -> None:
    """After each of some steps, what leads to the newest observations is the memory that acting has of it."""
    trainer, _ = filled(context_steps=2, learning_starts=10**6)
    knobs, lengths = Controls.of(trainer.config), set()
    for step in range(60):
        trainer.iterate(knobs.at(4 * step))
        for task in trainer.tasks:
            newest = task.replay.open % task.replay.capacity
            latents, actions, past = task.context(newest, 2, trainer.agent, trainer.target, trainer.stage)
            remembered, taken, count = task.carry
            assert torch.equal(past, count)
            lengths |= set(past.tolist())
            for row, steps in enumerate(past.tolist()):
                torch.testing.assert_close(
                    latents[row, :steps], remembered[row, :steps], atol=1e-4, rtol=1e-4
                )
                assert torch.equal(actions[row, :steps], taken[row, :steps])
    assert lengths == {0, 1, 2}
    trainer.close()


def test_no_task_is_solved_before_the_first_stage_may_end() -> None:
    """What it rests on would go on learning from the other."""
    returns = {"CartPole-v1": 1.0, "Acrobot-v1": None}
    trainer, _ = filled(solved_returns=returns, solved_episodes=1, stage_min_updates=5, confirm_episodes=0)
    assert not trainer.tasks[0].solved
    trainer.stage_updates = 5
    trainer.settle()
    assert trainer.tasks[0].solved and not trainer.tasks[1].solved and trainer.stage == 1


def leaves(trainer: ScaleZeroTrainer, group: str) -> torch.Tensor:
    return trainer.optimizer.groups[group].parameters.clone()


def test_a_solved_task_gets_no_more_steps_and_no_more_gradient() -> None:
    """CartPole counts as solved after a few random episodes; from then on all is for the other task alone."""
    config = ScaleZeroConfig(
        **TINY
        | dict(solved_returns={"CartPole-v1": 9.0, "Acrobot-v1": None}, solved_episodes=4, buffer_size=2000)
        | dict(stage_min_updates=0, total_timesteps=2000, confirm_episodes=0)
    )
    seed_everything(1)
    trainer, knobs = ScaleZeroTrainer(config), Controls.of(config)
    pole, acrobot = trainer.tasks
    step = 0
    while not pole.solved:
        trainer.iterate(knobs.at(step))
        step += 4
        assert pole.steps == acrobot.steps == step // 2
    assert trainer.stage == 1 and trainer.agent.stages == [0, 1], (
        "what solved it is frozen, an adapter begins"
    )
    names = ("task 0", "task 1", "stage 0", "stage 1")
    before = {name: leaves(trainer, name) for name in names}
    played, stored = pole.steps, len(pole.replay)
    env = pole.environments.obs.copy()
    probe = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    known = trainer.agent.for_task("CartPole-v1").value(probe, ())
    for _ in range(40):
        trainer.iterate(knobs.at(step))
        step += 4
    assert pole.steps == played and len(pole.replay) == stored and np.array_equal(env, pole.environments.obs)
    assert acrobot.steps == played + 80 and trainer.steps == step
    moved = {name: not torch.equal(leaves(trainer, name), before[name]) for name in names}
    assert moved == {"task 0": False, "task 1": True, "stage 0": False, "stage 1": True}
    after = trainer.agent.for_task("CartPole-v1").value(probe, ())
    assert np.array_equal(known, after), "a solved task goes on acting with the weights that solved it"
    line = trainer.standing()
    assert line["env_steps"] == 2 * played + 80 and line["saved_share"] == pytest.approx(80 / step)
    assert line["task/CartPole-v1/solved"] == 1 and line["task/Acrobot-v1/solved"] == 0
    trainer.close()


def test_a_run_whose_tasks_are_all_solved_ends_without_them(tmp_path: Any) -> None:
    config = ScaleZeroConfig(
        **TINY | dict(env_ids=["CartPole-v1"], solved_returns={"CartPole-v1": 1.0}, solved_episodes=1)
    )
    result = train_scalezero(config, run_dir=tmp_path / "run")
    assert result.metrics["task/CartPole-v1/solved"] == 1 and result.metrics["saved_share"] > 0.2
    greedy = result.metrics["env_steps"] - result.metrics["task/CartPole-v1/steps"]
    assert 50 < greedy < 400, "ten greedy episodes confirmed it, and their steps count"
    assert read_lines(result)[-1]["step"] == 240


def trained(env_id: str, steps: int = 600, learned: Any = None, **changes: Any) -> ScaleZeroTrainer:
    settings: dict[str, Any] = dict(learning_starts=60, batch_size=24, hidden_sizes=[16], latent_size=16)
    settings |= dict(
        gamma=0.9, learning_rate=1e-2, tau=0.1, buffer_size=4000, total_timesteps=10**6, replay_ratio=0.5
    )
    settings |= dict(
        num_simulations=4, support_size=5, num_envs=4, unroll_steps=3, td_steps=3, context_steps=0
    )
    settings |= dict(heads=2, experts=2, expert_size=16, stages=2, rank=2)
    config = ScaleZeroConfig(env_ids=[f"probe/{name}-v0" for name in env_id.split()], **settings | changes)
    return iterated(ScaleZeroTrainer, config, steps, learned)


def test_the_best_actions_of_two_tasks_are_found_by_one_model() -> None:
    def learned(trainer: ScaleZeroTrainer) -> None:
        scores = evaluate(trainer.agent, trainer.config, episodes=30, seed=5)
        assert scores["task/probe/RewardByBoth-v0/mean_return"] == 1.0
        assert scores["task/probe/RewardByAction-v0/mean_return"] == 1.0

    trained("RewardByBoth RewardByAction", 800, learned, replay_ratio=0.25)


def test_values_and_rewards_of_a_probe() -> None:
    """The only reward comes with the second of two steps, γ = 0.9."""
    trainer = trained("DelayedReward", 600, learning_rate=3e-3, vf_coef=1.0)
    obs = np.array([[0.0], [1.0]], np.float32)
    policy = trainer.agent.for_task("probe/DelayedReward-v0")
    np.testing.assert_allclose(policy.value(obs, ()), [0.9, 1.0], atol=0.15)


def test_memory_finds_what_one_observation_does_not_show() -> None:
    """The cue is seen once; only a policy that looks back at it can earn more than half."""

    def learned(trainer: ScaleZeroTrainer) -> None:
        assert evaluate(trainer.agent, trainer.config, episodes=40, seed=5)["mean_return"] > 0.9

    settings = dict(context_steps=2, unroll_steps=3, num_simulations=2, td_steps=2)
    trained("ShortRecall", 1000, learned, **settings)


def test_forbidden_actions_are_never_taken() -> None:
    """The probe raises when one is."""
    trainer = trained("Masked RewardByAction", 160, root_exploration_fraction=0.2)
    evaluate(trainer.agent, trainer.config, episodes=10, seed=5, sample=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_ids=["Pendulum-v1"], solved_returns={}), "actions must be Discrete"),
        (
            dict(env_ids=["CartPole-v1", "NoSuchEnv-v0"], solved_returns={}),
            "NoSuchEnv-v0.* is not registered",
        ),
        (dict(env_ids=[], solved_returns={}), "env_ids is missing"),
        (dict(env_ids=["CartPole-v1"] * 2, solved_returns={}), "each once"),
        (dict(env_id="Acrobot-v1"), "env_id 'Acrobot-v1' and env_ids say different things"),
        (dict(solved_returns={"CartPole-v0": 3.0}), "CartPole-v0 is none of env_ids"),
        (dict(solved_returns={"CartPole-v1": "high"}), "must be a number"),
        (dict(task_kwargs={"CartPole-v1": 3}), "must be a mapping"),
        (dict(task_weights={"CartPole-v0": 3.0}), "CartPole-v0 is none of env_ids"),
        (dict(task_weights={"CartPole-v1": 0}), "must be a number above 0"),
        (dict(heads=3), "heads must divide latent_size 8"),
        (dict(context_steps=3), "context_steps must be below unroll_steps 3"),
        (
            dict(stage_min_updates=9, stage_max_updates=8),
            "stage_min_updates must be at most stage_max_updates 8",
        ),
        (dict(latent_coef=-1.0), "at least 0"),
        (dict(normalize_rewards=True), "normalize_rewards must be false"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        ScaleZeroTrainer(ScaleZeroConfig(**TINY | changes))


def test_arguments_of_single_tasks() -> None:
    kwargs = {"Acrobot-v1": {"render_mode": "rgb_array"}}
    config = ScaleZeroConfig(**TINY | dict(task_kwargs=kwargs))
    assert config.of_task("Acrobot-v1").env_kwargs == {"render_mode": "rgb_array"}
    assert config.of_task("CartPole-v1").env_kwargs == {}


@pytest.mark.parametrize("name", ["scalezero/classic", "scalezero/cartpole"])
def test_shipped_configs_name_their_tasks(name: str) -> None:
    config = load_config(name)
    assert "CartPole-v1" in config.env_ids and config.env_id == "+".join(config.env_ids)


def test_two_games_are_learned_from_at_once(tmp_path: Any) -> None:
    """Stacks rebuilt from frames go through one encoder; all losses are finite."""
    pytest.importorskip("ale_py")
    small = "total_timesteps=80 learning_starts=40 num_envs=2 batch_size=4 num_simulations=2 latent_size=8 heads=2 "
    small += "support_size=5 buffer_size=3000 max_episode_steps=40 eval_interval=80 eval_episodes=1 unroll_steps=3 "
    small += "context_steps=1 td_steps=2 experts=2 expert_size=8 layers=1 rank=2"
    config = load_config("scalezero/atari", ["env_kwargs={frame_size: 36}", *small.split()])
    result = train_scalezero(config, run_dir=tmp_path / "run")
    for game in config.env_ids:
        assert f"eval/task/{game}/mean_return" in result.metrics
        for loss in ("policy", "value", "reward", "latent"):
            assert np.isfinite(result.metrics[f"task/{game}/{loss}_loss"])
