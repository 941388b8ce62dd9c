"""Evaluation: episodes in separate environments with separate seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.collector import RolloutPolicy, fresh_where_ended
from rl_training.data.demonstrations import Episode
from rl_training.envs.compiled import CompiledSpaces
from rl_training.envs.lanes import Lanes
from rl_training.envs.making import make_compiled, make_environments
from rl_training.envs.spaces import same_layout
from rl_training.envs.wrappers import as_dict
from rl_training.errors import CheckpointError
from rl_training.settings.config import Config
from rl_training.state.seeding import fold, seed_everything
from rl_training.trees import Arrays, tree_map

MAX_LANES = 16
AT_ONCE = 128  # steps of a call of compiled code; those after the last episode's end are in vain


def evaluate(
    policy: RolloutPolicy,
    config: Config,
    *,
    episodes: int,
    seed: int,
    sample: bool = False,
    made_for: Any = None,
    compiled: bool = False,
) -> dict[str, float]:
    """Play `episodes` whole episodes and sum them up; greedy unless `sample`. `made_for`, `compiled` as in `play`.

    A policy of several tasks plays as many of each: the sums are of all of them, and beside them stand those of each
    task, as `task/NAME/mean_return` and so on.
    """
    reported: dict[str, list[float]] = {}
    if not config.tasks:
        settings = dict(episodes=episodes, seed=seed, sample=sample, made_for=made_for, compiled=compiled)
        return _sum_up(play(policy, config, **settings, reported=reported)) | _means(reported, config)
    played: list[tuple[float, int]] = []
    by_task: dict[str, float] = {}
    for name in config.tasks:
        player: Any = policy.for_task(name)  # type: ignore[attr-defined]
        seen = made_for and tuple(_of_task(space, name) for space in made_for)
        settings = dict(episodes=episodes, seed=seed, sample=sample, made_for=seen)
        episodes_played = play(player, config.of_task(name), **settings, reported=reported)
        by_task |= {f"task/{name}/{what}": number for what, number in _sum_up(episodes_played).items()}
        played += episodes_played
    return _sum_up(played) | _means(reported, config) | by_task


def _means(reported: dict[str, list[float]], config: Config) -> dict[str, float]:
    """`info/NAME`: the mean of what episodes reported of each of `info_metrics`."""
    missing = [name for name in config.info_metrics if name not in reported]
    if missing:
        warnings.warn(
            f"info_metrics: no episode of the evaluation reported {', '.join(missing)} in the info of its last step",
            stacklevel=2,
        )
    return {f"info/{name}": float(np.mean(values)) for name, values in reported.items()}


def _of_task(space: spaces.Space, name: str) -> spaces.Space:
    """The part of a space that is one task's, unless the policy was taken for that task alone already."""
    return space[name] if isinstance(space, spaces.Dict) and name in space.spaces else space


def _sum_up(played: list[tuple[float, int]]) -> dict[str, float]:
    returns, lengths = np.array(played).T
    return {
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "episodes": len(played),
    }


def record(
    policy: RolloutPolicy,
    config: Config,
    *,
    episodes: int,
    seed: int,
    sample: bool = False,
    made_for: Any = None,
) -> list[Episode]:
    """Play `episodes` whole episodes and keep every step of them, lane by lane: those that end first are short."""
    recorded: dict[int, list[Episode]] = {}
    open_steps: dict[int, list[Any]] = {}

    def watch(
        lane: int, obs: Arrays, action: Any, reward: float, ended: tuple[bool, bool], next_obs: Arrays
    ) -> None:
        steps = open_steps.setdefault(lane, [])
        steps.append((obs, action, reward, *ended))
        if any(ended):
            seen, actions, rewards, terminations, truncations = zip(*open_steps.pop(lane), strict=True)
            observations = tree_map(lambda *parts: np.stack(parts), *seen, next_obs)
            flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
            taken = tree_map(lambda *parts: np.stack(parts), *map(as_dict, actions))
            recorded.setdefault(lane, []).append(
                Episode(observations, taken, np.array(rewards, np.float64), *flags)
            )

    play(policy, config, episodes=episodes, seed=seed, sample=sample, watch=watch, made_for=made_for)
    return [episode for lane in sorted(recorded) for episode in recorded[lane]]


def play(
    policy: RolloutPolicy,
    config: Config,
    *,
    episodes: int,
    seed: int,
    sample: bool,
    watch: Callable[[int, Any, Any, float, tuple[bool, bool], Any], None] | None = None,
    lanes: int = MAX_LANES,
    through: Callable[[Lanes], Lanes] | None = None,
    made_for: tuple[Any, Any] | None = None,
    reported: dict[str, list[float]] | None = None,
    compiled: bool = False,
) -> list[tuple[float, int]]:
    """Play `episodes` whole episodes; (return, length) of each. `watch` sees every step of them.

    made_for: the spaces that a policy from a file was made for; environments with others are refused
    reported: takes in what the episodes report of the config's `info_metrics`
    compiled: in compiled environments, many steps in one call; `watch` and `through` see nothing of them

    Every lane plays a fixed share of the episodes: taking those that end first would favour short ones.
    New environments each time, so that nothing of an earlier evaluation can show in this one.
    """
    seed_everything(fold(seed, "actions"))
    how = (config, min(episodes, lanes), seed, "evaluate")
    environments = make_compiled(*how) if compiled else make_environments(*how, through)
    whole = policy.whole_rollouts(environments, not sample) if compiled else None
    lanes = environments.count  # agents come in whole worlds
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    try:
        if made_for is not None:
            refuse_other_spaces(environments.lanes, made_for, config.env_id)
        carry = policy.initial(lanes)
        played: list[tuple[float, int]] = []
        while share.any():
            if whole is None or whole(AT_ONCE) is None:
                obs = environments.obs
                acted, carry = policy.act(obs, carry, explore=sample)
                step = environments.step(acted["action"])
                carry = fresh_where_ended(policy, carry, step.ended)
                if watch is not None:
                    taken = environments.codec.to_env(acted["action"])
                    for lane in np.flatnonzero(share).tolist():
                        now, then = (
                            tree_map(lambda part, lane=lane: part[lane].copy(), seen)
                            for seen in (obs, step.next_obs)
                        )
                        ended = bool(step.terminated[lane]), bool(step.truncated[lane])
                        watch(lane, now, deepcopy(taken[lane]), float(step.reward[lane]), ended, then)
            for lane, returned, length, *told in environments.take_finished():
                if share[lane]:
                    share[lane] -= 1
                    played.append((returned, length))
                    if told and reported is not None:
                        for name, value in told[0].items():
                            reported.setdefault(name, []).append(value)
    finally:
        environments.close()
    return played


def refuse_other_spaces(lanes: Lanes | CompiledSpaces, made_for: tuple[Any, Any], env_id: str) -> None:
    """Refuse environments that are not those a policy was saved for."""
    for name, space, saved in zip(
        ("observations", "actions"), (lanes.observation_space, lanes.action_space), made_for, strict=True
    ):
        if not same_layout(saved, space):
            raise CheckpointError(
                f"{env_id} has other {name} ({space}) than the policy was trained with ({saved})"
            )
