"""EfficientZero: its schedules, what really ran, its switches, where its targets come from, and the probes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import iterated
from test_muzero_trainer_smoke import (
    CONTINUOUS,
    PROBED,
    SCHEDULES,
    TINY,
    check_budgets,
    check_schedules,
    counted,
    finds_the_best_action,
    finds_the_target,
)

from rl_training import load_config
from rl_training.algorithms.muzero import spread
from rl_training.errors import ConfigError
from rl_training.kernels import winograd
from rl_training.kernels.frame_model import FrameModel
from rl_training.networks.muzero import FrameNorm, by_the_batch
from rl_training.policies import search as search_policy
from rl_training.runtime.controls import Controls
from rl_training.runtime.efficientzero_trainer import (
    EfficientZeroConfig,
    EfficientZeroPolicy,
    EfficientZeroTrainer,
    train_efficientzero,
)
from rl_training.runtime.evaluation import evaluate
from rl_training.settings.loading import load_run_config
from rl_training.state.seeding import seed_everything

SMALL = TINY | dict(prefix_size=6, projection_size=6, unroll_steps=3, td_steps=3, prefix_horizon=2)
OWN: dict[str, Any] = dict(
    policy_coef_schedule={"type": "linear", "start": 1.0, "end": 0.5},
    vf_coef_schedule={"type": "linear", "start": 0.25, "end": 0.5},
    reward_coef_schedule={"type": "linear", "start": 1.0, "end": 2.0},
    consistency_coef_schedule={"type": "linear", "start": 2.0, "end": 1.0},
)


def test_scheduled_values_are_used_and_logged_exactly(tmp_path: Any) -> None:
    config = EfficientZeroConfig(**SMALL | SCHEDULES | OWN)
    metrics = check_schedules(train_efficientzero, config, tmp_path)
    assert metrics["num_simulations"] == 6 and metrics["temperature"] == 0.25
    assert metrics["consistency_coef"] == 1.0 and metrics["reward_coef"] == 2.0
    assert "consistency_loss" in metrics


def test_as_many_simulations_run_as_the_schedule_says_at_every_step(monkeypatch: Any) -> None:
    check_budgets(EfficientZeroTrainer, SMALL, counted(monkeypatch, "muzero_search"))


def test_the_loss_is_the_weighed_sum_of_its_parts() -> None:
    trainer = EfficientZeroTrainer(EfficientZeroConfig(**SMALL))
    now = Controls.of(trainer.config).at(0).after(0)
    now.__dict__ |= dict(policy_coef=2.0, vf_coef=3.0, reward_coef=5.0, consistency_coef=7.0)
    names = ("policy_loss", "value_loss", "reward_loss", "consistency_loss")
    parts = {name: torch.tensor(10.0**i) for i, name in enumerate(names)}
    assert trainer.weighed(parts, now).item() == 7532.0


def trained(env_id: str, steps: int = 600, learned: Any = None, **changes: Any) -> EfficientZeroTrainer:
    settings: dict[str, Any] = dict(batch_size=24, learning_rate=1e-2, vf_coef=1.0, total_timesteps=1000)
    settings |= dict(num_simulations=4, prefix_size=8, projection_size=16, prefix_horizon=2)
    config = EfficientZeroConfig(env_id=f"probe/{env_id}-v0", **PROBED | settings | changes)
    return iterated(EfficientZeroTrainer, config, steps, learned)


def test_the_best_action_is_found() -> None:
    trained("RewardByBoth", learned=finds_the_best_action)
    trained("Target", 800, finds_the_target, **CONTINUOUS)


def test_values_and_prefixes_of_a_probe() -> None:
    """The only reward comes with the second of two steps, γ = 0.9; past the end nothing is earned."""
    falling = dict(learning_rate_schedule={"type": "linear", "delay": 700}, total_timesteps=1200)
    trainer = trained("DelayedReward", 1200, reward_coef=2.0, **falling)
    obs = np.array([[0.0], [1.0]], np.float32)
    np.testing.assert_allclose(trainer.agent.value(obs, ()), [0.9, 1.0], atol=0.1)
    network, rewards = trainer.agent.network, []
    with torch.no_grad():
        *_, latent = network.initial(trainer.agent.inputs(obs[:1]))
        for _ in range(3):
            reward, _, _, latent = network.recurrent(latent, torch.tensor([0]))
            rewards.append(reward.item())
    np.testing.assert_allclose(rewards, [0.0, 1.0, 0.0], atol=0.1)


def test_forbidden_actions_are_never_taken() -> None:
    """The probe raises when one is."""
    trainer = trained("Masked", 120)
    evaluate(trainer.agent, trainer.config, episodes=10, seed=5, sample=True)


@pytest.fixture(scope="module")
def probed() -> EfficientZeroTrainer:
    """A trainer whose target network is behind, with episodes of five steps in its replay."""
    return trained("DiscreteEnding", 200, target_update_interval=1000, reanalyse_values=True)


def drawn(trainer: EfficientZeroTrainer) -> Any:
    np.random.seed(3)
    return trainer.draw(Controls.of(trainer.config).at(0).after(0))


def test_reanalysed_targets_come_from_the_target_network(probed: EfficientZeroTrainer) -> None:
    """All policies and all values bootstrapped from are those that its copy finds, the noise set aside."""
    now = Controls.of(probed.config).at(0).after(0)
    now.__dict__ |= dict(reanalyse_ratio=1.0, root_exploration_fraction=0.0)
    batch = drawn(probed)
    stored = batch["policy"].clone()
    policy, target, *_ = probed.targets(batch, now)
    quiet = dict(num_simulations=4, temperature=0.0, root_exploration_fraction=0.0, gamma=0.9)
    acted, bootstraps = batch["acted"] > 0, batch["discount"] != 0
    assert not acted.all() and bootstraps.any() and not bootstraps.all()

    def planned(places: np.ndarray, network: Any) -> Any:
        return probed.agent.plan(probed.replay.seen_at(places), **quiet, network=network)

    plan = planned(batch["places"][acted.numpy()], probed.target)
    torch.testing.assert_close(policy[acted], torch.from_numpy(plan.policy))
    assert not policy[~acted].any() and not torch.equal(policy, stored)
    assert torch.equal(batch["policy"], stored), "what was drawn stays as it was"
    places = batch["bootstrap"][bootstraps.numpy()]
    value = torch.zeros_like(target)
    value[bootstraps] = torch.from_numpy(planned(places, probed.target).value)
    torch.testing.assert_close(target, batch["returns"] + batch["discount"] * value)
    new = torch.from_numpy(planned(places, probed.agent.network).value)
    assert (new - value[bootstraps]).abs().max() > 0.1, "the network itself would say something else"


def test_without_reanalysis_targets_are_what_was_stored(probed: EfficientZeroTrainer) -> None:
    now = Controls.of(probed.config).at(0).after(0)
    now.__dict__["reanalyse_ratio"] = 0.0
    batch = drawn(probed)
    stored = batch["policy"].clone()
    policy, fresh, *_ = probed.targets(batch, now)
    assert torch.equal(policy, stored), "policies are not searched, values still are"
    plain = trained("DiscreteEnding", 60, reanalyse_values=False, reanalyse_ratio=0.0)
    plain.target.load_state_dict(probed.target.state_dict())
    plain.replay = probed.replay
    bootstraps = batch["discount"] != 0
    obs = probed.agent.inputs(probed.replay.seen_at(batch["bootstrap"][bootstraps.numpy()]))
    expected = batch["returns"].clone()
    expected[bootstraps] += batch["discount"][bootstraps] * probed.target.initial(obs)[1]
    torch.testing.assert_close(plain.targets(batch, now).value, expected)
    assert not torch.equal(fresh, expected)


def test_older_positions_learn_the_values_of_their_searches() -> None:
    """With `mixed_values`, late in the run: those older than a twentieth of it, wherever an action was taken."""
    trainer = trained("DiscreteEnding", 200, mixed_values=True, total_timesteps=400)
    now = Controls.of(trainer.config).at(0).after(0)
    now.__dict__ |= dict(reanalyse_ratio=1.0, root_exploration_fraction=0.0)
    batch, acted = drawn(trainer), drawn(trainer)["acted"] > 0
    # The ring is not full: observations lie in it in the order in which they came, up to `head`.
    assert trainer.replay.head < trainer.replay.capacity
    old = torch.from_numpy(trainer.replay.head - batch["places"][0]) > 0.05 * 400
    assert old.any() and not old.all()
    mixed = trainer.targets(batch, now).value
    plan = trainer.agent.plan(
        trainer.replay.seen_at(batch["places"][acted.numpy()]),
        network=trainer.target,
        root_exploration_fraction=0.0,
    )
    found = torch.zeros_like(mixed)
    found[acted] = torch.from_numpy(plan.value)
    trainer.steps = 119  # too early, before 0.3 of the run: rewards and a bootstrap for all
    plain = trainer.targets(batch, now).value
    torch.testing.assert_close(mixed, torch.where(acted & old, found, plain))
    assert not torch.equal(mixed, plain)


def test_the_search_of_the_second_version(monkeypatch: Any) -> None:
    """Gumbel search in the place of PUCT, in acting and for what is learned."""
    searches = counted(monkeypatch, "gumbel_muzero_search")
    trained("RewardByAction", 400, finds_the_best_action, gumbel_search=True, mixed_values=True)
    assert len(searches) > 20 and set(searches) == {(4, 4)}
    assert issubclass(EfficientZeroTrainer.policy_of(EfficientZeroConfig(**SMALL)), EfficientZeroPolicy)


def test_the_second_version_considers_as_many_actions_as_it_is_told(monkeypatch: Any) -> None:
    """Four as in V2's Atari, unless told; runs from before there was a choice keep their 16."""
    asked, real = [], search_policy.gumbel_muzero_search
    monkeypatch.setattr(
        search_policy,
        "gumbel_muzero_search",
        lambda *given, **more: asked.append(more["max_considered_actions"]) or real(*given, **more),
    )
    config = EfficientZeroConfig(**SMALL, gumbel_search=True)
    for settings in (config, load_config(config, max_considered_actions=2)):
        trainer = EfficientZeroTrainer(settings)
        trainer.agent.act(np.zeros((2, 4), np.float32), (), explore=True)
        trainer.close()
    assert asked == [4, 2]
    written = config.model_dump(mode="json")
    del written["max_considered_actions"]
    assert load_run_config(written).max_considered_actions == 16


