"""What image encoders say before they have learned anything: values near 0, and gradients that are not large."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_training import load_config
from rl_training.networks.encoders import IMAGE_ENCODERS, orthogonal

SPACE = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def frames() -> torch.Tensor:
    """Pong as its greys are: a field, two bats and a ball that moves."""
    chance = np.random.default_rng(0)
    drawn = np.full((8, 4, 84, 84), 87, np.uint8)
    for i, (left, right, ball, x) in enumerate(chance.integers(16, 70, (8, 4))):
        drawn[i, :, left : left + 7, 8:10] = 147
        drawn[i, :, right : right + 7, 74:76] = 148
        for t in range(4):
            drawn[i, t, ball + t : ball + t + 2, x + t] = 236
    return torch.from_numpy(drawn)


def beginning(kind: str, seed: int) -> tuple[float, float]:
    """The largest |V|, and the norm of the gradient of ½ (V - 1)²."""
    torch.manual_seed(seed)
    encoder = IMAGE_ENCODERS[kind](SPACE)
    head = orthogonal(nn.Linear(encoder.features, 1), 1.0)
    value = head(encoder(frames()))
    slopes = torch.autograd.grad(
        0.5 * (value - 1).square().mean(), [*encoder.parameters(), *head.parameters()]
    )
    return value.abs().max().item(), math.sqrt(sum(slope.square().sum().item() for slope in slopes))


@pytest.mark.parametrize("kind", IMAGE_ENCODERS)
def test_first_values_and_gradients_are_small(kind: str) -> None:
    """With a gain of √2 in the residual branches values were 1 to 2.4 and gradients 90 to 165."""
    values, norms = zip(*(beginning(kind, seed) for seed in range(9)), strict=True)
    assert median(values) < 0.4 and median(norms) < 40


def test_impala_on_pong_is_the_papers_in_units_of_a_mean() -> None:
    """A sum over n transitions has gradients n times those of the mean: clip c / n, ε / n² inside of the root."""
    config = load_config("impala/pong")
    assert config.max_grad_norm == pytest.approx(40 / config.steps_per_iteration)
    assert config.optimizer_epsilon == pytest.approx(0.01 / config.steps_per_iteration**2, rel=1e-2)
