"""One-hot draws from categorical distributions, with straight-through gradients.

Classes stand before choices, [..., K, S]: S choices among K classes, so that sums over classes run over whole vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIMIX = 0.01  # share of the uniform distribution in every categorical


def unimix(logits: Tensor, dim: int = -2) -> Tensor:
    """Probabilities 0.99 softmax(l) + 0.01 / K over `dim`: none is ever 0, so no divergence is ever infinite."""
    return logits.softmax(dim) * (1 - UNIMIX) + UNIMIX / logits.shape[dim]


def draw_one_hot(probs: Tensor, noise: Tensor) -> Tensor:
    """One-hot draws [..., K, S] from probs of that shape, by inverse CDF with noise [..., S] in [0, 1)."""
    reached = (probs.cumsum(-2)[..., :-1, :] <= noise.unsqueeze(-2)).to(probs.dtype)
    # reached is 1 … 1 0 … 0 along the classes: the drawn one is where it falls.
    ends = torch.zeros_like(noise).unsqueeze(-2)
    return torch.cat([ends + 1, reached], -2) - torch.cat([reached, ends], -2)


def straight_through(one_hot: Tensor, probs: Tensor) -> Tensor:
    """The draw in value, the probabilities in gradient."""
    return one_hot + (probs - probs.detach())
