"""What policies without memory share: a device, and observations through a normaliser that is frozen while acting."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from rl_training.data.collector import Carry
from rl_training.data.normalization import ObservationNormalizer
from rl_training.networks.acting import SmallNetwork
from rl_training.networks.exact import Shortcut, taken
from rl_training.state.stateful import Stateful
from rl_training.trees import tree_map


class FeedForwardPolicy(Stateful):
    """Carries nothing from step to step. `small` computes the network's outputs without torch where that is faster."""

    transient: tuple[str, ...] = ("device", "small")
    greedy_leaves_out: ClassVar[str] = ""
    small: Shortcut[SmallNetwork] | None

    def __init__(
        self, observation_space: spaces.Space[Any], normalize_observations: bool, device: str
    ) -> None:
        self.device = torch.device(device)
        self.normalizer = ObservationNormalizer(observation_space) if normalize_observations else None

    def initial(self, count: int) -> Carry:
        return ()

    def acting_carry(self, carry: Carry) -> Carry:
        return carry

    def small_output(self, obs: Any) -> np.ndarray | None:
        """The network's output [B, ...] without torch; None where torch is faster or needed."""
        small = taken(self.small)
        if small is None or not small.fits(len(obs)):
            return None
        return small(obs if self.normalizer is None else self.normalizer(obs))

    def inputs(self, obs: Any) -> Any:
        """Raw observations as the network's tensors, through the normaliser as it stands."""
        if self.normalizer is not None:
            obs = self.normalizer(tree_map(np.asarray, obs))
        return tree_map(lambda column: torch.as_tensor(column, device=self.device), obs)

    def observe(self, obs: Any) -> None:
        """Move the normaliser's statistics by raw observations [B, ...]."""
        if self.normalizer is not None:
            self.normalizer.update(obs)
