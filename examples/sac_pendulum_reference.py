"""Soft Actor-Critic on Pendulum-v1, written out with the package's own parts.

    python examples/sac_pendulum_reference.py                            about three minutes, ends near -150
    python examples/sac_pendulum_reference.py --total-timesteps 600      a quick look

The same algorithm as `rl-training train sac/pendulum`, without run directory, checkpoints and schedules: the loop
is here to be read and changed.
"""

from __future__ import annotations

import argparse
import copy

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.sac import actor_loss, critic_loss, polyak, soft_target, temperature_loss
from rl_training.data.replay import Replay
from rl_training.envs.environments import Environments
from rl_training.envs.lanes import LocalLanes
from rl_training.networks.soft_actor_critic import TwinCritics
from rl_training.policies.squashed import SquashedPolicy
from rl_training.runtime.optim import Adam, flatten_parameters
from rl_training.runtime.sac_trainer import Temperature
from rl_training.state.seeding import seed_everything

NETWORK = dict(hidden_sizes=(256, 256), activation="relu", image_encoder="nature")
LEARNING_RATE, GAMMA, TAU, BATCH_SIZE, LEARNING_STARTS = 1e-3, 0.99, 0.005, 256, 500


def pendulum(seed: int, stream: str) -> Environments:
    return Environments(LocalLanes([gym.make("Pendulum-v1")]), seed, stream)


def evaluate(policy: SquashedPolicy, seed: int, episodes: int) -> float:
    """The mean return of greedy episodes."""
    environments, returns = pendulum(seed, "evaluate"), []
    while len(returns) < episodes:
        environments.step(policy.act(environments.obs, (), explore=False)[0]["action"])
        returns += [returned for _, returned, _ in environments.take_finished()]
    return float(np.mean(returns))


def main(total_timesteps: int, seed: int, episodes: int) -> float:
    torch.set_num_threads(1)
    seed_everything(seed)
    environments = pendulum(seed, "train")
    spaces = environments.lanes.observation_space, environments.lanes.action_space
    policy = SquashedPolicy(*spaces, normalize_observations=False, device="cpu", **NETWORK)
    critics = TwinCritics(spaces[0], 1, **NETWORK)
    target_critics = copy.deepcopy(critics).requires_grad_(False)
    temperature = Temperature()
    optimizers = Adam([critics]), Adam([policy.actor]), Adam([temperature])
    target_weights, _ = flatten_parameters(list(target_critics.parameters()))
    replay = Replay(total_timesteps * 2 + 100, environments.obs)

    for step in range(total_timesteps):
        if step < LEARNING_STARTS:
            action = np.random.uniform(-1, 1, (1, 1)).astype(np.float32)
        else:
            action = policy.act(environments.obs, (), explore=True)[0]["action"]
        done = environments.step(action)
        replay.add(action, done.reward, done.terminated, done.truncated, done.next_obs, environments.obs)
        for _, returned, _ in environments.take_finished():
            print(f"step {step + 1:6d}   return {returned:8.1f}", flush=True)
        if step < LEARNING_STARTS:
            continue

        batch = replay.sample(BATCH_SIZE, GAMMA)
        ent_coef = temperature.log_ent_coef.exp().item()
        with torch.no_grad():
            next_action, next_log_prob = policy.sample(batch["next_obs"])
            next_q = target_critics(batch["next_obs"], next_action)
            target = soft_target(batch["reward"], batch["discount"], next_q, next_log_prob, ent_coef)
        optimizers[0].step(critic_loss(critics(batch["obs"], batch["action"]), target), LEARNING_RATE, None)
        action, log_prob = policy.sample(batch["obs"])
        q = critics(batch["obs"], action, frozen=True)
        optimizers[1].step(actor_loss(q, log_prob, ent_coef), LEARNING_RATE, None)
        loss = temperature_loss(temperature.log_ent_coef, log_prob.detach(), target_entropy=-1.0)
        optimizers[2].step(loss, LEARNING_RATE, None)
        polyak(target_weights, optimizers[0].parameters, TAU)

    mean_return = evaluate(policy, seed, episodes)
    print(f"mean return of {episodes} greedy episodes after {total_timesteps} steps: {mean_return:.1f}")
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-timesteps", type=int, default=10_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=20, help="greedy episodes at the end")
    options = parser.parse_args()
    main(options.total_timesteps, options.seed, options.episodes)
