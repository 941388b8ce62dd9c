"""The policy of Soft Actor-Critic: a squashed Gaussian, acting in [-1, 1]."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.sac import squash
from rl_training.data.collector import Carry
from rl_training.envs.compiled import AnyEnvironments
from rl_training.kernels.acting import InMemory, SmallNetwork
from rl_training.kernels.gathering import draw_squashed, squash_mean
from rl_training.kernels.reading import gaussian_layers
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS, GaussianActor
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.gathering import GreedySteps, WholeSteps
from rl_training.trees import Arrays, Tensors


class SquashedPolicy(NetworkPolicy):
    """tanh of a draw when it explores, tanh of the mean otherwise."""

    transient = ("small",)

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        *,
        normalize_observations: bool,
        device: str,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        self.actor = GaussianActor(observation_space, math.prod(action_space.shape), **network).to(
            self.device
        )
        self.small = InMemory.of(self.actor, partial(SmallNetwork.of, kind=GaussianActor))

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        mean, log_std = self._gaussian(obs)
        if explore:
            mean = mean + np.exp(log_std) * np.random.standard_normal(mean.shape).astype(np.float32)
        return {"action": np.tanh(mean)}, carry

    def whole_steps(self, environments: AnyEnvironments) -> WholeSteps | None:
        ours = type(self) is SquashedPolicy  # a subclass may act otherwise
        return WholeSteps.of(self, self.actor, draw_squashed, gaussian_layers, environments) if ours else None

    def whole_rollouts(self, environments: AnyEnvironments, greedy: bool = False) -> GreedySteps | None:
        if type(self) is not SquashedPolicy or not greedy:
            return None
        return GreedySteps.of(self, self.actor, squash_mean, gaussian_layers, environments)

    def _gaussian(self, obs: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the log standard deviation, without gradients."""
        output = self.outputs_of(self.small, obs)
        if output is not None:
            mean, log_std = np.split(output, 2, -1)
            return mean, np.clip(log_std, *LOG_STD_BOUNDS)
        with torch.no_grad():
            mean, log_std = self.actor(self.inputs(obs))
        return mean.cpu().numpy(), log_std.cpu().numpy()

    def greedy(self, inputs: Tensors, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        mean, log_std = self.actor(inputs)
        return mean.tanh(), {"mean": mean, "log_std": log_std}, carry

    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        raise NotImplementedError("the critics stay with the trainer")

    def sample(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Actions [N, D] and their log-densities [N], with gradients, for inputs that are normalised already."""
        mean, log_std = self.actor(inputs)
        return squash(mean, log_std, torch.randn_like(mean))
