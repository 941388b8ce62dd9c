"""The policy of Soft Actor-Critic: a squashed Gaussian, acting in [-1, 1]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.sac import squash
from rl_training.data.collector import Carry
from rl_training.data.normalization import ObservationNormalizer
from rl_training.networks.acting import SmallNetwork
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS, GaussianActor
from rl_training.state.stateful import Stateful
from rl_training.trees import tree_map


class SquashedPolicy(Stateful):
    """Feed-forward, so it carries nothing from step to step. Greedy is tanh of the mean."""

    transient = ("device", "small")

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        *,
        normalize_observations: bool,
        device: str,
        **network: Any,
    ) -> None:
        self.device = torch.device(device)
        self.actor = GaussianActor(observation_space, math.prod(action_space.shape), **network).to(
            self.device
        )
        self.normalizer = ObservationNormalizer(observation_space) if normalize_observations else None
        self.small = SmallNetwork.of(self.actor.encoder, self.actor.head)

    def initial(self, count: int) -> Carry:
        return ()

    def act(self, obs: Any, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        mean, log_std = self._gaussian(obs)
        if explore:
            mean = mean + np.exp(log_std) * np.random.standard_normal(mean.shape).astype(np.float32)
        return {"action": np.tanh(mean)}, carry

    def _gaussian(self, obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the log standard deviation, without gradients."""
        if self.small is not None and self.small.fits(len(obs)):
            output = self.small(obs if self.normalizer is None else self.normalizer(obs))
            mean, log_std = np.split(output, 2, -1)
            return mean, np.clip(log_std, *LOG_STD_BOUNDS)
        with torch.no_grad():
            mean, log_std = self.actor(self.inputs(obs))
        return mean.cpu().numpy(), log_std.cpu().numpy()

    def value(self, obs: Any, carry: Carry) -> np.ndarray:
        raise NotImplementedError("the critics stay with the trainer")

    def sample(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Actions [N, D] and their log-densities [N], with gradients, for inputs that are normalised already."""
        mean, log_std = self.actor(inputs)
        return squash(mean, log_std, torch.randn_like(mean))

    def inputs(self, obs: Any) -> Any:
        """Raw observations as the network's tensors, through the normaliser as it stands."""
        if self.normalizer is not None:
            obs = self.normalizer(tree_map(np.asarray, obs))
        return tree_map(lambda column: torch.as_tensor(column, device=self.device), obs)

    def observe(self, obs: Any) -> None:
        """Move the normaliser's statistics by raw observations [B, ...]."""
        if self.normalizer is not None:
            self.normalizer.update(obs)
