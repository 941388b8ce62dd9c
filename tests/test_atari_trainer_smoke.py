"""Atari beyond PPO: every shipped config trains, and DQN's replay rebuilds the stacks that the agent saw."""

import json

import numpy as np
import pytest

pytest.importorskip("ale_py")

from rl_training import load_config, train
from rl_training.runtime.controls import Controls
from rl_training.runtime.dqn_trainer import DQNConfig, DQNTrainer
from rl_training.state.seeding import seed_everything

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
