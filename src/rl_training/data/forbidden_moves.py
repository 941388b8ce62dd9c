"""Moves that a game forbids, for a model that imagines them: a search masks them at its root and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.muzero import Targets
from rl_training.data.batch import PositionBatch


def with_forbidden_moves(
    batch: PositionBatch, targets: Targets, allowed: Tensor, share: float
) -> tuple[PositionBatch, Targets]:
    """Positions some of whose unrolled moves are replaced by one that is forbidden: it loses, and ends the game.

        rₖ = -1        rⱼ = zⱼ = 0 for j > k        no policy is learned for j ≥ k

    No such move is ever played, so a model may take it for a way out where all others lose: in Connect Four when
    columns are full and every allowed move helps the other side.

    allowed: [K, B, A], the action masks of where the moves were made
    share: the probability that a move is replaced, where there is a forbidden one
    """
    acted = batch["acted"][:-1] > 0
    forbidden = (allowed == 0) & acted[..., None]
    here = forbidden.any(-1) & (torch.rand(acted.shape, device=acted.device) < share)
    since = here.cumsum(0) > 0  # [K, B], from the forbidden move on
    first = since.clone()
    first[1:] &= ~since[:-1]
    rows = first.nonzero(as_tuple=True)
    action = batch["action"].clone()
    if len(rows[0]):
        action[rows] = forbidden[rows].float().multinomial(1).squeeze(-1)
    reward = torch.where(since, -first.to(targets.reward.dtype), targets.reward)
    learned, value = batch["acted"].clone(), targets.value.clone()
    learned[:-1][since], learned[-1][since[-1]], value[1:][since] = 0.0, 0.0, 0.0
    policy = targets.policy * learned[..., None]
    return {**batch, "action": action, "acted": learned}, targets._replace(
        policy=policy, value=value, reward=reward
    )
