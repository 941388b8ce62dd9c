"""Positions of played episodes that planners learn from, as they were seen or as a symmetry shows them."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.distributions import SquashedGaussian
from rl_training.algorithms.masking import MASK
from rl_training.algorithms.muzero import Targets
from rl_training.data.batch import PositionBatch, on_device
from rl_training.data.episodes import EpisodeReplay
from rl_training.data.forbidden_moves import with_forbidden_moves
from rl_training.data.symmetries import Symmetries
from rl_training.envs.board_games import refuse_other_turns, symmetries_of
from rl_training.errors import ConfigError
from rl_training.policies.search import SearchPolicy
from rl_training.runtime.controls import Now
from rl_training.runtime.off_policy import OffPolicyTrainer
from rl_training.settings.efficientzero import EfficientZeroConfig
from rl_training.settings.gumbel_muzero import GumbelMuZeroConfig
from rl_training.settings.muzero import MuZeroConfig
from rl_training.trees import Arrays

MuZeroT = TypeVar("MuZeroT", bound=MuZeroConfig | GumbelMuZeroConfig | EfficientZeroConfig)


class PositionTrainer(OffPolicyTrainer[MuZeroT]):
    """A planner that learns from positions of its replay and the K steps after each."""

    agent: SearchPolicy
    replay: EpisodeReplay
    transient = ("symmetries",)

    def __init__(self, config: MuZeroT) -> None:
        if config.two_players:
            refuse_other_turns(config.env_id, config.env_kwargs)
        super().__init__(config)
        if config.forbidden_moves and not (config.two_players and self.has_masks):
            raise ConfigError(
                "forbidden_moves: needs two_players and an environment with action masks",
                ("forbidden_moves",),
            )
        self.symmetries: Symmetries | None = None
        if config.symmetries:
            played = (config.env_id, config.env_kwargs, self.observation_space, self.action_space)
            self.symmetries = Symmetries(symmetries_of(*played))

    @property
    def has_masks(self) -> bool:
        return isinstance(self.observation_space, spaces.Dict) and MASK in self.observation_space.spaces

    def make_replay(self, obs: Arrays, **settings: Any) -> EpisodeReplay:
        config, family = self.config, self.agent.family
        return EpisodeReplay(
            config.buffer_size,
            obs,
            num_actions=self.agent.num_samples or family.num_parameters,
            dimensions=family.num_dimensions if isinstance(family, SquashedGaussian) else None,
            unroll_steps=config.unroll_steps,
            td_steps=config.td_steps,
            **settings,
        )

    def draw(self, now: Now) -> PositionBatch:
        gamma = now.gamma * self.agent.discount_sign
        self.replay.steps_per_cut = self.steps_per_cut(now)
        batch = self.replay.sample_by_priority(self.config.batch_size, gamma, now.importance_exponent)
        return on_device(batch, self.agent.device)

    def steps_per_cut(self, now: Now) -> float:
        """Age in steps at which data loses one of its n rewards; never."""
        return math.inf

    def varied(self, batch: PositionBatch, targets: Targets) -> tuple[PositionBatch, Targets]:
        """Positions as the game's symmetries show them, and some with moves that it forbids, if the config says so."""
        if self.symmetries is not None:
            batch, targets = self.symmetries.turned(batch, targets)
        if self.config.forbidden_moves:
            allowed = self.masks(batch)[:-1]
            batch, targets = with_forbidden_moves(batch, targets, allowed, self.config.forbidden_moves)
        return batch, targets

    def masks(self, batch: PositionBatch) -> Tensor:
        """Which actions are allowed [K + 1, B, A], at the position and after each of the K steps."""
        turn = batch["turn"].expand(batch["places"].shape).flatten() if "turn" in batch else None
        masks: Tensor = self.seen(batch["places"].flatten(), turn)[MASK]
        return masks.view(*batch["places"].shape, -1)

    def seen(self, places: np.ndarray, turn: Tensor | None = None) -> Any:
        """What the network learns from at places [N] of the replay, turned as `turn` [N] says."""
        obs = self.replay.seen_at(places)
        if turn is not None and self.symmetries is not None:  # before they are normalised, square by square
            obs = self.symmetries.observations(obs, turn)
        return self.agent.inputs(obs)

    def true_states(self, batch: PositionBatch) -> tuple[Tensor, Tensor]:
        """Which of the K steps [K, B] led to a state, not past an episode's end, and these as they are represented."""
        there = batch["acted"][:-1] > 0
        turn = batch["turn"].expand(there.shape)[there.cpu()] if "turn" in batch else None
        with torch.no_grad():
            seen = self.seen(batch["places"][1:][there.cpu().numpy()], turn)
            return there, self.agent.network.represent(seen)
