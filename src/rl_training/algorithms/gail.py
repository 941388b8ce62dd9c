"""Generative Adversarial Imitation Learning (Ho & Ermon 2016, arXiv 1606.03476).

D(s, a) = σ(f(s, a)) is the probability that a pair comes from the expert, and f its logit. The paper's D is 1 - ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.compiling import njit

# r from the logits f [N]. Each leans towards something where episodes may end: the first towards staying alive,
# the second towards ending, because what follows an end earns nothing. The third has both signs.
REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "positive": lambda logit: F.softplus(logit),  # -log(1 - D) ≥ 0
    "negative": lambda logit: -F.softplus(-logit),  # log D ≤ 0
    "logit": lambda logit: logit,  # log D - log(1 - D) = f
}


def discriminator_loss(
    expert: Tensor, agent: Tensor, absorbing: Tensor, expert_share: float, agent_share: float
) -> Tensor:
    """-E_expert[log D] - E_π[log(1 - D)] for the logits [N] of expert pairs and [M] of the agent's: equation 17 with
    the labels exchanged.

    The logit of the absorbing state, in which the two spend the shares w_e and w_π of their time, is one number, and
    so are its expectations: they need no sample. With c = 2 / ((1 - w_e) + (1 - w_π)), which leaves the best D what it
    is and gives pairs their full weight however short episodes are,

        -c (1 - w_e) E_expert[log D] - c (1 - w_π) E_π[log(1 - D)] - w_e log D(s_a) - w_π log(1 - D(s_a)).
    """
    scale = 2 / (2 - expert_share - agent_share)
    pairs = (1 - expert_share) * F.softplus(-expert).mean() + (1 - agent_share) * F.softplus(agent).mean()
    after = expert_share * F.softplus(-absorbing) + agent_share * F.softplus(absorbing)
    return scale * pairs + after.sum()


def discriminator_answers(expert: Tensor, agent: Tensor) -> dict[str, Tensor]:
    """What is worth logging of the logits of both sides' pairs, which count alike: the loss, the share of right
    answers, and the entropy of D, in nats."""
    # A logit of 0 is no answer and counts as half right, so that a constant D is right half of the time.
    right = (1 + expert.sign().mean()) / 2 + (1 - agent.sign().mean()) / 2
    return {
        "discriminator_loss": F.softplus(-expert).mean() + F.softplus(agent).mean(),
        "discriminator_accuracy": right / 2,
        "discriminator_entropy": (_entropy(expert).mean() + _entropy(agent).mean()) / 2,
    }


def _entropy(logit: Tensor) -> Tensor:
    """-D log D - (1 - D) log(1 - D) = softplus(f) - f σ(f)."""
    return F.softplus(logit) - logit * logit.sigmoid()


def gradient_penalty(slope: Tensor, target: float) -> Tensor:
    """E[(‖∇ₓ f(x)‖ - target)²] from the slopes ∇ₓ f [N, F] at some inputs x.

    With target 1 between expert and agent it is that of WGAN-GP (Gulrajani et al. 2017, equation 3), with target 0
    at the expert's pairs the zero-centred R1 (Mescheder et al. 2018, equation 9).
    """
    # A norm has no slope at 0, where a discriminator that knows nothing yet begins.
    norm = (slope.square().sum(-1) + 1e-12).sqrt()
    return (norm - target).square().mean()


def interpolate(expert: Tensor, agent: Tensor) -> Tensor:
    """ε x_expert + (1 - ε) x_agent with an ε ~ U(0, 1) for each pair of rows [N, F]."""
    share = torch.rand(len(expert), 1, device=expert.device)
    return share * expert + (1 - share) * agent


def end_reward(absorbing_reward: float, gamma: float) -> float:
    """Σ_{k≥1} γᵏ r_a = γ r_a / (1 - γ): what follows a termination, for ever in the absorbing state (Kostrikov et al.
    2019, section 4.2), as a part of the last step's reward."""
    return gamma * absorbing_reward / (1 - gamma)


def row_weights(rows: int, expert_share: float, agent_share: float) -> Tensor:
    """The weights of -log D and -log(1 - D) in `discriminator_loss` [rows + 1, 2]: of the expert's rows, as many of the
    agent, and the absorbing state."""
    scale = 2 / (2 - expert_share - agent_share)
    weights, half = torch.zeros(rows + 1, 2), rows // 2
    weights[:half, 0] = scale * (1 - expert_share) / half
    weights[half:rows, 1] = scale * (1 - agent_share) / half
    weights[rows] = torch.tensor([expert_share, agent_share])
    return weights


@njit(nogil=True, error_model="numpy")
def discriminator_slopes(logits, weights, slopes, sums):  # type: ignore[no-untyped-def]
    """`discriminator_loss` and its slopes [N, 1]: -w_e (1 - D) + w_π D for rows with the weights w_e, w_π [N, 2]."""
    for i in range(len(logits)):
        logit = logits[i, 0]
        d = 1 / (1 + math.exp(-logit))
        level = max(logit, 0.0) + math.log1p(math.exp(-abs(logit)))  # softplus
        slopes[i, 0] = weights[i, 1] * d - weights[i, 0] * (1 - d)
        sums[0] += weights[i, 0] * (level - logit) + weights[i, 1] * level


@njit(nogil=True, error_model="numpy")
def penalty_slopes(slope, target, weight, share, along, sums):  # type: ignore[no-untyped-def]
    """`gradient_penalty` and its slopes [N, F] with a weight: 2 (‖g‖ - target) g / ‖g‖ / N; sums: both, the penalty."""
    for i in range(len(slope)):
        square = 1e-12
        for j in range(slope.shape[1]):
            square += slope[i, j] * slope[i, j]
        norm = math.sqrt(square)
        penalty = (norm - target) ** 2
        sums[0] += weight * share * penalty
        sums[1] += share * penalty
        for j in range(slope.shape[1]):
            along[i, j] = 2 * weight * share * (norm - target) / norm * slope[i, j]


GAIL_LOSSES = (discriminator_loss, gradient_penalty)  # what these slopes are of
