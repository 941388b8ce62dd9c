"""Small runs for tests: configs, forked children that can be killed at any instant, and comparing run directories."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import wrapping

from rl_training import cli, load_config, resume, train
from rl_training.dynamics.registry import KNOWN
from rl_training.monitoring.display import QuietDisplay
from rl_training.parts import GIVEN
from rl_training.registry import trainer_class
from rl_training.runtime import engine
from rl_training.runtime.controls import Controls, find_control, resolve
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import load_agent, train_until_stopped
from rl_training.state import chain
from rl_training.state.seeding import fold, seed_everything

TINY_DREAMER: dict[str, Any] = dict(
    batch_size=4, batch_length=8, deter_size=16, rssm_hidden=8, num_latents=4, num_classes=4
) | dict(units=8, blocks=4, mlp_layers=1)

# What the small runs of all planners share.
PLANNER: dict[str, Any] = dict(
    env_id="CartPole-v1",
    total_timesteps=1200,
    num_envs=2,
    replay_ratio=0.04,
    learning_starts=100,
    buffer_size=500,  # less than the run has, so that the ring turns and segments are left behind
    batch_size=8,
    hidden_sizes=[8],
    latent_size=8,
    support_size=10,
    unroll_steps=2,
    td_steps=3,
    target_update_interval=10,
    num_simulations_schedule={"type": "linear", "start": 2, "end": 4},
    temperature_schedule={"type": "linear", "start": 1.0, "end": 0.25},
)
# A planner that learns a game of two, as small as can be.
BOARD_GAME: dict[str, Any] = dict(
    two_players=True, total_timesteps=64, num_envs=4, learning_starts=32
) | dict(
    buffer_size=2000,
    batch_size=4,
    latent_size=4,
    hidden_sizes=[8],
    support_size=1,
    num_simulations=2,
    unroll_steps=2,
)
# What the small runs of several algorithms share.
ROLLOUTS: dict[str, Any] = dict(num_envs=4, num_steps=32, num_minibatches=2, update_epochs=2)
GAIL: dict[str, Any] = dict(
    discriminator_updates=2, discriminator_batch_size=32, discriminator_hidden_sizes=[16]
)
# Checkpoints fall between the rollouts of a phase.
PHASES: dict[str, Any] = dict(policy_iterations=5, auxiliary_minibatches=4, auxiliary_epochs=2)
ACTORS: dict[str, Any] = dict(num_actors=2, num_envs=2, num_steps=16, hidden_sizes=[16])
# The buffer is smaller than the run, so that the ring turns and segments are left behind.
REPLAYED: dict[str, Any] = dict(num_envs=2, replay_ratio=0.3, learning_starts=200) | dict(
    buffer_size=900, batch_size=32, hidden_sizes=[16]
)
# Every algorithm's small runs, by name; the kill tests go over all of them.
RUNS: dict[str, dict[str, Any]] = {
    "ppo-cartpole": dict(
        algo="ppo",
        env_id="CartPole-v1",
        total_timesteps=3000,
        num_envs=4,
        num_steps=32,
        learning_rate=1e-3,
        learning_rate_schedule="linear",
        ent_coef=0.01,
        ent_coef_schedule="cosine",
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
    ),
    "ppo-pendulum": dict(
        algo="ppo",
        env_id="Pendulum-v1",
        total_timesteps=3000,
        num_envs=3,
        num_steps=50,
        normalize_observations=True,
        normalize_rewards=True,
        learning_rate_warmup_steps=500,
        target_kl=0.02,
    ),
    "ppo-two-rates": dict(  # and squashed actions
        algo="ppo",
        env_id="Pendulum-v1",
        total_timesteps=2000,
        num_envs=3,
        num_steps=50,
        squash_actions=True,
        critic_learning_rate=3e-3,
        critic_learning_rate_schedule="linear",
        ent_coef=0.01,
    ),
    "ppo-compiled": dict(  # lanes of a few numbers, which nothing has to be played again for
        algo="ppo",
        env_id="CartPole-v1",
        vectorization="compiled",
        total_timesteps=4096,
        num_envs=4,
        num_steps=64,
        normalize_observations=True,
        log_interval=256,
        checkpoint_interval=512,
        eval_interval=2048,
        eval_episodes=3,
    ),
    "trpo-pendulum": dict(
        algo="trpo",
        env_id="Pendulum-v1",
        total_timesteps=3000,
        num_envs=3,
        num_steps=50,
        num_minibatches=3,
        update_epochs=2,
        normalize_observations=True,
        normalize_rewards=True,
        ent_coef_schedule={"type": "linear", "start": 0.01, "end": 0.0},
        target_kl_schedule={"type": "linear", "start": 0.02, "end": 0.005},
    ),
    "recurrent-cartpole": dict(
        algo="recurrent_ppo",
        env_id="rl_training/CartPoleNoVelocity-v1",
        total_timesteps=2000,
        **ROLLOUTS,
        normalize_observations=True,
        ent_coef_schedule={"type": "linear", "start": 0.01, "end": 0.0},
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
    ),
    "recurrent-pendulum-gru": dict(
        algo="recurrent_ppo",
        env_id="Pendulum-v1",
        total_timesteps=1500,
        num_envs=3,
        num_steps=50,
        num_minibatches=1,
        update_epochs=2,
        cell="gru",
        shared_trunk=True,
        normalize_rewards=True,
    ),
    "recurrent-previous": dict(
        algo="recurrent_ppo",
        env_id="rl_training/CartPoleNoVelocity-v1",
        wrappers=["rl_training.envs.wrappers:PreviousActionAndReward"],
        total_timesteps=1500,
        **ROLLOUTS,
        recurrent_size=8,
        recurrent_layers=2,
        critic_memory=False,
        normalize_observations=True,
        normalize_rewards=True,
    ),
    "recurrent-masked": dict(
        algo="recurrent_ppo",
        env_id="probe/Masked-v0",
        total_timesteps=1500,
        **ROLLOUTS,
    ),
    "ppg-cartpole": dict(
        algo="ppg",
        env_id="CartPole-v1",
        total_timesteps=3000,
        num_envs=4,
        num_steps=32,
        num_minibatches=2,
        **PHASES,
        normalize_observations=True,
        beta_clone_schedule="cosine",
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
    ),
    "a2c-cartpole": dict(
        algo="a2c",
        env_id="CartPole-v1",
        total_timesteps=3000,
        num_envs=4,
        learning_rate_schedule="linear",
        ent_coef=0.01,
        ent_coef_schedule="cosine",
        normalize_observations=True,
        normalize_rewards=True,
    ),
    "impala-cartpole": dict(
        algo="impala",
        env_id="CartPole-v1",
        total_timesteps=3000,
        **ACTORS,
        normalize_observations=True,
        normalize_rewards=True,
        learning_rate_schedule="linear",
        ent_coef_schedule="cosine",
        rho_bar_schedule={"type": "linear", "start": 1.0, "end": 1.5},
    ),
    "impala-memory": dict(
        algo="impala",
        env_id="Pendulum-v1",
        total_timesteps=960,
        num_actors=3,
        batch_fragments=2,  # checkpoints hold requests of different versions
        num_envs=2,
        num_steps=16,
        fleet="inline",
        cell="lstm",
        recurrent_size=8,
        hidden_sizes=[16],
        normalize_observations=True,
        optimizer="adam",
    ),
    "appo-cartpole": dict(
        algo="appo",
        env_id="CartPole-v1",
        total_timesteps=3000,
        **ACTORS,
        num_minibatches=2,
        update_epochs=2,
        target_update_interval=3,  # checkpoints fall between two updates of the target network
        tau_schedule={"type": "linear", "start": 1.0, "end": 0.5},
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
        normalize_observations=True,
    ),
    "appo-buffer": dict(  # batches of several ages in every checkpoint, and a coefficient that moves
        algo="appo",
        env_id="CartPole-v1",
        total_timesteps=3000,
        max_episode_steps=15,
        **ACTORS,
        num_minibatches=2,
        update_epochs=2,
        learning_rate=5e-3,
        buffer_batches=3,
        batch_uses=2,
        kl_coef=0.2,
        kl_coef_target=0.002,
        normalize_rewards=True,
    ),
    "sac-pendulum": dict(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=1300,
        **REPLAYED,
        train_frequency=4,
        normalize_observations=True,
        learning_rate_schedule="linear",
        tau_schedule={"type": "linear", "start": 0.05, "end": 0.01},
    ),
    "dqn-cartpole": dict(
        algo="dqn",
        env_id="CartPole-v1",
        total_timesteps=1600,
        **REPLAYED,
        target_update_interval=10,
        double=True,
        dueling=True,
        n_step=3,
        prioritized=True,
        epsilon_schedule={"type": "linear", "start": 1.0, "end": 0.1},
        importance_exponent_schedule={"type": "linear", "start": 0.4, "end": 1.0},
    ),
    "dqn-compiled": dict(  # steps of an iteration in one call
        algo="dqn",
        env_id="CartPole-v1",
        vectorization="compiled",
        total_timesteps=1600,
        **REPLAYED,
        train_frequency=8,
        dueling=True,
        n_step=3,
        prioritized=True,
        epsilon_schedule={"type": "linear", "start": 1.0, "end": 0.1},
    ),
    "sac-compiled": dict(
        algo="sac",
        env_id="Pendulum-v1",
        vectorization="compiled",
        total_timesteps=1300,
        **REPLAYED,
        train_frequency=4,
        normalize_observations=True,
    ),
    "dqn-breakout": dict(  # frames stored once and stacked when they are drawn
        algo="dqn",
        env_id="ALE/Breakout-v5",
        env_kwargs={"frame_size": 36},
        max_episode_steps=60,
        total_timesteps=480,
        num_envs=2,
        replay_ratio=0.05,
        learning_starts=100,
        buffer_size=250,
        batch_size=8,
        hidden_sizes=[],
        log_interval=80,
        eval_interval=240,
        eval_episodes=1,
        checkpoint_interval=120,
    ),
    "gail-cartpole": dict(
        algo="gail",
        env_id="CartPole-v1",
        demonstrations="gail/cartpole_expert.npz",
        total_timesteps=2000,
        **ROLLOUTS,
        **GAIL,
        discriminator_rollouts=3,  # checkpoints hold the two rollouts before
        bc_epochs=1,
        normalize_observations=True,
        normalize_rewards=True,
        discriminator_learning_rate_schedule="linear",
        clip_coef_schedule={"type": "linear", "start": 0.3, "end": 0.1},
    ),
    "gail-pendulum": dict(
        algo="gail",
        env_id="Pendulum-v1",
        demonstrations="gail/pendulum_expert.npz",
        total_timesteps=1500,
        num_envs=3,
        num_steps=50,
        num_minibatches=2,
        update_epochs=2,
        **GAIL,
        spectral_norm=True,
        gradient_penalty="interpolated",
        normalize_observations=True,
        gradient_penalty_coef_schedule={"type": "linear", "start": 1.0, "end": 0.1},
    ),
    "bc-cartpole": dict(
        algo="bc",
        env_id="CartPole-v1",
        demonstrations="gail/cartpole_expert.npz",
        expert_episodes=1,  # epochs end in the middle of iterations
        total_timesteps=3000,
        batch_size=16,
        num_minibatches=4,
        normalize_observations=True,
        learning_rate_schedule="linear",
        ent_coef_schedule={"type": "linear", "start": 0.01, "end": 0.0},
    ),
    "muzero-cartpole": dict(algo="muzero", **PLANNER, reanalyse_ratio=0.2),
    "muzero-pendulum": dict(  # actions drawn at every node, stored, and drawn anew
        algo="muzero",
        **PLANNER | dict(env_id="Pendulum-v1", reanalyse_ratio=0.5, sampled_actions=4),
        ent_coef_schedule={"type": "linear", "start": 0.1, "end": 0.01},
    ),
    "gumbel-cartpole": dict(
        algo="gumbel_muzero", **PLANNER, normalize_observations=True, root_exploration_fraction=0.1
    ),
    "gumbel-connect-four": dict(  # with schedules of num_simulations and temperature
        algo="gumbel_muzero",
        **PLANNER | dict(env_id="rl_training/ConnectFour-v0", vectorization="compiled"),
        two_players=True,
        symmetries=True,
        temperature_moves=8,
        gamma=1.0,
        value_transform=False,
        reward_priority=4.0,
        forbidden_moves=0.5,
        state_coef_schedule={"type": "linear", "start": 2.0, "end": 1.0},
    ),
    "efficientzero-cartpole": dict(
        algo="efficientzero",
        **PLANNER,
        reanalyse_values=True,
        prefix_size=8,
        projection_size=8,
        prefix_horizon=1,
        normalize_observations=True,
        consistency_coef_schedule={"type": "linear", "start": 2.0, "end": 1.0},
        importance_exponent_schedule={"type": "linear", "start": 0.4, "end": 1.0},
    ),
    "efficientzero-pendulum": dict(
        algo="efficientzero",
        **PLANNER | dict(env_id="Pendulum-v1", sampled_actions=4),
        gumbel_search=True,
        mixed_values=True,
        prefix_size=8,
        projection_size=8,
    ),
    "efficientzero-breakout": dict(  # running statistics of frames, in the network and in its target
        algo="efficientzero",
        **PLANNER
        | dict(env_id="ALE/Breakout-v5", max_episode_steps=60, total_timesteps=480, buffer_size=500)
        | dict(latent_size=32),  # channels that compiled functions take
        env_kwargs={"frame_size": 36},
        prefix_size=8,
        projection_size=8,
    ),
    "scalezero-classic": dict(
        algo="scalezero",
        **{name: value for name, value in PLANNER.items() if name not in ("env_id", "target_update_interval")}
        | dict(total_timesteps=640, max_episode_steps=40, buffer_size=160, batch_size=4),
        env_ids=["CartPole-v1", "Acrobot-v1"],
        solved_returns={
            "CartPole-v1": 9.0
        },  # which random actions reach: in the middle of the run it is solved
        solved_episodes=8,
        confirm_episodes=3,
        confirm_interval=2,
        heads=2,
        experts=2,
        expert_size=8,
        context_steps=1,
        stages=3,
        rank=2,
        stage_min_updates=6,
        noise_persistence=0.5,  # what lasts is a part of the state
        stage_max_updates=8,
        normalize_observations=True,
        latent_coef_schedule={"type": "linear", "start": 10.0, "end": 1.0},
    ),
    "dreamer-cartpole": dict(
        algo="dreamer",
        env_id="CartPole-v1",
        total_timesteps=1000,
        num_envs=2,
        train_ratio=1.5,
        learning_starts=100,
        buffer_size=700,  # less than the run has, so that the ring turns and segments are left behind
        **TINY_DREAMER,
        normalize_observations=True,
        entropy_coef_schedule={"type": "linear", "start": 0.01, "end": 0.001},
        imagination_horizon_schedule={"type": "linear", "start": 3, "end": 5},
    ),
    "dreamer-pendulum": dict(
        algo="dreamer",
        env_id="Pendulum-v1",
        total_timesteps=900,
        num_envs=3,
        train_ratio=1.5,
        train_frequency=4,
        learning_starts=100,
        buffer_size=2000,
        **TINY_DREAMER,
        refresh_latents=True,
        train_ratio_schedule="linear:0.5",
        learning_rate_warmup_steps=400,
        warmup_begins="learning",
    ),
}
EXAMPLES = Path(__file__).parents[1] / "examples"
# Runs with parts that a user brings, for the kill tests.
OWN: dict[str, dict[str, Any]] = {
    "own-algorithm": dict(
        algo=f"{EXAMPLES}/reinforce.py:ReinforceTrainer",
        env_id="CartPole-v1",
        total_timesteps=2000,
        num_envs=4,
        num_steps=32,
        hidden_sizes=[16],
        normalize_observations=True,
        baseline_coef_schedule={"type": "linear", "start": 0.5, "end": 1.0},
    ),
    "own-network-ppo": dict(  # with a LayerNorm in it
        algo="ppo",
        env_id="CartPole-v1",
        total_timesteps=2000,
        num_envs=4,
        num_steps=32,
        num_minibatches=2,
        network={f"{EXAMPLES}/residual.py:Residual": {"width": 8}},
        encoder={f"{EXAMPLES}/residual.py:Fourier": {"frequencies": 4}},
        normalize_observations=True,
    ),
    "own-network-sac": dict(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=1200,
        num_envs=2,
        replay_ratio=0.3,
        learning_starts=200,
        batch_size=32,
        buffer_size=900,
        network={f"{EXAMPLES}/residual.py:Residual": {"width": 8, "blocks": 1}},
    ),
    "own-observer": dict(  # which asks to stop in the middle of the run, after a checkpoint
        algo="ppo",
        env_id=f"{EXAMPLES}/corridor.py:Corridor",
        max_episode_steps=30,
        info_metrics=["is_success"],
        observers=[{f"{Path(__file__).parent}/observing.py:Notes": {"checkpoints": 3}}],
        total_timesteps=4000,
        num_envs=4,
        num_steps=32,
        num_minibatches=2,
        hidden_sizes=[16],
    ),
    "joint-actions": dict(  # a Dict of a Tuple, with masks; a Tuple is seen
        algo="ppo",
        env_id="probe/JointTask-v0",
        total_timesteps=2000,
        num_envs=3,
        num_steps=32,
        hidden_sizes=[16],
        normalize_observations=True,
        wrappers=["wrapping:Tired"],
        frame_stack=3,
    ),
    "layers": dict(
        algo="dqn",
        env_id="CartPole-v1",
        total_timesteps=1200,
        num_envs=2,
        replay_ratio=0.2,
        learning_starts=200,
        buffer_size=700,
        batch_size=16,
        hidden_sizes=[16],
        wrappers=[{"wrapping:Scaled": {"by": 3.0}}, "wrapping:Tired"],
        action_repeat=2,
        frame_stack=2,
        time_limit=17,
    ),
    "curriculum": dict(
        algo="ppo",
        env_id="Pendulum-v1",
        env_kwargs={"g": 10.0},
        env_kwargs_schedule={"g": {"type": "linear", "start": 2.0, "end": 10.0}},
        max_episode_steps=70,  # some episodes are open at a checkpoint
        total_timesteps=3000,
        num_envs=3,
        num_steps=50,
        learning_rate_schedule={"type": "kl_adaptive", "target": 0.01},
        ent_coef=0.02,
        ent_coef_schedule={"type": "plateau", "metric": "eval/mean_return", "factor": 0.5, "patience": 1},
    ),
    "agents": dict(  # two in a world, which is replayed as a whole
        algo="ppo",
        env_id="wrapping:Meeting",
        max_episode_steps=6,
        info_metrics=["near"],
        total_timesteps=2000,
        num_envs=6,
        num_steps=20,
        num_minibatches=2,
        hidden_sizes=[16],
        normalize_observations=True,
    ),
    "given-environment": dict(  # an object in Python, which resume is given again
        algo="ppo",
        env_id="given:make_bandit",
        env_kwargs={"arms": 3},
        max_episode_steps=20,
        total_timesteps=2000,
        num_envs=3,
        num_steps=32,
        num_minibatches=2,
        hidden_sizes=[16],
    ),
    "curriculum-fleet": dict(  # what an actor's episodes begin with comes with its request
        algo="impala",
        env_id="Pendulum-v1",
        env_kwargs={"g": 10.0},
        env_kwargs_schedule={
            "g": {"type": "plateau", "metric": "episode_length", "factor": 1.5, "patience": 1, "max": 60.0}
        },
        max_episode_steps=30,
        total_timesteps=2000,
        num_actors=2,
        num_envs=2,
        num_steps=20,
        hidden_sizes=[16],
    ),
}
LANES: dict[str, Any] = dict(env_id="CartPole-v1", vectorization="compiled", num_envs=4, num_steps=32)
# Runs of compiled code, that of the environments too where there are no actors, for the kill tests.
COMPILED: dict[str, dict[str, Any]] = {
    "a2c-compiled": dict(algo="a2c", **LANES, total_timesteps=3000, normalize_rewards=True),
    "trpo-compiled": dict(
        algo="trpo",
        **LANES | dict(env_id="Pendulum-v1"),
        total_timesteps=3000,
        num_minibatches=2,
        update_epochs=2,
        normalize_observations=True,
    ),
    "ppg-compiled": dict(
        algo="ppg",
        **LANES,
        total_timesteps=3000,
        num_minibatches=2,
        **PHASES,
        normalize_observations=True,
    ),
    "gail-compiled": dict(
        algo="gail",
        **LANES,
        demonstrations="gail/cartpole_expert.npz",
        total_timesteps=2000,
        num_minibatches=2,
        update_epochs=2,
        **GAIL,
    ),
    "ppo-masked-compiled": dict(
        algo="ppo", **LANES | dict(env_id="Taxi-v4"), total_timesteps=3000, max_episode_steps=50
    ),
    "ppo-minatar": dict(  # the lanes are compiled, the convolutions are torch's
        algo="ppo",
        env_id="MinAtar/Breakout-v1",
        vectorization="compiled",
        max_episode_steps=100,
        total_timesteps=640,
        num_envs=4,
        num_steps=32,
        num_minibatches=2,
        update_epochs=1,
        hidden_sizes=[16],
        log_interval=128,
        eval_interval=320,
        eval_episodes=1,
        checkpoint_interval=128,
    ),
    "ppo-layer-norm": dict(
        algo="ppo", **LANES, total_timesteps=3000, layer_norm=True, hidden_sizes=[16], activation="silu"
    ),
    "dqn-layer-norm": dict(
        algo="dqn",
        env_id="CartPole-v1",
        vectorization="compiled",
        total_timesteps=1600,
        **REPLAYED,
        train_frequency=8,
        dueling=True,
        double=True,
        layer_norm=True,
    ),
    "sac-layer-norm": dict(
        algo="sac",
        env_id="Pendulum-v1",
        vectorization="compiled",
        total_timesteps=1300,
        **REPLAYED,
        train_frequency=4,
        layer_norm=True,
    ),
    "impala-joint": dict(
        algo="impala",
        env_id="probe/JointTask-v0",
        total_timesteps=1600,
        **ACTORS,
    ),
    "appo-masked": dict(
        algo="appo",
        env_id="probe/Masked-v0",
        total_timesteps=1600,
        **ACTORS,
        num_minibatches=2,
        update_epochs=2,
        layer_norm=True,
    ),
}
# Compiled environments that Python steps, because the policy is not of dense layers alone, for the kill tests.
STEPPED: dict[str, dict[str, Any]] = {
    "recurrent-compiled": dict(
        algo="recurrent_ppo",
        **LANES,
        total_timesteps=2000,
        num_minibatches=2,
        update_epochs=2,
        recurrent_size=8,
        normalize_observations=True,
    ),
    "dreamer-compiled": dict(
        algo="dreamer",
        env_id="CartPole-v1",
        vectorization="compiled",
        total_timesteps=700,
        num_envs=2,
        train_ratio=1.5,
        learning_starts=100,
        buffer_size=500,
        **TINY_DREAMER | dict(deter_size=32, blocks=2, rssm_hidden=16, imagination_horizon=4),
        learning_rate_schedule="linear:1e-4",
    ),
    "muzero-compiled": dict(algo="muzero", **PLANNER, vectorization="compiled", reanalyse_ratio=0.2),
    "muzero-tictactoe": dict(
        algo="muzero",
        env_id="rl_training/TicTacToe-v0",
        vectorization="compiled",
        **BOARD_GAME | dict(total_timesteps=800, buffer_size=300, replay_ratio=0.1),
    ),
    "efficientzero-compiled": dict(
        algo="efficientzero",
        **PLANNER,
        vectorization="compiled",
        reanalyse_values=True,
        prefix_size=8,
        projection_size=8,
        normalize_observations=True,
    ),
    "scalezero-compiled": dict(
        **RUNS["scalezero-classic"] | dict(env_ids=["CartPole-v1"]), vectorization="compiled"
    ),
}
# Every compiled environment of one player; many an episode is open at a checkpoint.
LANED: dict[str, dict[str, Any]] = {
    f"lanes-{env_id.rpartition('/')[2]}": dict(
        algo="ppo",
        **LANES | dict(env_id=env_id),
        total_timesteps=1200,
        max_episode_steps=50,
        hidden_sizes=[16],
        num_minibatches=2,
        update_epochs=1,
    )
    for env_id in KNOWN
    if not env_id.startswith("rl_training/")
}
CADENCES = dict(seed=3, log_interval=200, eval_interval=1000, eval_episodes=2, checkpoint_interval=400)

# One of each kind of policy, for the tests of what is done with trained runs.
KINDS = ("ppo-cartpole", "sac-pendulum", "recurrent-cartpole", "muzero-cartpole")

# A run of seconds, for tests of one trainer.
TINY: dict[str, Any] = dict(
    env_id="CartPole-v1", total_timesteps=600, num_envs=2, num_steps=64, eval_episodes=2, hidden_sizes=[8]
)


def read_lines(result: Any) -> list[dict[str, float]]:
    """The numbers of the lines of a run's metrics."""
    return metrics_in(result.run_dir)