def test_nothing_is_compared_past_the_end(probed: EfficientZeroTrainer) -> None:
    batch = drawn(probed)
    there = batch["acted"][:-1] > 0
    assert there.any() and not there.all()
    seed_everything(0)
    imagined = torch.rand(*there.shape, 8)
    imagined[~there] = torch.nan
    imagined.requires_grad_()
    loss = probed.consistency(imagined, batch)["consistency_loss"]
    assert torch.isfinite(loss)
    loss.backward()
    assert imagined.grad is not None
    assert torch.equal((imagined.grad != 0).any(-1), there)
    # The true states themselves are as near as can be, and all weigh 1/K of their row's weight.
    true = probed.agent.network.represent(probed.seen(batch["places"][1:].reshape(-1))).view(*there.shape, 8)
    probed.agent.network.projection.predictor.register_forward_hook(lambda module, inputs, output: inputs[0])
    weights = there * batch["weight"] / len(there) / there.shape[1]
    found = probed.consistency(true, batch)
    torch.testing.assert_close(found["consistency_loss"], -weights.sum())
    torch.testing.assert_close(found["cosine"], torch.ones(()))
    probed.agent.network.projection.predictor._forward_hooks.clear()


SWITCHES: list[dict[str, Any]] = [
    dict(value_prefix=False),
    dict(consistency=False),
    dict(off_policy_correction=False),
    dict(reanalyse_ratio=0.0),
    dict(priority_exponent=0.0),
]


