"""Sampled MuZero (Hubert et al. 2021, "Learning and planning in complex action spaces"; arXiv 2104.06303).

Where actions are vectors a search looks at K of them at every node, drawn from the network's policy there. A sample's
prior is β̂(a) π(a) / β(a), with β̂(a) = 1/K and what was drawn from, β, being π itself: all samples are alike, and the
probabilities lie in how densely they fall.

The policy is a normal squashed by tanh. Its mean is held within ±5 and σ = softplus(x + 1) + 0.1, as in EfficientZero
V2 (Wang et al. 2024; arXiv 2403.00564): samples of a policy without width would show nothing better than itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.distributions import SquashedGaussian

LARGEST_MEAN = 5.0
FIRST_SCALE, LEAST_SCALE = 1.0, 0.1


def gaussian(outputs: Tensor) -> Tensor:
    """What the policy head says, m and x [..., 2D] → μ = 5 tanh(m / 5) and log σ = log(softplus(x + 1) + 0.1)."""
    mean, scale = outputs.chunk(2, -1)
    mean = LARGEST_MEAN * (mean / LARGEST_MEAN).tanh()
    return torch.cat([mean, (F.softplus(scale + FIRST_SCALE) + LEAST_SCALE).log()], -1)


def sampled_policy_loss(outputs: Tensor, target: Tensor, samples: Tensor) -> Tensor:
    """-Σₖ π̂(aₖ) log π(aₖ): policies [N, 2D] against what a search made of their samples [N, K, D], shares [N, K] → [N].

    log π is the density's: where a search prefers nothing, π̂ = 1/K, the gradient is 0 on average over the samples.
    """
    family = SquashedGaussian(samples.shape[-1])
    return -(target * family.log_prob(gaussian(outputs).unsqueeze(-2), samples)).sum(-1)