def metrics_in(run_dir: Path) -> list[dict[str, float]]:
    lines = [chain.numbers(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    assert None not in lines
    return lines  # type: ignore[return-value]


def knobs_in_training_lines(result: Any, config: Any) -> list[dict[str, float]]:
    """The training lines of a run, every knob of its config checked in each: exactly its value at that step."""
    knobs = [name for name in type(config).model_fields if find_control(name)]
    lines = [line for line in read_lines(result) if "policy_loss" in line]
    assert lines
    for line in lines:
        expected = {name: resolve(name, config, step=line["step"]) for name in knobs}
        assert {name: line.get(name) for name in knobs} == expected
    return lines


def received(patch: Any, module: Any, function: str, argument: str) -> list[Any]:
    """What a function that a module calls gets for one of its arguments, call by call, from now on."""
    real, values = getattr(module, function), []

    def listening(*args: Any, **kwargs: Any) -> Any:
        values.append(inspect.signature(real).bind(*args, **kwargs).arguments[argument])
        return real(*args, **kwargs)

    patch.setattr(module, function, listening)
    return values


def clip_fractions(
    train_algorithm: Any, config_class: Any, settings: dict[str, Any], folder: Path
) -> list[float]:
    """The share of clipped ratios with a clip range of 0, where almost all that moved are, and with a huge one."""
    fractions = []
    for clip in (0.0, 100.0):
        config = config_class(**settings, clip_coef=clip, learning_rate=1e-2)
        fractions.append(train_algorithm(config, run_dir=folder / str(clip)).metrics["clip_fraction"])
    return fractions


def assert_learned(result: Any, config: Any) -> None:
    """The run saw episodes end, all it reports is finite, and each layer of its policy has left where it began.

    Of a layer, not each tensor: weights have no gradient where a probe shows nothing but zeros.
    """
    seed_everything(fold(config.seed, "init"))
    fresh = trainer_class(config.algo)(config.model_copy(update={"vectorization": "sync"}))
    fresh.close()
    _, agent, _ = load_agent(result.run_dir, "last")
    assert result.metrics["episodes"] > 0
    assert all(math.isfinite(value) for value in result.metrics.values())
    before, after = (list(network_of(each).named_parameters()) for each in (fresh.agent, agent))
    moved = {}
    for (name, old), (_, new) in zip(before, after, strict=True):
        layer = name.rpartition(".")[0]
        moved[layer] = moved.get(layer, False) or not torch.equal(old, new)
    still = [layer for layer, has in moved.items() if not has]
    assert not still, f"never moved: {still}"


def network_of(agent: Any) -> Any:
    """The weights that act, whatever a kind of policy calls them."""
    return agent.network if hasattr(agent, "network") else agent.actor


def small_config(name: str, **changes: Any) -> Any:
    """A small run; in Gymnasium's own environments, unless it says otherwise."""
    return load_config(
        dict(vectorization="sync") | CADENCES | (RUNS | OWN | COMPILED | STEPPED | LANED)[name] | changes
    )


LOOKS = 8  # times that a training is asked for what it shall learn


def iterated(kind: Any, config: Any, steps: int, learned: Callable[[Any], Any] | None = None) -> Any:
    """A trainer that has taken so many steps, or fewer if it has learned what it shall.

    `learned(trainer)` asserts that. It must hold twice in a row, with iterations in between, or at the end. It is
    for returns: a value that grows too far passes the right one on its way, and must be looked at in the end only.
    """
    seed_everything(1)
    trainer, knobs = kind(config), Controls.of(config)
    starts, in_a_row = range(0, steps, config.steps_per_iteration), 0
    for number, step in enumerate(starts, start=1):
        seed_everything(fold(1, step))
        trainer.iterate(knobs.at(step))
        if learned is not None and number % max(1, len(starts) // LOOKS) == 0:
            in_a_row = in_a_row + 1 if holds(learned, trainer) else 0
        if in_a_row == 2:
            break
    if learned is not None:
        learned(trainer)
    return trainer


@contextmanager
def stopped_after(iterations: int, patch: Any) -> Iterator[None]:
    """A training that is stopped by an error between two iterations."""

    class Stop(Exception):
        pass

    iterate, count = Engine._iterate, iter(range(iterations))

    def some(engine: Engine) -> None:
        if next(count, None) is None:
            raise Stop
        iterate(engine)

    with patch.context() as patched, pytest.raises(Stop):
        patched.setattr(Engine, "_iterate", some)
        yield


def holds(check: Callable[..., Any], *args: Any) -> bool:
    """Whether a function that asserts something does so without complaint."""
    try:
        check(*args)
    except AssertionError:
        return False
    return True


def go_on(config: Any, run_dir: Path) -> None:
    """Start the run, or resume it if it was started before."""
    env = given_env(config)
    if (run_dir / "config.yaml").exists():
        resume(run_dir, trust=True, env=env)
    else:
        train(config, run_dir=run_dir, env=env)


def given_env(config: Any) -> Any:
    """The object of a config whose environment is one of Python; None for all others."""
    name = config.env_id.removeprefix(GIVEN)
    return None if name == config.env_id else getattr(wrapping, name)


PATIENCE = 1500  # seconds after which a child that stands still says where, before its test is given up


def _in_child(function: Callable[..., None], *args: Any) -> None:
    gc.freeze()  # a fork must not collect its parent's garbage: an emulator in it waits for threads that are not here
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    function(*args)


def child_process(function: Callable[..., None], *args: Any, start: str = "fork") -> Any:
    """`function(*args)` in a process of its own, begun.

    A fork has torch loaded already and knows all that the test has patched. `start="forkserver"` begins from a
    process that never had threads, which emulators need; `function` must then be one of a module.
    """
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        trainers = [f"rl_training.runtime.{name}_trainer" for name in ("ppo", "dqn")]
        context.set_forkserver_preload(["rl_training.tools.experiments", "rl_training.envs.atari", *trainers])
    child: Any = context.Process(target=_in_child, args=(function, *args))  # type: ignore[attr-defined]
    child.start()
    return child


def in_child(function: Callable[..., None], *args: Any, start: str = "fork") -> int | None:
    """Run `function(*args)` in a process of its own; its exit code, or None if a signal ended it."""
    return exit_code(child_process(function, *args, start=start))


def exit_code(child: Any) -> int | None:
    child.join()
    return None if child.exitcode < 0 else child.exitcode


def start_method(config: Any) -> str:
    """How a child that trains this must be started."""
    return "forkserver" if config.env_id.startswith("ALE/") else "fork"


def train_small(name: str, run_dir: Path) -> None:
    """Train a small run in this process, which its later forks are warmed by, or apart where it has threads."""
    config = small_config(name)
    if start_method(config) == "fork":
        train(config, run_dir=run_dir, env=given_env(config))
    else:
        assert in_child(go_on, config, run_dir, start=start_method(config)) == 0


def run_command(arguments: list[str], ends: dict[int, int], others: list[int], own_session: bool) -> None:
    """In a fork: be `rl-training ARGUMENTS`, with these ends of pipes as its descriptors."""
    if own_session:
        os.setsid()
    for number, end in ends.items():
        os.dup2(end, number)
    for descriptor in (*ends.values(), *others):
        os.close(descriptor)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: SIM115
    sys.argv = ["rl-training", *arguments]
    cli.main()


class Command:
    """`rl-training ARGUMENTS` in a fork of this process: the real command without seconds of importing torch again."""

    def __init__(self, *arguments: Any, own_session: bool = False) -> None:
        (self._out, out), (self._err, err) = os.pipe(), os.pipe()
        words, ours = [str(argument) for argument in arguments], [self._out, self._err]
        self.process = child_process(run_command, words, {1: out, 2: err}, ours, own_session)
        self.pid: int = self.process.pid
        os.close(out), os.close(err)
        self.stdout, self.stderr = (open(end, encoding="utf-8") for end in ours)  # noqa: SIM115

    def running(self) -> bool:
        return self.process.is_alive()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode

    def communicate(self) -> tuple[str, str]:
        """All that it says until it has ended."""
        with ThreadPoolExecutor() as readers:
            out, err = readers.map(lambda stream: stream.read(), (self.stdout, self.stderr))
        self.returncode = self.wait()
        return out, err


FILE_CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate")


def kill_at_file_call(number: int) -> None:
    """In a child: die at the `number`-th call that changes a file, that is, mostly inside a save."""
    count = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    for name in FILE_CALLS:
        setattr(os, name, dying(getattr(os, name)))


def go_on_until(number: int, config: Any, run_dir: Path) -> None:
    """Go on with the run, and die at the `number`-th call that changes a file."""
    kill_at_file_call(number)
    go_on(config, run_dir)


def go_on_telling(pipe: Any, share: float, config: Any, run_dir: Path) -> None:
    """Go on with the run; tell when this share of what is left is done, and how long an iteration takes."""
    iterate, first, seconds = Engine._iterate, -1, 0.0

    def telling(engine: Engine) -> None:
        nonlocal first, seconds
        steps, total = engine.progress.steps, config.total_timesteps
        first = steps if first < 0 else first
        if not pipe.closed and steps >= first + share * (total - first):
            pipe.send(seconds)
            pipe.close()
        began = time.perf_counter()
        iterate(engine)
        seconds = time.perf_counter() - began

    Engine._iterate = telling  # type: ignore[method-assign]
    go_on(config, run_dir)


def killed_in_an_iteration(share: float, moment: float, config: Any, run_dir: Path) -> int | None:
    """Go on with the run, and kill it after a share of what is left; `moment` is a part of one iteration.

    The run itself says when it is there, so that a kill hits it however busy the machine is.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = child_process(go_on_telling, theirs, share, config, run_dir, start=start_method(config))
    theirs.close()
    with ours, suppress(EOFError):
        time.sleep(moment * ours.recv())
        child.kill()
    return exit_code(child)


def kill_and_resume(config: Any, run_dir: Path, kills: int, rng: random.Random) -> int:
    """Kill the run `kills` times, every second time inside file calls, then let it end; how many kills hit.

    A run goes on between kills, so the more of them there are, the sooner each must come.
    """
    hits, share, start = 0, min(1.0, 3 / kills), start_method(config)
    for attempt in range(kills):
        if attempt % 2:
            number = rng.randint(1, int(120 * share))
            code = in_child(go_on_until, number, config, run_dir, start=start)
        else:
            code = killed_in_an_iteration(share * rng.random(), rng.random(), config, run_dir)
        assert code in (0, None), "the run failed instead of being killed"
        hits += code is None
    assert in_child(go_on, config, run_dir, start=start) == 0
    return hits


def files_of(run_dir: Path) -> dict[str, bytes]:
    """What must be equal between two runs: all but the clock, the manifest's dates and the older checkpoints."""
    newest = max((run_dir / "checkpoints").glob("step-*"))
    paths = [run_dir / "metrics.jsonl", *sorted(newest.iterdir()), *sorted((run_dir / "best").iterdir())]
    paths += sorted((run_dir / "replay").glob("*"))
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}


def assert_same_run(one: Path, other: Path) -> None:
    first, second = files_of(one), files_of(other)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] == second[name], f"{name} differs"


def fresh(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


class SignalsAll(QuietDisplay):
    """Sends a signal to every process of its group, twice as `timeout` does, when the first line is written."""

    def __init__(self, number: int) -> None:
        self.number: int | None = number

    def update(self, steps: int, metrics: Any, timing: Any) -> None:
        if self.number is not None:
            os.killpg(0, self.number)
            os.killpg(0, self.number)
            self.number = None


def train_in_a_group(config: Any, run_dir: Path, number: int) -> None:
    """Train in a process group of its own, which is sent a signal in the middle."""
    os.setsid()
    engine.SAME_REQUEST = 1e9  # seconds: both signals are one request, however busy the machine is
    result = train_until_stopped(config, run_dir=run_dir, display=SignalsAll(number))
    assert result.interrupted == number and result.checkpoint_path.exists()