@pytest.mark.parametrize("off", SWITCHES, ids=lambda off: next(iter(off)))
def test_every_part_can_be_left_out(off: dict[str, Any]) -> None:
    """What is left still learns from a batch, and what is off leaves nothing behind."""
    trainer = trained("RewardByBoth", 80, **off)
    network, batch = trainer.agent.network, drawn(trainer)
    found = trainer.update(Controls.of(trainer.config).at(0).after(0))
    assert all(np.isfinite(list(found.values())))
    assert (network.prefix is None) == ("value_prefix" in off)
    assert (network.projection is None) == ("consistency" in off) == ("consistency_loss" not in found)
    assert np.isfinite(trainer.replay.steps_per_cut) == ("off_policy_correction" not in off)
    assert torch.equal(batch["weight"], torch.ones(24)) == ("priority_exponent" in off)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(env_id="probe/TwoChoices-v0"), "actions must be Discrete, Box"),
        (dict(prefix_horizon=0), "prefix_horizon"),
        (dict(horizon_tau=0.0), "horizon_tau"),
        (dict(consistency_coef=-1.0), "at least 0"),
        (dict(reanalyse_ratio=1.5), "at most 1"),
        (dict(mixed_values=True, reanalyse_ratio=0.0), "mixed_values needs a reanalyse_ratio above 0"),
        (dict(mixed_values=True, total_timesteps=10_000), "buffer_size must be above 500 with mixed_values"),
        (
            dict(mixed_values=True, env_id="Pendulum-v1", total_timesteps=2500),
            "buffer_size must be above 500 with mixed_values",
        ),
        (dict(gumbel_search=True, pb_c_init=2.0), "pb_c_init would have no effect, because gumbel_search"),
        (dict(gumbel_search=True, root_exploration_fraction=0.0), "root_exploration_fraction would have no"),
        (dict(gumbel_search=True, dirichlet_alpha_schedule="linear:1"), "dirichlet_alpha would have no"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        EfficientZeroTrainer(EfficientZeroConfig(**SMALL | changes))


def test_one_position_is_enough() -> None:
    """Also for the projector, whose normalisation then sees few rows, or one."""
    trainer = trained("RewardByBoth", 70, batch_size=1, unroll_steps=1)
    assert trainer.updates > 0


def test_frames_of_a_game_are_learned_from(tmp_path: Any) -> None:
    """Stacks rebuilt from frames, moved and brightened, go through the residual model; all losses are finite."""
    pytest.importorskip("ale_py")
    small = "total_timesteps=60 learning_starts=30 num_envs=2 batch_size=4 num_simulations=2 latent_size=4 "
    small += "support_size=5 buffer_size=3000 max_episode_steps=40 hidden_sizes=[8] eval_interval=60 eval_episodes=1 "
    small += "prefix_size=6 projection_size=6"
    config = load_config("efficientzero/breakout", ["env_kwargs={frame_size: 36}", *small.split()])
    result = train_efficientzero(config, run_dir=tmp_path / "run")
    assert {"policy_loss", "value_loss", "reward_loss", "consistency_loss"} <= result.metrics.keys()


@pytest.mark.parametrize("augmentation", [True, False])
def test_only_what_is_learned_from_is_augmented(augmentation: bool) -> None:
    """Searches see frames as they are: those that are augmented differ from them, and from each other."""
    pytest.importorskip("ale_py")
    small = "num_envs=2 num_simulations=2 latent_size=4 support_size=5 buffer_size=3000 hidden_sizes=[8]"
    config = load_config(
        "efficientzero/breakout",
        ["env_kwargs={frame_size: 36}", *small.split(), f"augmentation={augmentation}"],
    )
    trainer = EfficientZeroTrainer(config)
    knobs = Controls.of(config)
    for step in range(0, 40, 2):
        trainer.iterate(knobs.at(step))
    places = np.full(3, trainer.replay.open[0])
    plain = torch.from_numpy(trainer.replay.seen_at(places))
    seen = trainer.seen(places)
    assert seen.shape == plain.shape == (3, 4, 36, 36)
    assert torch.equal(seen, plain) == (not augmentation)
    assert torch.equal(seen[0], seen[1]) == (not augmentation)
    trainer.close()


def on_frames(**changes: Any) -> EfficientZeroTrainer:
    """After 60 steps in each of four games of Breakout, and no update."""
    pytest.importorskip("ale_py")
    small = "num_envs=4 learning_starts=100000 batch_size=16 num_simulations=1 latent_size=16 support_size=10 seed=1 "
    small += "buffer_size=3000 hidden_sizes=[32] prefix_size=32 projection_size=64 unroll_steps=3 "
    small += "reanalyse_ratio=0 reanalyse_values=false"
    config = load_config("efficientzero/breakout", small.split(), **changes)
    seed_everything(1)
    trainer = EfficientZeroTrainer(config)
    for step in range(0, 240, 4):
        trainer.iterate(Controls.of(config).at(step))
    return trainer


def test_latents_of_frames_stay_apart() -> None:
    """Over 50 updates, of batches as they are learned from and of frames as searches see them.

    Without normalisation both spreads fall to a third: nearly one latent for all frames.
    """
    trainer = on_frames()
    now = Controls.of(trainer.config).at(240).after(0)
    places = np.unique(trainer.replay.ready[:200:4] % trainer.replay.capacity)
    frames = trainer.agent.inputs(trainer.replay.seen_at(places))

    def searched() -> float:
        with torch.no_grad():
            return spread(trainer.agent.network.represent(frames))

    before = searched()
    found = [trainer.update(now) for _ in range(50)]
    assert found[0]["latent_spread"] > 0.05 and found[-1]["latent_spread"] > 0.05
    assert found[-1]["latent_spread"] > 0.7 * found[0]["latent_spread"]
    assert searched() > before and searched() > 0.02
    assert all(-1 <= each["cosine"] <= 1 for each in found)
    trainer.close()


def test_searches_normalise_by_running_statistics_and_learning_by_the_batch() -> None:
    trainer = on_frames(target_update_interval=2)
    now = Controls.of(trainer.config).at(240).after(0)
    network = trainer.agent.network
    norms = [module for module in network.modules() if isinstance(module, FrameNorm)]
    kinds = [type(part).__name__ for part in (network.representation, network.dynamics, network.prediction)]
    assert kinds == ["FrameRepresentation", "FrameDynamics", "FrameHeads"] and len(norms) == 16
    frames = trainer.agent.inputs(trainer.replay.seen_at(np.arange(8)))
    with torch.no_grad():
        alone, together = network.represent(frames[:1]), network.represent(frames)[:1]
        torch.testing.assert_close(alone, together)
        before = [norm.mean.clone() for norm in norms]
        with by_the_batch(network):
            assert not torch.allclose(network.represent(frames[:2])[:1], network.represent(frames)[:1])
    moved = [not torch.equal(norm.mean, old) for norm, old in zip(norms, before, strict=True)]
    assert any(moved) and not any(norm.learns for norm in norms)
    for _ in range(2):
        trainer.update(now)
    for mine, its in zip(trainer.target.buffers(), network.buffers(), strict=True):
        assert torch.equal(mine, its), "the target's statistics are copied with its weights"
    trainer.update(now)
    assert not torch.equal(
        trainer.target.representation.layers[1].mean, network.representation.layers[1].mean
    )  # type: ignore
    trainer.close()


def test_one_number_is_normalised_by_running_statistics() -> None:
    norm = FrameNorm(3)
    with by_the_batch(norm):
        assert torch.allclose(norm(torch.ones(1, 3, 1, 1)), torch.ones(1, 3, 1, 1), atol=1e-4)
        norm(torch.ones(1, 3, 1, 2))
    assert norm.variance.isfinite().all()


def test_a_run_from_before_normalisation_has_its_network() -> None:
    """Its config has no `batch_norm`, and no layer is added."""
    written = load_config("efficientzero/breakout").model_dump(mode="json")
    del written["batch_norm"]
    assert not load_run_config(written).batch_norm and load_config("efficientzero/breakout").batch_norm
    network = on_frames(batch_norm=False).agent.network
    assert not any(isinstance(module, FrameNorm) for module in network.modules())
    assert isinstance(network.prediction, torch.nn.Sequential)


def test_a_search_on_frames_is_that_of_torchs_convolutions(monkeypatch: Any) -> None:
    """Channels in sixteens go to our compiled convolutions and products, and no others: both find the same."""
    trainer = on_frames(latent_size=32)
    network = trainer.agent.network
    for part in network.modules():
        if isinstance(part, FrameNorm):
            part.mean.uniform_(-0.2, 0.2)
            part.variance.uniform_(0.5, 2.0)
    seen = trainer.replay.seen_at(np.unique(trainer.replay.ready[:40] % trainer.replay.capacity))
    quiet = dict(num_simulations=8, temperature=0.0, root_exploration_fraction=0.0)
    calls, real = [], winograd._share
    monkeypatch.setattr(winograd, "_share", lambda *given: calls.append(1) or real(*given))
    steps, step = [], FrameModel.recurrent
    monkeypatch.setattr(FrameModel, "recurrent", lambda *given: steps.append(1) or step(*given))
    ours = trainer.agent.plan(seen, **quiet)
    assert len(calls) >= 3 + 8, "three sections of the representation, and each simulation"
    assert len(steps) == 8
    monkeypatch.setattr(winograd, "_is_for_us", lambda *given: False)
    monkeypatch.setattr(type(network), "searching", lambda network: network.recurrent)
    calls.clear()
    torchs = trainer.agent.plan(seen, **quiet)
    assert not calls and len(steps) == 8
    np.testing.assert_allclose(ours.value, torchs.value, rtol=1e-3, atol=1e-4)
    # Where two actions are nearly as good rounding may decide.
    same = np.isclose(ours.policy, torchs.policy, rtol=1e-3, atol=1e-4).all(1)
    assert same.mean() > 0.9 and (ours.action == torchs.action)[same].all()
    trainer.close()


def test_a_frame_that_several_rows_need_is_represented_once(monkeypatch: Any) -> None:
    """Searched positions and those that values are bootstrapped from, of all rows of a batch."""
    trainer = on_frames()
    now = Controls.of(trainer.config).at(240).after(0)
    now.__dict__ |= dict(reanalyse_ratio=1.0, temperature=0.0, root_exploration_fraction=0.0)
    batch, network = drawn(trainer), trainer.target
    counts, real = [], network.represent
    monkeypatch.setattr(network, "represent", lambda obs: counts.append(len(obs)) or real(obs))
    policy, value, *_ = trainer.targets(batch, now)
    acted, bootstraps = batch["acted"] > 0, batch["discount"] != 0
    searched, ends = batch["places"][acted.numpy()], batch["bootstrap"][bootstraps.numpy()]
    every = len(np.unique(np.concatenate([searched, ends])))
    assert counts == [every] and every < len(np.unique(searched)) + len(ends)
    plan = trainer.agent.plan(
        trainer.replay.seen_at(searched), temperature=0.0, root_exploration_fraction=0.0, network=network
    )
    torch.testing.assert_close(policy[acted], torch.from_numpy(plan.policy))
    expected = batch["returns"].clone()
    inputs = trainer.agent.inputs(trainer.replay.seen_at(ends))
    with torch.no_grad():
        expected[bootstraps] += batch["discount"][bootstraps] * network.initial(inputs)[1]
    torch.testing.assert_close(value, expected)
    trainer.close()


def test_a_network_of_ones_own_that_knows_observations_alone_is_given_them() -> None:
    """Also where states of frames would be represented once."""
    trainer = on_frames()
    now = Controls.of(trainer.config).at(240).after(0)
    now.__dict__ |= dict(reanalyse_ratio=1.0, temperature=0.0, root_exploration_fraction=0.0)
    batch, seen = drawn(trainer), []
    expected = trainer.targets(batch, now)

    class Own(type(trainer.target)):  # type: ignore[misc]
        def initial(self, obs: Any) -> Any:
            seen.append(len(obs))
            return super().initial(obs)

    trainer.target.__class__ = Own
    found = trainer.targets(batch, now)
    assert len(seen) == 2
    torch.testing.assert_close(found.value, expected.value, rtol=1e-3, atol=1e-4)
    trainer.close()
