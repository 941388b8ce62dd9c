"""Symmetries of board games: a position that is turned or mirrored is worth the same to who moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.masking import MASK
from rl_training.algorithms.muzero import Targets
from rl_training.data.batch import PositionBatch


class Symmetries:
    """S turns of a board of N numbers with A actions, the first of which leaves all in place.

    A turned board holds at i what lies at squares[s, i], and the turned action a is what was actions[s, a] before.
    """

    def __init__(self, turns: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        squares, actions = (np.stack(each).astype(np.int64) for each in zip(*turns, strict=True))
        same = np.arange(squares.shape[1])[None], np.arange(actions.shape[1])[None]
        self.squares = torch.from_numpy(np.concatenate([same[0], squares]))  # [S, N]
        self.actions = torch.from_numpy(np.concatenate([same[1], actions]))  # [S, A]

    def draw(self, count: int) -> Tensor:
        """A turn for each of `count` positions, all equally likely."""
        return torch.randint(len(self.squares), (count,))

    def turned(self, batch: PositionBatch, targets: Targets) -> tuple[PositionBatch, Targets]:
        """Each position and the steps after it, as a symmetry drawn for it shows them."""
        turn = self.draw(batch["action"].shape[1])
        action, policy = self.action(batch["action"], turn), self.policy(targets.policy, turn)
        return {**batch, "action": action, "turn": turn}, targets._replace(policy=policy)

    def observations(self, obs: Any, turn: Tensor) -> Any:
        """Boards [B, ...], or dicts of them and masks [B, A], each by its turn [B]."""
        if isinstance(obs, np.ndarray):
            obs = torch.from_numpy(obs)
        if isinstance(obs, dict):
            turned = {name: self.observations(part, turn) for name, part in obs.items() if name != MASK}
            mask = torch.as_tensor(obs[MASK]).gather(1, self.actions[turn]) if MASK in obs else None
            return turned if mask is None else turned | {MASK: mask}
        return obs.flatten(1).gather(1, self.squares[turn]).view_as(obs)

    def policy(self, policy: Tensor, turn: Tensor) -> Tensor:
        """Policies [..., B, A]."""
        return policy.gather(-1, self.actions[turn].to(policy.device).expand_as(policy))

    def action(self, action: Tensor, turn: Tensor) -> Tensor:
        """Actions [..., B]: where actions[s, a'] is a, a becomes a'."""
        becomes = self.actions.argsort(-1)[turn].to(action.device).expand(*action.shape, -1)
        return becomes.gather(-1, action[..., None])[..., 0]
