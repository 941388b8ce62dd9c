"""PPO on Atari: the native vector environment, its protocol, and exact resume."""

import json

import numpy as np
import pytest

pytest.importorskip("ale_py")

from runs import assert_same_run, go_on, go_on_until, in_child

from rl_training import evaluate_checkpoint, load_config
from rl_training.envs.atari import AtariLanes, AtariSettings, make_atari_lanes
from rl_training.envs.environments import Environments
from rl_training.errors import ConfigError
from rl_training.runtime.controls import resolve_clip_coefficient
from rl_training.runtime.ppo_trainer import train_ppo


def tiny(**changes):
    """ppo/pong with pictures of 36 pixels, two games and short episodes: seconds instead of hours."""
    settings = dict(
        total_timesteps=128,
        num_envs=2,
        num_steps=16,
        num_minibatches=2,
        update_epochs=1,
        max_episode_steps=40,
        eval_interval=64,
        eval_episodes=1,
        checkpoint_interval=32,
        log_interval=32,
        torch_threads=1,
        clip_coef_schedule={"type": "linear", "start": 0.2, "end": 0.05},
        env_kwargs={"frame_size": 36},
    )
    overrides = [f"{key}={json.dumps(value)}" for key, value in (settings | changes).items()]
    return load_config("ppo/pong", overrides)


def test_clip_coef_schedule_is_exact_on_atari(tmp_path):
    config = tiny()
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert result.metrics["clip_coef"] == 0.05
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    knobs = {line["step"]: line["clip_coef"] for line in lines if "clip_coef" in line}
    assert knobs == {step: resolve_clip_coefficient(config, step=step) for step in (32, 64, 96, 128)}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["environment"]["frame_skip"] == 4 and manifest["environment"]["sticky_actions"] == 0.0
    assert evaluate_checkpoint(tmp_path / "run", episodes=1)["mean_length"] == 40


def test_killed_on_pong_and_resumed_it_is_the_same(tmp_path):
    config = tiny()
    assert in_child(go_on, config, tmp_path / "whole", start="forkserver") == 0
    for number in (60, 45, 25):  # file calls, so that it dies inside and between saves
        assert in_child(go_on_until, number, config, tmp_path / "killed", start="forkserver") is None
    assert in_child(go_on, config, tmp_path / "killed", start="forkserver") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("image_encoder", ["nature", "impala"])
def test_encoders_and_precisions_train(image_encoder, precision, tmp_path):
    config = tiny(image_encoder=image_encoder, precision=precision, total_timesteps=32)
    assert np.isfinite(train_ppo(config, run_dir=tmp_path / "run").metrics["value_loss"])


def games(env_id, count=2, training=True, **env_kwargs):
    return Environments(make_atari_lanes(env_id, env_kwargs, None, count, training), 5, "train")


def test_a_lost_life_ends_an_episode_for_learning_but_not_the_game():
    envs, whole = games("ALE/Breakout-v5"), games("ALE/Breakout-v5", training=False)
    rng = np.random.default_rng(0)
    lost = finished = 0
    for _ in range(400):
        actions = rng.integers(4, size=2)
        step, other = envs.step(actions), whole.step(actions)
        assert np.array_equal(step.next_obs, other.next_obs) and np.array_equal(envs.obs, whole.obs)
        assert set(other.ended) <= set(step.ended)
        lost += len(step.ended)
        finished += len(other.ended)
        for lane in step.ended:
            assert step.terminated[lane]
            if lane not in other.ended:  # the game goes on from the very same picture
                assert np.array_equal(envs.obs[lane], step.next_obs[lane])
    assert finished >= 2 and lost >= 5 * finished
    assert len(envs.take_finished()) == finished  # episodes are whole games, however learning cuts them


def test_learning_sees_clipped_rewards_and_the_score_is_the_games_own():
    """Ms. Pacman pays 10 a pill."""
    envs = games("ALE/MsPacman-v5", count=1)
    rng = np.random.default_rng(0)
    learned = 0.0
    while not envs.finished:
        learned += envs.step(rng.integers(9, size=1)).reward[0]
    ((_, score, _),) = envs.take_finished()
    assert score >= 10 * learned > 0


@pytest.mark.parametrize("steps_per_seed", [0, 200, 2000])
def test_saved_games_come_back_exactly(steps_per_seed, monkeypatch):
    monkeypatch.setattr(AtariLanes, "steps_per_seed", steps_per_seed)
    envs = games("ALE/Breakout-v5", sticky_actions=0.25)
    rng, seeded = np.random.default_rng(1), envs.seeds.copy()

    def crosses():  # whether the log of each lane holds the end of a game
        return [len(envs._actions(lane)) > envs.lengths[lane] for lane in range(2)]

    for step in range(1500):
        envs.step(rng.integers(4, size=2))
        assert not any(crosses()) or steps_per_seed > 0
        if step >= 450 and any(crosses()) == (steps_per_seed > 0):
            break
    assert step < 1000
    assert (envs.episode >= 1).all() and (envs.seeds == seeded).all() == (steps_per_seed > step)
    other = games("ALE/Breakout-v5", sticky_actions=0.25)
    other.load_state_dict(envs.state_dict())
    for _ in range(100):
        actions = rng.integers(4, size=2)
        mine, theirs = envs.step(actions), other.step(actions)
        assert mine.next_obs.tobytes() == theirs.next_obs.tobytes()
        assert mine.ended == theirs.ended


def test_settings_are_checked():
    assert AtariSettings.of({"sticky_actions": 0.25}).sticky_actions == 0.25
    with pytest.raises(ConfigError, match="sticky_actions"):
        AtariSettings.of({"sticky_action": 0.25})
    with pytest.raises(ConfigError, match="a whole number"):
        AtariSettings.of({"frame_skip": 2.5})
    with pytest.raises(ConfigError, match="Pong"):
        games("ALE/Pongg-v5")
    with pytest.raises(ConfigError, match="vectorization"):
        train_ppo(tiny(vectorization="async"))
