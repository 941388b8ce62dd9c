"""Adam over groups of parameters, only some of which are trained at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_training.errors import NonFiniteError
from rl_training.runtime.optim import Adam
from rl_training.state.stateful import Stateful


class GroupedAdam(Stateful):
    """An Adam per group, behind one loss and one limit of the gradient's norm.

    A group that does not take part in a step stays exactly where it is: it has moments of its own, which do not move it
    on, and its gradient counts for nothing.
    """

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self.groups = {name: Adam([nn.ParameterList(group)]) for name, group in groups.items()}

    def step(
        self, loss: Tensor, learning_rate: float, max_grad_norm: float | None, learning: Sequence[str]
    ) -> dict[str, float]:
        """One step of the groups that are `learning` down the gradient of `loss`."""
        if not math.isfinite(loss.item()):
            raise NonFiniteError("loss")
        for group in self.groups.values():
            group.gradient.zero_()
        loss.backward()
        moved = [self.groups[name] for name in learning]
        norm = math.sqrt(sum(torch.dot(group.gradient, group.gradient).item() for group in moved))
        if not math.isfinite(norm):
            bad = (name for name in learning if not self.groups[name].gradient.isfinite().all())
            raise NonFiniteError(f"gradient of {next(bad, 'all groups')}")
        for group in moved:
            if max_grad_norm is not None and norm > max_grad_norm:
                group.gradient.mul_(max_grad_norm / (norm + 1e-6))
            group.update(learning_rate)
        return {"grad_norm": norm}
