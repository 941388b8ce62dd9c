"""Atari through ale-py's native vector environment, with the standard preprocessing in C++ (an extra).

Training sees clipped rewards and, if asked, an end of the episode at every lost life; the score of an episode is
always that of the whole game, unclipped. A lost life does not touch the emulator: the game goes on, and the next
ball is launched by the policy itself. So there are no filler steps, and every row is a transition.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.lanes import Actions, Observation, Stepped, VectorLanes
from rl_training.errors import ConfigError, about, add_extra, did_you_mean
from rl_training.settings.config import ATARI

WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclasses.dataclass(frozen=True)
class AtariSettings:
    """The protocol, as keys of `env_kwargs`; scores of different protocols cannot be compared.

    The defaults are those of the classic benchmarks (Mnih et al. 2015; no sticky actions, lives end episodes in
    training). For the protocol of Machado et al. 2018: sticky_actions 0.25, terminal_on_life_loss false,
    full_action_space true.
    """

    sticky_actions: float = 0.0  # probability that the emulator repeats its last action
    reward_clipping: bool = True  # training rewards become their sign
    terminal_on_life_loss: bool = True  # a lost life ends an episode, in training only
    noop_max: int = 30  # up to this many idle frames after a reset
    frame_skip: int = 4  # emulator frames per action; the last two are maxed
    frame_stack: int = 4  # frames per observation
    frame_size: int = 84  # pixels per side
    grayscale: bool = True  # or red, green and blue: [size, size, 3 · stack] in place of [stack, size, size]
    fire_reset: bool = True  # press FIRE after a reset where the game has it
    full_action_space: bool = False  # all 18 actions instead of those the game reads

    @classmethod
    @about("env_kwargs")
    def of(cls, env_kwargs: Mapping[str, Any]) -> AtariSettings:
        names = [field.name for field in dataclasses.fields(cls)]
        for key, value in env_kwargs.items():
            if key not in names:
                raise ConfigError(f"env_kwargs: Atari has no setting {key!r}{did_you_mean(key, names)}")
            kind = type(getattr(cls, key))
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ConfigError(f"env_kwargs: {key} must be {WORDS[kind]}, not {value!r}")
        settings = cls(**env_kwargs)
        if not (0 <= settings.sticky_actions <= 1 and settings.noop_max >= 0):
            raise ConfigError("env_kwargs: sticky_actions must be in [0, 1] and noop_max at least 0")
        if min(settings.frame_skip, settings.frame_stack) < 1 or settings.frame_size < 12:
            raise ConfigError(
                "env_kwargs: frame_skip and frame_stack must be at least 1, frame_size at least 12"
            )
        return settings


def is_atari(env_id: str) -> bool:
    return env_id.startswith(ATARI)


def make_atari_lanes(
    env_id: str, env_kwargs: Mapping[str, object], max_episode_steps: int | None, count: int, training: bool
) -> AtariLanes:
    """`count` games side by side. Evaluation plays whole games: no end at a lost life."""
    try:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(f"env_id {env_id!r} needs {add_extra('atari')}") from error
    gym.register_envs(ale_py)
    settings = AtariSettings.of(env_kwargs)
    games = {name: spec.kwargs["game"] for name, spec in gym.registry.items() if is_atari(name)}
    if env_id not in games:
        raise ConfigError(f"env_id {env_id!r} is not an Atari game{did_you_mean(env_id, games)}")
    # 108 000 frames are half an hour of play: the field's limit.
    frames = 108_000 if max_episode_steps is None else max_episode_steps * settings.frame_skip
    envs = AtariVectorEnv(
        games[env_id],
        count,
        num_threads=min(count, len(os.sched_getaffinity(0))),
        max_num_frames_per_episode=frames,
        repeat_action_probability=settings.sticky_actions,
        full_action_space=settings.full_action_space,
        img_height=settings.frame_size,
        img_width=settings.frame_size,
        grayscale=settings.grayscale,
        stack_num=settings.frame_stack,
        frameskip=settings.frame_skip,
        noop_max=settings.noop_max,
        use_fire_reset=settings.fire_reset,
        reward_clipping=False,
        episodic_life=False,
    )
    ends = training and settings.terminal_on_life_loss
    return AtariLanes(envs, settings.reward_clipping, ends, settings.grayscale)


class AtariLanes(VectorLanes):
    """ALE's vector environment: its resets take one seed per lane being reset, and it reports lives.

    A seed makes the emulator load its game again, which takes as long as some 200 steps. Hence `steps_per_seed`: the
    price is that a lane to be restored plays up to so many steps more.
    """

    steps_per_seed = 2000

    def __init__(
        self, envs: Any, reward_clipping: bool, terminal_on_life_loss: bool, grayscale: bool
    ) -> None:
        super().__init__(envs)
        self.grayscale = grayscale
        if not grayscale:
            stack, side, _, colours = envs.single_observation_space.shape
            self.observation_space = spaces.Box(0, 255, (side, side, stack * colours), np.uint8)
        self.reward_clipping = reward_clipping
        self.terminal_on_life_loss = terminal_on_life_loss
        self.has_time_limit = True
        self.lives = np.zeros(self.count, np.int32)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int | None]) -> Observation:
        mask = np.zeros(self.count, np.bool_)
        mask[list(lanes)] = True
        seed_of = dict(zip(lanes, seeds, strict=True))
        # For ALE, a negative seed is none.
        ordered = np.array([-1 if seed_of[lane] is None else seed_of[lane] for lane in sorted(seed_of)])
        obs, info = self.envs.reset(seed=ordered, options={"reset_mask": mask})  # type: ignore[arg-type]
        self.lives = info["lives"].copy()
        return self._shown(obs)[list(lanes)]

    def step(self, actions: Actions) -> Stepped:
        obs, score, terminated, truncated, info = self.envs.step(actions)
        over = terminated | truncated
        if self.terminal_on_life_loss:
            terminated = terminated | (info["lives"] < self.lives)
        self.lives = info["lives"].copy()
        reward = np.sign(score) if self.reward_clipping else score
        obs = self._shown(obs)
        return Stepped(obs, reward.astype(np.float64), terminated, truncated, score, over)

    def _shown(self, frames: np.ndarray) -> np.ndarray:
        """Grey frames [N, S, H, W] as they are; coloured ones [N, S, H, W, 3] as pictures [N, H, W, 3 · S]."""
        return frames if self.grayscale else np.concatenate(list(frames.swapaxes(0, 1)), -1)
