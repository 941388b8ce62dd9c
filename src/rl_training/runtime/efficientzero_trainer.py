"""EfficientZero: its config, what it adds to MuZero, and `train_efficientzero`."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.efficientzero import (
    CONTINUOUS,
    DISCRETE,
    Mixed,
    consistency_loss,
    has_searched_value,
    value_prefixes,
)
from rl_training.algorithms.muzero import Targets, Unrolled, unrolled_loss
from rl_training.data.augmentation import augmented
from rl_training.data.batch import PositionBatch
from rl_training.errors import ConfigError
from rl_training.networks.efficientzero import EfficientZeroNetwork
from rl_training.networks.encoders import is_image, is_small_image
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies.search import GumbelSearchPolicy, Plan, SearchPolicy, search_settings
from rl_training.runtime.controls import Now
from rl_training.runtime.muzero_trainer import MuZeroTrainer
from rl_training.runtime.workflows import Result, train
from rl_training.search import Root
from rl_training.settings.efficientzero import EfficientZeroConfig
from rl_training.settings.families import OffPolicyConfig
from rl_training.trees import Arrays


class EfficientZeroPolicy(SearchPolicy):
    network_class: ClassVar[type[MuZeroNetwork]] = EfficientZeroNetwork
    network: EfficientZeroNetwork


class EfficientZeroGumbelPolicy(GumbelSearchPolicy):
    """Plans as EfficientZero V2 does: by Gumbel search, with its constants and without Dirichlet noise."""

    network_class: ClassVar[type[MuZeroNetwork]] = EfficientZeroNetwork
    network: EfficientZeroNetwork

    def search(self, root: Root, recurrent: Any, invalid: Any, settings: Any, greedy: Any = None) -> Plan:
        constants = {"c_visit": 50.0, "c_scale": 0.1, "root_exploration_fraction": 0.0}
        return super().search(root, recurrent, invalid, {**settings, **constants}, greedy)


class EfficientZeroTrainer(MuZeroTrainer[EfficientZeroConfig]):
    """EfficientZero (Ye et al. 2021): sample-efficient MuZero."""

    config_class: ClassVar[type[OffPolicyConfig]] = EfficientZeroConfig
    policy_class: ClassVar[type[SearchPolicy]] = EfficientZeroPolicy
    agent: EfficientZeroPolicy | EfficientZeroGumbelPolicy
    revision = 3  # new searches use the target network

    def __init__(self, config: EfficientZeroConfig) -> None:
        super().__init__(config)
        oldest = self.mixed.recent * config.total_timesteps
        if config.mixed_values and config.buffer_size <= oldest:
            raise ConfigError(
                f"buffer_size must be above {oldest:.0f} with mixed_values: no data would be old enough",
                ("buffer_size",),
            )

    @property
    def mixed(self) -> Mixed:
        return DISCRETE if self.agent.num_samples is None else CONTINUOUS

    @classmethod
    def policy_of(cls, config: EfficientZeroConfig) -> type[SearchPolicy]:
        return EfficientZeroGumbelPolicy if config.gumbel_search else cls.policy_class

    @classmethod
    def agent_settings(cls, config: EfficientZeroConfig) -> dict[str, Any]:
        names = ("value_prefix", "prefix_size", "prefix_horizon", "consistency", "projection_size")
        settings = super().agent_settings(config) | {name: getattr(config, name) for name in names}
        return settings | ({"rescale_by": "tree"} if config.gumbel_search else {})

    def steps_per_cut(self, now: Now) -> float:
        # l = clip(n - ⌊age / (τ T)⌋, 1, n)
        config = self.config
        return now.horizon_tau * config.total_timesteps if config.off_policy_correction else math.inf

    def search_anew(self, obs: Arrays, now: Now, **known: Any) -> Plan:
        # With the root's noise as in acting: policies that learn from themselves without it forget alternatives.
        return self.agent.plan(obs, **search_settings(now), **known, network=self.target)

    def searched_anew(self, batch: PositionBatch, now: Now) -> tuple[Tensor, Tensor, Tensor]:
        policies, values, outright = super().searched_anew(batch, now)
        if self.config.mixed_values:
            age = torch.from_numpy(self.replay.ages(batch["index"]))
            outright = has_searched_value(age, self.steps, self.config.total_timesteps, self.mixed)
        return policies, torch.full_like(values, self.config.reanalyse_values), outright

    def seen(self, places: np.ndarray, turn: Tensor | None = None) -> Any:
        obs = super().seen(places, turn)
        space = self.observation_space
        # A shift or a shade of a photograph shows the same; one of a small grid, or of bits, shows another state.
        photographs = is_image(space) and space.dtype == "uint8" and not is_small_image(space)
        if not (self.config.augmentation and photographs):
            return obs
        if getattr(self.agent.network.representation, "channels_last", False):
            return augmented(obs.movedim(-1, 1)).movedim(1, -1)
        return augmented(obs)

    def varied(self, batch: PositionBatch, targets: Targets) -> tuple[PositionBatch, Targets]:
        batch, targets = super().varied(batch, targets)
        if self.config.value_prefix:  # of the rewards as they are learned, of forbidden moves too
            prefixes = value_prefixes(targets.reward, self.config.prefix_horizon)
            targets = targets._replace(reward=prefixes)
        return batch, targets

    def losses(self, predictions: Unrolled, targets: Targets, batch: PositionBatch) -> dict[str, Tensor]:
        losses = super().losses(predictions, targets, batch)
        if self.config.consistency:
            losses |= self.consistency(predictions.states[1:], batch)
        return losses

    def consistency(self, imagined: Tensor, batch: PositionBatch) -> dict[str, Tensor]:
        """Imagined states against the true ones; past an episode's end there are none, and nothing is compared.

        Beside the loss the mean cosine of all that was compared, which no weight scales.
        """
        network = self.agent.network
        assert network.projection is not None
        there, true = self.true_states(batch)
        losses = torch.zeros_like(batch["acted"])
        compared = consistency_loss(
            network.projection.predict(imagined[there]), network.projection.project(true)
        )
        losses[1:][there] = compared
        loss = unrolled_loss(losses, torch.ones_like(losses), batch["weight"])
        return {"consistency_loss": loss, "cosine": -compared.detach().mean()}

    def weighed(self, losses: dict[str, Tensor], now: Now) -> Tensor:
        loss = now.policy_coef * losses["policy_loss"] + now.vf_coef * losses["value_loss"]
        loss = loss + now.reward_coef * losses["reward_loss"]
        return loss + now.consistency_coef * losses["consistency_loss"] if self.config.consistency else loss


def train_efficientzero(config: EfficientZeroConfig, **options: Any) -> Result:
    """Train EfficientZero from a config; the options are those of `rl_training.train`."""
    return train(config, **options)
