"""Staged low-rank adapters (LoRA): earlier weights are frozen, and a new adapter is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.scalezero import adapted_weight


class StagedWeight(nn.Module):
    """A weight [..., O, I], or several of them side by side, at any of its stages.

    Stage 0 is the weight itself. Every later one has an adapter of its own and its own scales of all that came before,
    so that what a stage said can be said again after the next has begun.
    """

    def __init__(
        self, *shape: int, stages: int, rank: int, lora_alpha: float, deviation: float | None = None
    ) -> None:
        super().__init__()
        *several, outputs, inputs = shape
        self.strength = lora_alpha / rank
        deviation = inputs**-0.5 if deviation is None else deviation
        self.base = nn.Parameter(torch.randn(shape) * deviation)
        later = range(1, stages)
        self.down = nn.ParameterList(torch.randn(*several, rank, inputs) * 0.01 for _ in later)
        self.up = nn.ParameterList(torch.zeros(*several, outputs, rank) for _ in later)
        self.logits = nn.ParameterList(torch.zeros(stage, *several) for stage in later)

    def forward(self, stage: int) -> Tensor:
        if stage == 0:
            return self.base
        adapters = list(zip(self.up, self.down, strict=True))[:stage]
        return adapted_weight(self.base, self.logits[stage - 1], adapters, self.strength)

    @torch.no_grad()
    def begin(self, stage: int) -> None:
        """Let a stage begin where the one before it stands: with its scales, and 1 for its adapter."""
        if stage > 1:
            self.logits[stage - 1][:-1] = self.logits[stage - 2]

    def of_stage(self, stage: int) -> list[nn.Parameter]:
        """What learns in a stage."""
        if stage == 0:
            return [self.base]
        parts = (self.up, self.down, self.logits)
        return [part[stage - 1] for part in parts]


class StagedLinear(nn.Module):
    """A dense layer whose weight is staged, and whose bias learns in the first stage alone."""

    def __init__(self, inputs: int, outputs: int, **staged: Any) -> None:
        super().__init__()
        self.weight = StagedWeight(outputs, inputs, **staged)
        nn.init.orthogonal_(self.weight.base)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, rows: Tensor, stage: int) -> Tensor:
        return F.linear(rows, self.weight(stage), self.bias)

    def of_stage(self, stage: int) -> list[nn.Parameter]:
        return self.weight.of_stage(stage) + ([self.bias] if stage == 0 else [])
