"""Checks of an environment before a run: one step, and a few more for third-party environments.

A first step that cannot be used refuses the environment. A few short episodes, played again, show what the user should
know before hours are spent: that the run could not be resumed exactly, or that observations are not what their space
says. `check-env` does the same at length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from gymnasium.envs.registration import EnvSpec

from rl_training.envs.interface import (
    check_reset_result,
    check_shape,
    check_step_result,
    copied,
    loose,
    same,
)
from rl_training.envs.lanes import without_wrappers
from rl_training.state.seeding import generators_kept
from rl_training.types import Env

MakeEnv = Callable[[], Env]
SECONDS = 0.3  # of the processor, for all of it
SEEDS = range(4)  # of the episodes
STEPS = 16  # of each, at most
OF_THESE = ("gymnasium.envs.", "rl_training.envs.", "ale_py.")  # where environments are known to be sound


class Taken(NamedTuple):
    """An action, and what it led to."""

    action: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any


def is_known(spec: EnvSpec | None) -> bool:
    """Whether an environment is one of Gymnasium's, ALE's or this package's."""
    if spec is None:
        return False
    points = [spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    modules = [point if isinstance(point, str) else getattr(point, "__module__", "") for point in points]
    return all(module.startswith(OF_THESE) for module in modules)


def first_step(env: Env) -> None:
    """One reset and one step, checked; raises `Broken`, or whatever the environment raises."""
    # Gymnasium's wrappers would fail at what a step returns before we can look at it.
    bare = without_wrappers(env)[0]
    bare.action_space.seed(0)
    begun = bare.reset(seed=0)
    check_reset_result(begun)
    obs, info = begun
    check_shape(bare.observation_space, obs)
    if is_masked(obs, info):  # a random action may be a forbidden one
        return
    result = bare.step(bare.action_space.sample())
    check_step_result(result)
    check_shape(bare.observation_space, result[0])


def is_masked(obs: Any, info: Any) -> bool:
    return "action_mask" in info or (isinstance(obs, dict) and "action_mask" in obs)


def look_closer(env: Env, make: MakeEnv, making: float) -> list[str]:
    """What is worth a warning, found within `SECONDS` of the processor.

    `making` are the seconds that `env` took: only where another one is quick to make are there two.
    """
    with generators_kept():
        try:
            return list(dict.fromkeys(_findings(env, make, making)))
        except Exception:  # the run will meet it too, and say where
            return []


def _findings(env: Env, make: MakeEnv, making: float) -> Iterator[str]:
    began, bare = time.process_time(), without_wrappers(env)[0]
    with ExitStack() as opened:
        episodes = {seed: [*_episode(bare, seed, None, began + SECONDS / 2)] for seed in SEEDS}
        for steps in episodes.values():
            yield from filter(None, (loose(bare.observation_space, taken.obs) for taken in steps))
        # A resumed run has the open episode and none of those before it: the last is played first, in a fresh copy.
        if time.process_time() - began + making < SECONDS:
            bare = without_wrappers(opened.enter_context(closing(make())))[0]
        for seed, before in reversed(episodes.items()):
            actions = [taken.action for taken in before]
            now = _episode(bare, seed, actions, began + SECONDS)
            for index, (one, other) in enumerate(zip(before, now, strict=False)):
                differing = [
                    name for name in Taken._fields[1:] if not same(getattr(one, name), getattr(other, name))
                ]
                if differing:
                    what = " and ".join(differing)
                    yield (
                        f"an episode replayed with the same seed and actions differs at step {index} in {what}: "
                        "this run could not be resumed exactly"
                    )
                    return


def _episode(env: Env, seed: int, actions: list[object] | None, until: float) -> Iterator[Taken]:
    """An episode from its first observation (step 0): with these actions, or else at random, while there is time."""
    if time.process_time() > until:
        return
    obs, info = env.reset(seed=seed)
    yield Taken(None, copied(obs), 0.0, False, False)
    if is_masked(obs, info):
        return
    env.action_space.seed(seed)
    for t in range(STEPS if actions is None else len(actions) - 1):
        if time.process_time() > until:
            return
        action = env.action_space.sample() if actions is None else actions[t + 1]
        obs, reward, terminated, truncated, _ = env.step(action)
        yield Taken(action, copied(obs), copied(reward), bool(terminated), bool(truncated))
        if terminated or truncated:
            return
