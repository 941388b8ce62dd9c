"""Environments: making them, stepping many, saving and restoring them."""

import gymnasium as gym

gym.register(
    "rl_training/CartPoleNoVelocity-v1",
    "rl_training.envs.partial:cartpole_no_velocity",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gym.register(
    "rl_training/CartPolePixels-v1",
    "rl_training.envs.pixels:cartpole_pixels",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gym.register(
    "rl_training/BusyCartPole-v1",
    "rl_training.envs.busy:busy_cartpole",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gym.register("rl_training/TicTacToe-v0", "rl_training.envs.tictactoe:TicTacToe", max_episode_steps=9)
gym.register("rl_training/ConnectFour-v0", "rl_training.envs.connect_four:ConnectFour", max_episode_steps=42)
