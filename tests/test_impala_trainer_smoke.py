"""IMPALA end to end, short: schedules arrive in the metrics exactly, and every kind of environment trains."""

import json

import pytest
from runs import TINY, assert_learned, knobs_in_training_lines

from rl_training import evaluate_checkpoint
from rl_training.errors import ConfigError
from rl_training.runtime.controls import resolve_entropy_coefficient
from rl_training.runtime.impala_trainer import IMPALAConfig, train_impala

SMALL = TINY | dict(num_actors=2, num_steps=16, fleet="inline")


def test_scheduled_coefficients_are_applied_and_logged(tmp_path):
    config = IMPALAConfig(
        **SMALL | dict(fleet="local"),
        ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02},
        rho_bar_schedule={"type": "linear", "start": 1.0, "end": 2.0},
        c_bar_schedule=[[0, 1.0], [600, 0.5]],
        learning_rate_schedule="linear",
    )
    result = train_impala(config, run_dir=tmp_path / "run")
    assert (result.metrics["ent_coef"], result.metrics["rho_bar"], result.metrics["c_bar"]) == (
        0.02,
        2.0,
        0.5,
    )
    lines = knobs_in_training_lines(result, config)
    assert lines[0]["step"] == 64  # 2 actors × 2 environments × 16 steps
    assert lines[0]["ent_coef"] == resolve_entropy_coefficient(config, step=64)
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 64 / 600)
    expected = {"policy_loss", "value_loss", "entropy", "explained_variance", "grad_norm", "episode_return"}
    expected |= {"policy_lag_mean", "policy_lag_p95", "policy_lag_max", "rho_mean", "rho_clipped"}
    assert expected <= result.metrics.keys()
    timing = json.loads((tmp_path / "run" / "timing.jsonl").read_text().splitlines()[0])
    own = {"fleet_wait_seconds", "actors_alive", "actor_restarts", "fragments_redone", "fragments_dropped"}
    assert own <= timing.keys() and not own & lines[0].keys()
    assert evaluate_checkpoint(tmp_path / "run", episodes=2)["episodes"] == 2


def test_the_ratio_is_one_until_the_weights_move(tmp_path):
    """Actor and learner must be one policy when their weights are: with memory, normaliser and all."""
    for cell in (None, "lstm"):
        config = IMPALAConfig(**SMALL, cell=cell, learning_rate=0.0, rho_bar=1.0001)
        metrics = train_impala(config, run_dir=tmp_path / str(cell)).metrics
        assert metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["rho_clipped"] == 0.0
    moved = train_impala(IMPALAConfig(**SMALL, learning_rate=1e-2), run_dir=tmp_path / "moved").metrics
    assert abs(moved["rho_mean"] - 1.0) > 1e-5


@pytest.mark.parametrize(
    ("actors", "fragments", "lags"), [(2, None, 1.0), (3, 1, 3.0), (1, 1, 1.0), (2, 4, 0.5)]
)
def test_in_fixed_order_the_lag_is_constant(actors, fragments, lags, tmp_path):
    """A fragment is asked for when its stream's last one is taken: n actors and f a batch give n / f updates."""
    changes = dict(num_actors=actors, batch_fragments=fragments, num_steps=8, log_interval=1)
    result = train_impala(IMPALAConfig(**SMALL | changes), run_dir=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["policy_lag_mean"] for line in lines if "policy_lag_mean" in line]
    assert set(found[int(lags) + 1 :]) == {lags} and result.metrics["policy_lag_max"] == max(1.0, lags)


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True, optimizer="adam")),
        ("Pendulum-v1", dict(cell="gru", shared_trunk=True, normalize_observations=True)),
        ("probe/TwoChoices-v0", dict(gae_lambda=0.9)),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, image_encoder="impala")),
        ("probe/DictAndPicture-v0", dict(cell="lstm", recurrent_size=8)),
        ("probe/Masked-v0", {}),
        ("FrozenLake-v1", dict(hidden_sizes=[])),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = IMPALAConfig(**SMALL | dict(env_id=env_id, total_timesteps=256, max_episode_steps=20) | changes)
    assert_learned(train_impala(config, run_dir=tmp_path / "run"), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(min_actors=3), "min_actors must be at most num_actors = 2"),
        (dict(max_lag=3), "max_lag needs order: arrival"),
        (dict(cell="lstm", precision="bf16"), "precision must be fp32"),
        (dict(vectorization="async"), "vectorization"),
        (dict(order="arival"), "did you mean arrival"),
        (dict(actor_timeout=0), "actor_timeout must be above 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        IMPALAConfig(**SMALL | changes)
