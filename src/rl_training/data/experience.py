"""Stepping environments into a replay buffer, and counting the updates that are due for the steps taken."""

from __future__ import annotations

import numpy as np

from rl_training.data.batch import BatchT
from rl_training.data.replay import Replay
from rl_training.data.streams import StreamReplay
from rl_training.envs.atari import is_atari
from rl_training.envs.compiled import AnyEnvironments
from rl_training.envs.environments import Step
from rl_training.envs.lanes import Observation
from rl_training.settings.config import Config
from rl_training.state.leaves import require


def step_and_store(
    environments: AnyEnvironments, replay: Replay[BatchT], acted: dict[str, np.ndarray]
) -> Step:
    """Take the `action` of `acted` in every environment, and store where it led beside all that `acted` holds."""
    step = environments.step(acted["action"])
    replay.add(
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        next_obs=step.next_obs,
        obs=environments.obs,
        **acted,
    )
    return step


def stacked_frames(config: Config, obs: Observation) -> int:
    """How many frames of an observation slide by one a step, so that a replay keeps each once: 1 if none does."""
    grey = is_atari(config.env_id) and config.env_kwargs.get("grayscale", True)
    return len(obs[0]) if grey else 1


def whole_updates(owed: float) -> tuple[int, float]:
    """Of the updates that steps have paid for, the whole ones, which are due, and the fraction that stays owed."""
    due = int(owed)
    return due, owed - due


def require_known_actions(replay: Replay[BatchT] | StreamReplay, environments: AnyEnvironments) -> None:
    """Refuse a replay with actions that the environments do not know: networks look them up by their index."""
    taken = replay.taken()
    require(taken is None or environments.codec.holds(taken), "replay: actions outside the action space")
