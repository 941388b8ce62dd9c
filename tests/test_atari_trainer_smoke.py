"""Atari beyond PPO: every shipped config trains, and DQN's replay rebuilds the stacks that the agent saw."""

import json

import numpy as np
import pytest

pytest.importorskip("ale_py")

from runs import TINY_DREAMER, assert_same_run, stopped_after

from rl_training import load_config, resume, train
from rl_training.envs.making import make_environments
from rl_training.runtime.controls import Controls
from rl_training.runtime.dqn_trainer import DQNConfig, DQNTrainer
from rl_training.state.seeding import seed_everything
from rl_training.tools.playing import play_run

SMALL = dict(
    total_timesteps=64,
    num_envs=2,
    max_episode_steps=20,
    eval_interval=64,
    eval_episodes=1,
    torch_threads=1,
)
CONFIGS = {
    "a2c/pong": dict(num_steps=8),
    "ppg/breakout": dict(
        num_steps=8,
        num_minibatches=2,
        policy_iterations=2,
        auxiliary_minibatches=2,
        auxiliary_epochs=1,
    ),
    "recurrent_ppo/pong": dict(num_steps=16, num_minibatches=2, update_epochs=1, recurrent_size=8),
    "dqn/pong": dict(learning_starts=32, buffer_size=300, batch_size=8),
}
LOSSES = {"a2c": "value_loss", "ppg": "clone_kl", "recurrent_ppo": "value_loss", "dqn": "loss"}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_atari_config_trains(name, tmp_path):
    """Pictures of 36 pixels and 64 steps: whether it runs, not what it learns."""
    plain = load_config(name)
    settings = SMALL | CONFIGS[name] | dict(env_kwargs=plain.env_kwargs | {"frame_size": 36})
    config = load_config(name, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    assert (config.env_id, config.image_encoder) == (plain.env_id, plain.image_encoder)
    result = train(config, run_dir=tmp_path / "run")
    assert np.isfinite(result.metrics[LOSSES[config.algo]]) and result.metrics["eval/mean_length"] == 20


def watched(trainer):
    """Every transition of its environments by the slot that it begins in, as the agent saw it; and how often
    a life or a game ended."""
    environments, replay = trainer.environments, trainer.replay
    step, known, ends = environments.step, {}, {"lives": 0, "games": 0}

    def watch(actions):
        slots, obs = replay.open.copy(), environments.obs.copy()
        episode = environments.episode.copy()
        stepped = step(actions)
        for lane, slot in enumerate(slots):
            next_obs, reward = stepped.next_obs[lane].copy(), stepped.reward[lane]
            known[slot] = (obs[lane], actions[lane], reward, not stepped.terminated[lane], next_obs)
        ended = len(environments.episode) - (environments.episode == episode).sum()
        ends["games"] += ended
        ends["lives"] += len(stepped.ended) - ended
        return stepped

    environments.step = watch
    return known, ends


def test_stacks_rebuilt_from_single_frames_are_those_the_agent_saw():
    """Breakout, across lost lives, ends of games and three turns of the ring."""
    settings = dict(env_id="ALE/Breakout-v5", num_envs=2, buffer_size=400, learning_starts=10**6)
    config = DQNConfig(**settings, train_frequency=1, env_kwargs={"frame_size": 36}, hidden_sizes=[])
    seed_everything(3)
    trainer = DQNTrainer(config)
    known, ends = watched(trainer)
    replay, knobs, compared = trainer.replay, Controls.of(config), 0
    assert replay.stack == 4 and replay.observations.shape == (400, 36, 36)
    for t in range(700):
        trainer.gather(knobs.at(2 * t))
        if t % 140 == 139:
            batch = replay._gather(np.arange(replay.first, replay.last), 0.5)
            for row, slot in enumerate(replay.ready[np.arange(replay.first, replay.last) % 400]):
                obs, action, reward, goes_on, next_obs = known[slot]
                assert np.array_equal(batch["obs"][row], obs)
                assert np.array_equal(batch["next_obs"][row], next_obs)
                assert (batch["action"][row], batch["reward"][row]) == (action, reward)
                assert batch["discount"][row] == 0.5 * goes_on
            compared += len(replay)
    trainer.close()
    assert replay.head > 3 * replay.capacity and compared > 800
    assert ends["lives"] >= 10 and ends["games"] >= 3


@pytest.mark.parametrize("stack", [1, 2])
def test_coloured_frames_are_the_emulators_newest_last(stack):
    """Breakout's wall has six colours; a lane that is reset or restored shows what it showed before."""
    settings = dict(frame_size=36, frame_stack=stack, grayscale=False, noop_max=0)
    config = load_config(dict(algo="ppo", env_id="ALE/Breakout-v5", num_envs=2, env_kwargs=settings))
    played, emulator = (make_environments(config, 2, 1, "train") for _ in range(2))
    assert played.lanes.observation_space.shape == (36, 36, 3 * stack)
    frames, seen = emulator.lanes.envs, [played.obs.copy()]
    wall = played.obs[0, ..., -3:][9:16].reshape(-1, 3)
    assert (wall.max(1) - wall.min(1)).max() > 50  # not grey
    for t in range(6):
        actions = np.array([1 + t % 3, 3])
        played.step(actions)
        shown, *_ = frames.step(actions)
        assert np.array_equal(played.obs[..., -3:], shown[:, -1])
        assert stack == 1 or np.array_equal(played.obs[..., :3], seen[-1][..., -3:])
        seen.append(played.obs.copy())
    again = make_environments(config, 2, 1, "train")
    again.load_state_dict(played.state_dict())
    assert np.array_equal(again.obs, seen[-1])
    for environments in (played, emulator, again):
        environments.close()


@pytest.mark.parametrize("algo", ["dqn", "dreamer", "ppo"])
def test_coloured_frames_are_learned_from_and_resumed(algo, tmp_path, monkeypatch):
    learner = {
        "dqn": dict(train_frequency=1, learning_starts=32, buffer_size=300, batch_size=8, hidden_sizes=[]),
        "dreamer": dict(learning_starts=32, buffer_size=300, cnn_depth=2, **TINY_DREAMER),
        "ppo": dict(num_steps=8, num_minibatches=2, update_epochs=1),
    }[algo]
    frames = dict(frame_size=32 if algo == "dreamer" else 36, frame_stack=2, grayscale=False)
    settings = SMALL | learner | dict(algo=algo, env_id="ALE/Pong-v5", env_kwargs=frames)
    settings |= dict(checkpoint_interval=16)
    whole = train(load_config(settings), run_dir=tmp_path / "whole", quiet=True)
    with stopped_after(3 if algo == "ppo" else 20, monkeypatch):
        train(load_config(settings), run_dir=tmp_path / "run", quiet=True)
    resume(tmp_path / "run", quiet=True)
    assert_same_run(whole.run_dir, tmp_path / "run")
    assert play_run(whole.run_dir, video=tmp_path / "film.gif", most_frames=4).frames == 4


def test_a_replay_keeps_coloured_frames_whole():
    settings = dict(env_id="ALE/Breakout-v5", num_envs=2, buffer_size=40, hidden_sizes=[])
    colours = dict(frame_size=36, grayscale=False)
    trainer = DQNTrainer(DQNConfig(**settings, env_kwargs=colours))
    assert trainer.replay.stack == 1 and trainer.replay.observations.shape == (40, 36, 36, 12)
    trainer.close()
