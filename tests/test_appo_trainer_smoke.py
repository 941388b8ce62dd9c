"""APPO end to end, short: schedules arrive in the metrics exactly, its maths, and every kind of environment trains."""

import math
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import torch
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines
from updates import perturb, warmed

from rl_training import evaluate_checkpoint
from rl_training.algorithms.appo import SCALES, adapt_scale, anchor_log_prob, appo_loss
from rl_training.algorithms.ppo import ppo_loss
from rl_training.data.circular import CircularBuffer
from rl_training.errors import ConfigError
from rl_training.runtime.appo_trainer import APPOConfig, APPOTrainer, train_appo
from rl_training.runtime.controls import Controls, resolve_clip_coefficient, resolve_entropy_coefficient
from rl_training.state.seeding import seed_everything
from rl_training.state.segments import SegmentStore

SMALL = TINY | dict(num_actors=2, num_steps=16, num_minibatches=2, update_epochs=2, fleet="inline")


def test_scheduled_coefficients_are_applied_and_logged(tmp_path):
    config = APPOConfig(
        **SMALL | dict(fleet="local"),
        ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02},
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
        tau_schedule={"type": "linear", "start": 1.0, "end": 0.5},
        rho_bar_schedule={"type": "linear", "start": 1.0, "end": 2.0},
        kl_coef_schedule={"type": "linear", "start": 0.0, "end": 0.25},
    )
    result = train_appo(config, run_dir=tmp_path / "run")
    final = {"ent_coef": 0.02, "clip_coef": 0.1, "tau": 0.5, "rho_bar": 2.0, "kl_coef": 0.25}
    assert {name: result.metrics[name] for name in final} == final
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["step"] == 64  # 2 actors × 2 environments × 16 steps
    assert lines[0]["ent_coef"] == resolve_entropy_coefficient(config, step=64)
    assert lines[0]["clip_coef"] == resolve_clip_coefficient(config, step=64)
    assert lines[0]["clip_coef"] == pytest.approx(0.3 - 0.2 * 64 / 600)
    expected = {
        "policy_loss",
        "value_loss",
        "entropy",
        "explained_variance",
        "grad_norm",
        "clip_fraction",
        "kl",
    }
    expected |= {"policy_lag_mean", "policy_lag_p95", "policy_lag_max", "rho_mean", "rho_clipped"}
    assert expected <= result.metrics.keys()
    assert evaluate_checkpoint(tmp_path / "run", episodes=2)["episodes"] == 2


def test_clip_range_is_another_name_for_it(tmp_path):
    config = APPOConfig(**SMALL, clip_range=0.25)
    assert train_appo(config, run_dir=tmp_path / "run").metrics["clip_coef"] == 0.25


def test_the_clip_coefficient_really_acts(tmp_path):
    none, all_free = clip_fractions(train_appo, APPOConfig, SMALL, tmp_path)
    assert none > 0.4 and all_free == 0


def test_the_anchor_is_the_target_unless_the_actor_was_far_likelier():
    target, behaviour = torch.tensor([0.5, 0.1, 0.2]).log(), torch.tensor([0.3, 0.8, 0.4]).log()
    torch.testing.assert_close(anchor_log_prob(target, behaviour).exp(), torch.tensor([0.5, 0.4, 0.2]))
    # The paper's form of the ratio: min(μ / π_target, 2) · π / μ.
    log_prob = torch.tensor([0.6, 0.3, 0.9]).log()
    written = (behaviour - target).exp().clamp(max=2.0) * (log_prob - behaviour).exp()
    torch.testing.assert_close((log_prob - anchor_log_prob(target, behaviour)).exp(), written)


def test_the_loss_is_ppos_and_the_divergence():
    rows = {name: torch.randn(6) for name in ("log_prob", "value", "advantage", "return")}
    log_prob, entropy, value, divergence = torch.randn(6), torch.rand(6), torch.randn(6), torch.rand(6)
    knobs = dict(clip_coef=0.2, ent_coef=0.01, vf_coef=0.5)
    plain, _ = ppo_loss(log_prob, entropy, value, rows, **knobs)
    loss, parts = appo_loss(log_prob, entropy, value, divergence, rows, **knobs, kl_coef=2.0)
    assert loss.item() == pytest.approx(plain.item() + 2.0 * divergence.mean().item())
    assert parts["kl"].item() == pytest.approx(divergence.mean().item())


def test_the_target_network_follows_at_its_own_pace():
    config = APPOConfig(**SMALL, target_update_interval=2, tau=0.25, learning_rate=1e-2)
    trainer = APPOTrainer(config)
    knobs = Controls.of(config).at(0)
    start = trainer.optimizer.parameters.clone()
    assert torch.equal(trainer.target_parameters, start)
    trainer.iterate(knobs)
    assert torch.equal(trainer.target_parameters, start)  # not before the second
    trainer.iterate(knobs)
    torch.testing.assert_close(trainer.target_parameters, start.lerp(trainer.optimizer.parameters, 0.25))
    assert not torch.equal(trainer.target_parameters, start)
    # It is the network, not a copy beside it, and sees observations as the online one does.
    assert trainer.target.network.critic_head.bias.data_ptr() > 0
    vector = torch.cat([parameter.flatten() for parameter in trainer.target.network.parameters()])
    assert (
        torch.equal(vector, trainer.target_parameters)
        and trainer.target.normalizer is trainer.agent.normalizer
    )
    trainer.close()


