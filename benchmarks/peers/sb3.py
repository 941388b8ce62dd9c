"""One training run of Stable-Baselines3, sb3-contrib or sbx-rl, in their environment.

    python -m benchmarks.peers.sb3 '{"algorithm": "PPO", "env_id": "CartPole-v1", "num_envs": 4, ...}'

Settings: `algorithm`, `package` (stable_baselines3 unless given), `policy` (MlpPolicy), `env_id`, `num_envs`,
`env_kwargs`, `atari` (whether frames get the library's own preprocessing, with these options), `arguments` and
`policy_kwargs` of the algorithm, `critic_learning_rate` (of SAC's critics, where the library has one rate for all),
`linear` (names of arguments that fall to 0 over the run), `warm_up` (steps of a first training that is not measured;
0: none), `jitted` (whether the first training is of the model that is measured, for each model compiles anew: what that
takes is `compile_seconds`), `steps`, `seed`, `episodes`, `deterministic` (whether these are greedy, true unless given).
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module, metadata
from typing import Any

import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from benchmarks.meter import measured, report

PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "sbx-rl", "jax")
EVALUATION_ENVS = 8


def make_envs(settings: dict[str, Any], count: int, seed: int) -> VecEnv:
    env_id, env_kwargs = settings["env_id"], settings.get("env_kwargs") or {}
    if settings.get("atari") is None:
        return make_vec_env(env_id, count, seed=seed, env_kwargs=env_kwargs)
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    frames = make_atari_env(env_id, count, seed=seed, env_kwargs=env_kwargs, wrapper_kwargs=settings["atari"])
    return VecFrameStack(frames, n_stack=4)


def make_model(settings: dict[str, Any], algorithm: Any) -> Any:
    """The model with its environments."""
    arguments = dict(settings.get("arguments") or {})
    for name in settings.get("linear") or ():
        arguments[name] = lambda remaining, start=arguments[name]: remaining * start
    policy_kwargs = dict(settings.get("policy_kwargs") or {})
    if "activation_fn" in policy_kwargs:
        policy_kwargs["activation_fn"] = getattr(torch.nn, policy_kwargs["activation_fn"])
    if "optimizer_class" in policy_kwargs:  # as module:name
        module, _, name = policy_kwargs["optimizer_class"].partition(":")
        policy_kwargs["optimizer_class"] = getattr(import_module(module), name)
    return algorithm(
        settings.get("policy") or "MlpPolicy",
        make_envs(settings, settings["num_envs"], settings["seed"]),
        seed=settings["seed"],
        device="cpu",
        policy_kwargs=policy_kwargs,
        **arguments,
    )


def with_critic_rate(algorithm: Any, learning_rate: float) -> Any:
    """An off-policy algorithm whose critics learn at a rate of their own."""

    class Apart(algorithm):  # type: ignore[misc]
        def _update_learning_rate(self, optimizers: Any) -> None:
            super()._update_learning_rate(optimizers)
            for group in self.critic.optimizer.param_groups:
                group["lr"] = learning_rate

    return Apart


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    package = import_module(settings.get("package") or "stable_baselines3")
    algorithm = getattr(package, settings["algorithm"])
    if settings.get("critic_learning_rate") is not None:
        algorithm = with_critic_rate(algorithm, settings["critic_learning_rate"])
    more = {}
    if settings.get("jitted"):
        model = make_model(settings, algorithm)
        began = time.process_time()
        model.learn(settings["warm_up"])
        more["compile_seconds"] = time.process_time() - began
        model, cost = measured(lambda: model.learn(settings["steps"]))
    else:
        if settings["warm_up"]:
            make_model(settings, algorithm).learn(settings["warm_up"])
        model, cost = measured(lambda: make_model(settings, algorithm).learn(settings["steps"]))
    score, returns = None, []
    if settings["episodes"]:
        envs = make_envs(settings, min(EVALUATION_ENVS, settings["episodes"]), 1000 + settings["seed"])
        how = dict(deterministic=settings.get("deterministic", True), return_episode_rewards=True)
        returns = list(map(float, evaluate_policy(model, envs, settings["episodes"], **how)[0]))
        score = sum(returns) / len(returns)
    report(
        model.num_timesteps, cost, tuple(filter(is_installed, PACKAGES)), score=score, returns=returns, **more
    )


def is_installed(package: str) -> bool:
    return any(True for _ in metadata.distributions(name=package))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
