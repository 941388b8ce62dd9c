"""Training runs of RLlib's IMPALA and APPO, one after the other, in its environment.

    python -m benchmarks.peers.rllib '{"cases": [{"algorithm": "IMPALA", "num_actors": 2, ...}]}'

Settings of a case: `algorithm`, `env_id`, `num_actors`, `num_envs` (of each actor), `num_steps` (in each environment
per fragment), `num_learners` (0: in the driver), `arguments` of the algorithm, `model`, `warm_up` and `steps`, `seed`.
Starting Ray and its actors is not measured, and neither are the first `warm_up` steps. What counts is the steps its
actors have sampled, also those that its learner never saw.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0"}

import ray
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.meter import measured, report

PACKAGES = ("torch", "numpy", "gymnasium", "ray")


def make(settings: dict[str, Any]) -> Any:
    name = settings["algorithm"]
    config = getattr(import_module(f"ray.rllib.algorithms.{name.lower()}"), f"{name}Config")()
    config = (
        config.environment(settings["env_id"])
        .env_runners(
            num_env_runners=settings["num_actors"],
            num_envs_per_env_runner=settings["num_envs"],
            rollout_fragment_length=settings["num_steps"],
        )
        .learners(num_learners=settings["num_learners"])
        .training(
            train_batch_size_per_learner=settings["num_envs"] * settings["num_steps"], **settings["arguments"]
        )
        .rl_module(model_config=DefaultModelConfig(**settings["model"]))
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=2000)
        .debugging(seed=settings["seed"], log_level="ERROR")
    )
    return config.build_algo()


def train(algorithm: Any, steps: int) -> int:
    """Train until so many steps have been sampled in all; how many it were."""
    while (done := algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"]) < steps:
        pass
    return int(done)


def run(settings: dict[str, Any]) -> dict[str, float]:
    algorithm = make(settings)
    first = train(algorithm, settings["warm_up"])
    last, cost = measured(lambda: train(algorithm, first + settings["steps"]))
    algorithm.stop()
    return {"steps": last - first, **cost}


def main(settings: dict[str, Any]) -> None:
    quiet: dict[str, Any] = dict(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.init(address="local", num_cpus=8, **quiet)  # more CPUs than there are, so that all it starts has room
    cases = [run(case) for case in settings["cases"]]
    ray.shutdown()
    report(sum(int(case["steps"]) for case in cases), {}, PACKAGES, cases=cases)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