def test_a_large_weight_of_the_divergence_holds_the_policy(tmp_path):
    settings = SMALL | dict(learning_rate=1e-2, update_epochs=4, tau=0.0)
    kls = [
        train_appo(APPOConfig(**settings, kl_coef=coef), run_dir=tmp_path / str(coef)).metrics["kl"]
        for coef in (0.0, 100.0)
    ]
    assert kls[1] < 0.2 * kls[0]


def test_an_update_ends_early_once_the_policy_is_far_away(tmp_path):
    settings = SMALL | dict(learning_rate=3e-2, update_epochs=20)
    kls = [
        train_appo(APPOConfig(**settings, target_kl=target), run_dir=tmp_path / str(target)).metrics["kl"]
        for target in (None, 1e-3)
    ]
    assert kls[1] < kls[0] and math.isfinite(kls[1])


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True)),
        ("Pendulum-v1", dict(cell="lstm", normalize_observations=True, kl_coef=0.1)),
        ("probe/TwoChoices-v0", dict(value_clip_coef=0.2)),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, image_encoder="impala")),
        ("probe/Masked-v0", dict(cell="gru", recurrent_size=8)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = APPOConfig(**SMALL | dict(env_id=env_id, total_timesteps=256, max_episode_steps=20) | changes)
    assert_learned(train_appo(config, run_dir=tmp_path / "run"), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(cell="lstm", num_minibatches=5),
            "num_minibatches must be at most the 4 environments of a batch",
        ),
        (dict(num_minibatches=65), "num_minibatches must be at most"),
        (dict(tau=1.5), "tau must be at most 1"),
        (dict(target_update_interval=0), "target_update_interval must be at least 1"),
        (dict(max_lag=1), "max_lag needs order: arrival"),
        (dict(kl_coef_target=0.01), "kl_coef_target needs a kl_coef above 0"),
        (dict(buffer_batches=4), "buffer_batches needs batch_uses above 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        APPOConfig(**SMALL | changes)


@pytest.mark.parametrize(("target_kl", "moves"), [(1e-9, False), (100.0, True)])
def test_a_step_from_a_policy_that_is_too_far_is_not_taken(target_kl: float, moves: bool) -> None:
    settings = dict(env_id="CartPole-v1", total_timesteps=1000, num_steps=8, hidden_sizes=[8], fleet="inline")
    trainer = warmed("appo", 1, **settings, target_kl=target_kl)
    perturb(trainer.agent.network)
    before = trainer.optimizer.parameters.clone()
    metrics = trainer.iterate(Controls.of(trainer.config).at(0))
    trainer.close()
    assert torch.equal(before, trainer.optimizer.parameters) != moves
    assert metrics.means()["kl"] > 1e-3 and ("grad_norm" in metrics.means()) == moves


def test_the_coefficient_follows_the_divergence_by_rllibs_rule():
    kls = [0.021, 0.0199, 0.0051, 0.0049]
    assert [adapt_scale(2.0, kl, 0.01) for kl in kls] == [3.0, 2.0, 2.0, 1.0]
    assert adapt_scale(SCALES[0], 0.0, 0.01) == SCALES[0] and adapt_scale(SCALES[1], 1.0, 0.01) == SCALES[1]


def test_the_adapted_coefficient_is_what_the_loss_has(monkeypatch):
    """Each update's last divergence decides the coefficient of the next; the knob is only scaled."""
    settings = SMALL | dict(kl_coef=0.5, kl_coef_target=1e-3, learning_rate=1e-2, compiled_updates=False)
    trainer = APPOTrainer(APPOConfig(**settings))
    knobs, seen = Controls.of(trainer.config).at(0), []

    def watched(*said, kl_coef, **rest):
        loss, parts = appo_loss(*said, kl_coef=kl_coef, **rest)
        seen.append((kl_coef, float(parts["kl"])))
        return loss, parts

    monkeypatch.setattr("rl_training.runtime.appo_trainer.appo_loss", watched)
    expected = 0.5
    for _ in range(6):
        seen.clear()
        metrics = trainer.iterate(knobs)
        assert [coef for coef, _ in seen] == pytest.approx([expected] * 4)
        expected = 0.5 * adapt_scale(expected / 0.5, seen[-1][1], 1e-3)
        assert metrics.standing["kl_coef_adapted"] == pytest.approx(expected)
    assert expected != 0.5
    # Switched off, it leaves kl_coef as it is.
    off = APPOConfig(**SMALL, kl_coef=0.5)
    metrics = trainer.iterate(Controls.of(off).at(0))
    assert trainer.kl_scale == 1.0 and seen[-1][0] == 0.5 and "kl_coef_adapted" not in metrics.standing
    trainer.close()


def test_the_scale_is_state_whether_the_config_adapts_it_or_not():
    """The knob may come with a fork or while a run goes on: every state loads with and without it, older ones too."""
    plain = APPOTrainer(APPOConfig(**SMALL, kl_coef=0.5))
    adaptive = APPOTrainer(APPOConfig(**SMALL, kl_coef=0.5, kl_coef_target=1e-3))
    plain.kl_scale = 0.25  # as after kl_coef_target was set
    adaptive.load_state_dict(plain.state_dict())
    assert adaptive.kl_scale == 0.25
    adaptive.kl_scale = 3.0
    plain.load_state_dict(adaptive.state_dict())
    assert plain.kl_scale == 3.0
    for trainer in (plain, adaptive):
        older = trainer.state_dict()
        del older["kl_scale"]
        trainer.load_state_dict(older)
        assert trainer.kl_scale == 1.0
        trainer.close()


def numbered_buffer(capacity, uses):
    """A buffer of batches of 2 steps in 3 lanes whose rewards are their number."""
    columns = dict(obs=np.zeros((3, 3, 2), np.float32), action=np.zeros((2, 3), np.int64))
    columns |= {name: np.zeros((2, 3), np.float32) for name in ("log_prob", "reward")}
    columns |= {name: np.zeros((2, 3), np.bool_) for name in ("terminated", "truncated")}
    memory = (torch.zeros(3, 4),)
    buffer = CircularBuffer(capacity, uses, columns, memory, gym.spaces.Discrete(2))

    def batch(number):
        rows = {name: torch.from_numpy(column) for name, column in columns.items()}
        rows["reward"].fill_(number)  # in place, as actors write over what they have sent
        cut = [(1, 2, np.full(2, number, np.float32))] * (number % 2)
        return {**rows, "cut": cut, "carry": (torch.full((3, 4), float(number)),)}

    return buffer, batch


@pytest.mark.parametrize(("capacity", "uses"), [(1, 3), (4, 2), (8, 2), (3, 5)])
def test_a_batch_is_used_at_most_so_often_and_never_once_it_is_replaced(capacity, uses):
    buffer, batch = numbered_buffer(capacity, uses)
    used, draws, ages = Counter(), [], Counter()
    seed_everything(1)
    for number in range(300):
        count = 0
        for drawn, age in buffer.after(batch(number)):
            whose = int(drawn["reward"][0, 0])
            assert age == number - whose < capacity
            assert (drawn["reward"] == whose).all() and (drawn["carry"][0] == whose).all()
            assert [(t, lane, int(obs[0])) for t, lane, obs in drawn["cut"]] == [(1, 2, whose)] * (whose % 2)
            used[whose] += 1
            ages[age] += 1
            count += 1
        draws.append(count)
    assert max(used.values()) == uses and draws[: capacity - 1] == [1] * (capacity - 1)
    assert draws[capacity - 1] == uses and set(draws) <= set(range(1, uses + 1))
    assert len(ages) == 1 if capacity == 1 else len(ages) > 1  # old ones are drawn, too
    assert sum(draws) > 0.9 * 300 * uses


@pytest.mark.parametrize("segments", [True, False])
def test_a_buffer_comes_back_from_a_checkpoint(segments, tmp_path):
    (one, batch), (two, _) = numbered_buffer(3, 2), numbered_buffer(3, 2)
    if segments:
        one.store = two.store = SegmentStore(tmp_path / "replay")
    for number in range(10):
        list(one.after(batch(number)))
    state = one.state_dict()
    assert (state["batches"] is None) == segments
    two.load_state_dict(state)
    for number in range(10, 20):
        drawn = []
        for buffer in (one, two):
            seed_everything(number)
            drawn.append([(age, rows["reward"].tolist()) for rows, age in buffer.after(batch(number))])
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rows/action", lambda array: array + 2, "actions outside the action space"),
        ("rows/reward", lambda array: array + np.nan, "not finite"),
        ("rows/obs", lambda array: array[:-1], "an array of"),
        ("cut/place", lambda array: array + 7, "time limits outside the batch"),
    ],
)
def test_a_forged_buffer_is_refused(name, change, message):
    buffer, batch = numbered_buffer(4, 2)
    for number in range(3):
        list(buffer.after(batch(number)))
    state = buffer.state_dict()
    for flat in state["batches"].values():
        flat[name] = change(flat[name])
    with pytest.raises(ValueError, match=message):
        buffer.load_state_dict(state)
    with pytest.raises(ValueError, match="no uses"):
        buffer.load_state_dict(buffer.state_dict() | {"left": [3] * 3})


def test_several_batches_are_learned_from_in_an_iteration():
    config = APPOConfig(**SMALL, buffer_batches=2, batch_uses=3, target_update_interval=4)
    trainer = APPOTrainer(config)
    knobs = Controls.of(config).at(0)
    start, counts = trainer.target_parameters.clone(), []
    for _ in range(3):
        metrics = trainer.iterate(knobs)
        counts.append(len(metrics.values["batch_age"]))
        # The target network follows after every fourth batch.
        assert torch.equal(trainer.target_parameters, start) == (trainer.iterations < 4)
    trainer.close()
    assert counts[:2] == [1, 3] and trainer.iterations == sum(counts)
