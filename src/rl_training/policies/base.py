"""Base class of policies: a device, and a normaliser that is frozen while acting."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.distributions import DiagonalGaussian, Joint
from rl_training.data.collector import Carry, Rollouts
from rl_training.data.normalization import ObservationNormalizer
from rl_training.envs.compiled import AnyEnvironments
from rl_training.kernels.acting import SmallNetwork
from rl_training.kernels.exact import Shortcut, taken
from rl_training.policies.gathering import WholeSteps
from rl_training.state.stateful import Stateful
from rl_training.trees import Arrays, Tensors, tree_map


class NetworkPolicy(Stateful):
    """A policy whose network sees normalised observations; it carries nothing, unless `initial` says so."""

    transient: tuple[str, ...] = ("device",)
    greedy_leaves_out: ClassVar[str] = ""

    def __init__(self, observation_space: spaces.Space, normalize_observations: bool, device: str) -> None:
        self.device = torch.device(device)
        self.normalizer = ObservationNormalizer(observation_space) if normalize_observations else None

    def initial(self, count: int) -> Carry:
        return ()

    @property
    def num_draws(self) -> int:
        """How many uniform random numbers `greedy` needs for a row: its `noise` [B, n] in [0, 1), if any."""
        return 0

    def acting_carry(self, carry: Carry) -> Carry:
        """The part of the carry that acting alone needs."""
        return carry

    def whole_rollouts(self, environments: AnyEnvironments, greedy: bool = False) -> Rollouts | None:
        """Rollouts in one call of compiled code, for policies that have them."""
        return None

    def whole_steps(self, environments: AnyEnvironments) -> WholeSteps | None:
        """Steps for a replay in one call of compiled code, for policies that have them."""
        return None

    def normalized(self, obs: Arrays) -> Any:
        """Raw observations through the normaliser as it stands."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def inputs(self, obs: Arrays | Tensors) -> Any:
        """Raw observations as the network's tensors."""
        if self.normalizer is not None:
            obs = self.normalized(tree_map(np.asarray, obs))
        return tree_map(lambda column: torch.as_tensor(column, device=self.device), obs)

    def observe(self, obs: Arrays | Tensors) -> None:
        """Move the normaliser's statistics by raw observations [..., B, ...]."""
        if self.normalizer is not None:
            self.normalizer.update(tree_map(np.asarray, obs))

    def outputs_of(self, small: Shortcut[SmallNetwork] | None, obs: Arrays) -> np.ndarray | None:
        """A network's outputs [B, ...] without torch; None where torch is faster or needed."""
        network = taken(small)
        if network is None or not network.fits(len(obs)):
            return None
        return network(self.normalized(obs))


def most_likely(family: Any, parameters: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The mode of a distribution of actions, and its parameters [B, P] under the names of what they are."""
    names = ("mean", "log_std") if isinstance(family, DiagonalGaussian) else ("logits",)
    names = ("parameters",) if isinstance(family, Joint) else names
    return family.mode(parameters), dict(zip(names, parameters.chunk(len(names), -1), strict=True))
