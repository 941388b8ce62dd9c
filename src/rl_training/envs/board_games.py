"""What planners ask of a board game: that its players take turns, and which symmetries it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np

from rl_training.algorithms.masking import MASK
from rl_training.envs.making import make_env
from rl_training.errors import ConfigError
from rl_training.state.seeding import generators_kept

GAMES, MOVES = 4, 20  # that are looked at


def refuse_other_turns(env_id: str, env_kwargs: Mapping[str, object]) -> None:
    """Refuse a game of two that says in `info["to_play"]` that its players do not take turns.

    A planner changes sides with every step, in what it learns and in what it imagines.
    """
    chance = np.random.default_rng(0)
    with generators_kept(), closing(make_env(env_id, env_kwargs, None)) as env:
        env.action_space.seed(0)
        for seed in range(GAMES):
            _, info = env.reset(seed=seed)
            for _ in range(MOVES):
                mover, mask = info.get("to_play"), info.get(MASK)
                action = env.action_space.sample() if mask is None else chance.choice(np.flatnonzero(mask))
                _, _, terminated, truncated, info = env.step(action)
                if terminated or truncated:
                    break
                if mover is not None and info.get("to_play") == mover:
                    raise ConfigError(
                        f"{env_id}: player {mover} moves twice in a row; two_players needs players that take turns",
                        ("two_players",),
                    )


def symmetries_of(env_id: str, env_kwargs: Mapping[str, object]) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """What an environment names as `symmetries`, checked; refused in one line where it names none.

    Each says which number of the flattened observation, and which action, takes the place of each.
    """
    with closing(make_env(env_id, env_kwargs, None)) as env:
        turns = getattr(env.unwrapped, "symmetries", None)
        numbers = int(np.prod(env.unwrapped.observation_space.shape or ()))
        actions = int(getattr(env.action_space, "n", 0))
    if not turns:
        raise ConfigError(f"symmetries: {env_id} names none", ("symmetries",))
    for turn in turns:
        if not all(
            np.array_equal(np.sort(part), np.arange(size))
            for part, size in zip(turn, (numbers, actions), strict=True)
        ):
            raise ConfigError(
                f"symmetries: one of {env_id} is no permutation of {numbers} numbers and {actions} actions",
                ("symmetries",),
            )
    found: Sequence[tuple[np.ndarray, np.ndarray]] = turns
    return found
