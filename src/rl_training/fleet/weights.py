"""Weights sent to actors: parameters and statistics of the observation normaliser, as one array."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from rl_training.data.normalization import ObservationNormalizer, RunningMoments
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.state.leaves import require


def pack(agent: ActorCriticPolicy) -> np.ndarray:
    """All that decides how an agent acts, as bytes: statistics (float64), then parameters (float32)."""
    parts = [_statistics(moments) for moments in _moments(agent.normalizer)]
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in agent.network.parameters()])
    return np.concatenate([part.view(np.uint8) for part in (*parts, parameters.cpu().numpy())])


def unpack(packed: np.ndarray, agent: ActorCriticPolicy, parameters: torch.Tensor) -> None:
    """Let `agent` act like the one that was packed; `parameters` is the vector that its own are views of."""
    start = 0
    for moments in _moments(agent.normalizer):
        size = _statistics(moments).nbytes
        values = packed[start : start + size].view(np.float64)
        shape, half = moments.mean.shape, len(values) // 2
        moments.mean, moments.variance = (
            values[:half].reshape(shape).copy(),
            values[half:-1].reshape(shape).copy(),
        )
        moments.count = float(values[-1])
        start += size
    # A copy, since what came through Ray may only be read, and torch warns of that.
    parameters.copy_(torch.from_numpy(packed[start:].view(np.float32).copy()))


def check(agent: ActorCriticPolicy, parameters: torch.Tensor) -> None:
    """Refuse what was unpacked from a checkpoint and no training has packed."""
    for moments in _moments(agent.normalizer):
        moments.check_state()
    require(parameters.isfinite().all(), "weights that are not finite")


def _statistics(moments: RunningMoments) -> np.ndarray:
    return np.concatenate([moments.mean.reshape(-1), moments.variance.reshape(-1), [moments.count]])


def _moments(normalizer: ObservationNormalizer | None) -> Iterator[RunningMoments]:
    """The statistics of every float array of an observation, in the order of its space."""
    if normalizer is None:
        return
    for part in normalizer.parts.values():
        yield from _moments(part)
    if normalizer.moments is not None:
        yield normalizer.moments
