"""PPO end to end, short: schedules arrive in the metrics exactly, and every kind of environment trains."""

import pytest
from runs import TINY, assert_learned, clip_fractions, knobs_in_training_lines, read_lines, received

from rl_training import load_config
from rl_training.runtime import ppo_trainer
from rl_training.runtime.controls import resolve_clip_coefficient, resolve_entropy_coefficient
from rl_training.runtime.ppo_trainer import PPOConfig, train_ppo


def test_ent_coef_schedule_is_applied_and_logged(tmp_path, monkeypatch):
    used = received(monkeypatch, ppo_trainer, "ppo_loss", "ent_coef")
    config = PPOConfig(**TINY, ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.02})
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert result.metrics["ent_coef"] == 0.02  # 640 steps were taken: the schedule is over
    lines = [line for line in read_lines(result) if "ent_coef" in line]
    assert [line["step"] for line in lines] == [128, 256, 384, 512, 640]
    for line in lines:
        assert line["ent_coef"] == resolve_entropy_coefficient(config, step=line["step"])
    assert lines[0]["ent_coef"] == pytest.approx(0.1 - 0.08 * 128 / 600)
    assert used == [line["ent_coef"] for line in lines for _ in range(16)]  # 4 epochs of 4 minibatches


def test_clip_coef_schedule_is_applied_and_logged(tmp_path, monkeypatch):
    used = received(monkeypatch, ppo_trainer, "ppo_loss", "clip_coef")
    config = PPOConfig(**TINY, clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1})
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert result.metrics["clip_coef"] == 0.1
    for line in read_lines(result):
        if "clip_coef" in line:
            assert line["clip_coef"] == resolve_clip_coefficient(config, step=line["step"])
    steps = [step for step in (128, 256, 384, 512, 640) for _ in range(16)]  # 4 epochs of 4 minibatches
    assert used == [resolve_clip_coefficient(config, step=step) for step in steps]


@pytest.mark.parametrize("spelling", ["clip_coef", "clip_range"])
def test_aliases_come_out_under_the_canonical_name(spelling, tmp_path):
    changes = {f"{spelling}_schedule": "cosine", spelling: 0.25, f"{spelling}_warmup_steps": 300}
    config = load_config(TINY | changes | {"algo": "ppo", "total_timesteps": 256})
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert result.metrics["clip_coef"] == resolve_clip_coefficient(
        changes | {"total_timesteps": 256}, step=256
    )
    assert "clip_range" not in result.metrics


def test_every_knob_is_in_every_training_line(tmp_path):
    config = PPOConfig(**TINY, target_kl=0.5, value_clip_coef=0.2, gamma_schedule=[[0, 0.9], [600, 0.99]])
    result = train_ppo(config, run_dir=tmp_path / "run")
    line = knobs_in_training_lines(result, config)[-1]
    assert {"learning_rate", "ent_coef", "clip_coef", "value_clip_coef", "vf_coef"} <= line.keys()
    assert {"max_grad_norm", "target_kl", "gamma", "gae_lambda", "update_epochs"} <= line.keys()
    assert result.metrics["gamma"] == 0.99


def test_the_clip_coefficient_really_acts(tmp_path):
    none, all_free = clip_fractions(train_ppo, PPOConfig, TINY, tmp_path)
    assert none > 0.5 and all_free == 0


def test_the_result_says_where_everything_lies(tmp_path):
    result = train_ppo(PPOConfig(**TINY), run_dir=tmp_path / "run")
    assert result.run_dir == tmp_path / "run"
    assert sorted(path.name for path in result.checkpoint_path.iterdir()) == [
        "state.json",
        "state.safetensors",
        "weights.safetensors",
    ]
    assert result.checkpoint_path.name == "step-000000000640"
    for name in ("config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl", "best"):
        assert (result.run_dir / name).exists()
    expected = {"episode_return", "episode_length", "policy_loss", "value_loss", "entropy", "approx_kl"}
    expected |= {"clip_fraction", "explained_variance", "grad_norm", "eval/mean_return", "learning_rate"}
    assert expected <= result.metrics.keys()
    assert all(isinstance(value, int | float) for value in result.metrics.values())


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Pendulum-v1", dict(normalize_observations=True, normalize_rewards=True)),
        ("probe/TwoChoices-v0", {}),
        ("probe/Coins-v0", {}),
        ("probe/DictAndPicture-v0", dict(shared_trunk=True, normalize_observations=True)),
        ("FrozenLake-v1", {}),
        ("CartPole-v1", dict(vectorization="async")),
        ("CartPole-v1", dict(tensorboard=True)),
    ],
)
def test_every_kind_of_environment_trains(env_id, changes, tmp_path):
    config = PPOConfig(**TINY | dict(env_id=env_id, total_timesteps=256, max_episode_steps=50) | changes)
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert_learned(result, config)
    if changes.get("tensorboard"):
        assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_a_run_that_learns_nothing_is_noticed(tmp_path):
    """What the test above relies on: the first weights are known, and a run that stays there fails it."""
    config = PPOConfig(**TINY | dict(total_timesteps=128), learning_rate=0.0)
    with pytest.raises(AssertionError, match=r"never moved: \['actor_encoder.*critic_head"):
        assert_learned(train_ppo(config, run_dir=tmp_path / "run"), config)
