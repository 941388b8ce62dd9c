"""What planners ask of a board game: that its players take turns, and which symmetries it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.masking import MASK, mask_of
from rl_training.envs.making import make_env
from rl_training.errors import ConfigError
from rl_training.state.seeding import generators_kept
from rl_training.types import Env, Space

GAMES, MOVES = 4, 20  # that are looked at


def refuse_other_turns(env_id: str, env_kwargs: Mapping[str, object]) -> None:
    """Refuse a game of two that says in `info["to_play"]` that its players do not take turns.

    A planner changes sides with every step, in what it learns and in what it imagines.
    """
    try:
        with generators_kept(), closing(make_env(env_id, env_kwargs, None)) as env:
            mover = next(
                (each for seed in range(GAMES) if (each := _moves_twice(env, seed)) is not None), None
            )
    except ConfigError:
        raise
    except Exception:  # what fails here fails in training, which tells it in full
        return
    if mover is not None:
        raise ConfigError(
            f"{env_id}: player {mover} moves twice in a row; two_players needs players that take turns",
            ("two_players",),
        )


def _moves_twice(env: Env, seed: int) -> Any:
    """Who moves twice in a row in a game of random moves; None if nobody does, or if nobody says who moves."""
    chance = np.random.default_rng(seed)
    env.action_space.seed(seed)
    obs, info = env.reset(seed=seed)
    for _ in range(MOVES):
        mover, mask = info.get("to_play"), info.get(MASK, mask_of(obs))
        action = env.action_space.sample() if mask is None else int(chance.choice(np.flatnonzero(mask)))
        obs, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return None
        if mover is not None and info.get("to_play") == mover:
            return mover
    return None


def symmetries_of(
    env_id: str, env_kwargs: Mapping[str, object], observation: Space, action: Space
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """What an environment names as `symmetries`, checked; refused in one line where it names none that fit.

    Each says which number of the flattened board, and which action, takes the place of each.
    """
    with closing(make_env(env_id, env_kwargs, None)) as env:
        named = getattr(env.unwrapped, "symmetries", None)
    if named is None:
        raise ConfigError(f"symmetries: {env_id} names none", ("symmetries",))
    seen = (
        [part for name, part in observation.spaces.items() if name != MASK]
        if isinstance(observation, spaces.Dict)
        else [observation]
    )
    numbers = int(np.prod(seen[0].shape or ())) if len(seen) == 1 else 0
    sizes = (numbers, int(getattr(action, "n", 0)))
    try:
        turns = [tuple(np.asarray(part, np.int64) for part in turn) for turn in named]
        fits = bool(turns) and all(
            all(
                np.array_equal(np.sort(part), np.arange(size)) for part, size in zip(turn, sizes, strict=True)
            )
            for turn in turns
        )
    except Exception:
        fits = False
    if not fits:
        raise ConfigError(
            f"symmetries: those of {env_id} are no pairs of permutations of {sizes[0]} numbers and {sizes[1]} actions",
            ("symmetries",),
        )
    return turns  # type: ignore[return-value]
