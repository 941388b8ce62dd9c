"""DreamerV3: a world model, and an actor and a critic trained on its imagined trajectories.

Hafner, Pasukonis, Ba, Lillicrap: "Mastering diverse control tasks through world models", Nature 640 (2025), arXiv
2301.04104v2; constants as in the authors' code. Shapes are time-major: T steps, B sequences, N rows of any kind. A
latent is S choices among K classes, drawn as in `one_hot.py`; rewards and values are learned on the bins of
`symexp_bins.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PERCENTILES = (0.05, 0.95)  # of returns: the range that advantages are scaled to


def kl_divergence(probs: Tensor, log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Σ_S Σ_K p (log p - log q): [..., K, S] → [...], in nats."""
    return (probs * (log_probs - other_log_probs)).sum((-2, -1))


def latent_losses(posterior: Tensor, prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor]:
    """How far apart what was seen and what was foreseen are, given probabilities [..., K, S]: two losses [...].

        L_dyn = max(free, KL(sg(posterior) ‖ prior))       the prior learns to foresee
        L_rep = max(free, KL(posterior ‖ sg(prior)))       the posterior learns to be foreseeable

    Each element is clipped by itself, after the sum over the choices.
    """
    log_posterior, log_prior = posterior.log(), prior.log()
    dynamics = kl_divergence(posterior.detach(), log_posterior.detach(), log_prior)
    representation = kl_divergence(posterior, log_posterior, log_prior.detach())
    return dynamics.clamp_min(free_nats), representation.clamp_min(free_nats)


def lambda_returns(
    reward: Tensor, discount: Tensor, bootstrap: Tensor, return_lambda: float, last: Tensor | None = None
) -> Tensor:
    """λ-returns [T - 1, N] of states 0 … T - 2, from columns [T, N] that belong to the states arrived at:

        R_t = r_{t+1} + d_{t+1} ((1 - λ_{t+1}) b_{t+1} + λ_{t+1} R_{t+1})        R_{T-1} = b_{T-1}

    d is 0 where an episode terminated; λ_{t+1} is 0 where it ended, which `last` says: what follows there is another
    episode.
    """
    decay = torch.full_like(reward, return_lambda) if last is None else return_lambda * (1 - last)
    earned = reward + discount * (1 - decay) * bootstrap
    kept = discount * decay
    returns = [bootstrap[-1]]
    for t in range(len(reward) - 1, 0, -1):
        returns.append(earned[t] + kept[t] * returns[-1])
    return torch.stack(returns[:0:-1])


def imagined_weights(live: Tensor) -> Tensor:
    """How much each imagined state [H + 1, N] still counts: Π_{k ≤ t} cₖ, the state it all began with included."""
    return live.cumprod(0)


def move_range(low: Tensor, high: Tensor, returns: Tensor, rate: float) -> None:
    """Move the running 5th and 95th percentiles of returns, in place: x ← (1 - rate) x + rate · percentile."""
    move_towards(low, high, torch.quantile(returns.flatten(), returns.new_tensor(PERCENTILES)), rate)


def move_towards(low: Tensor, high: Tensor, bounds: Tensor, rate: float) -> None:
    """The same of percentiles that are known."""
    low.lerp_(bounds[0], rate)
    high.lerp_(bounds[1], rate)


def actor_loss(
    log_prob: Tensor, entropy: Tensor, advantage: Tensor, weight: Tensor, entropy_coef: float
) -> Tensor:
    """-E[w (A log π(a|s) + η H)], the policy gradient for any kind of action; columns [H, N]."""
    return -(weight * (log_prob * advantage + entropy_coef * entropy)).mean()


def bounded_normal(parameters: Tensor) -> Tensor:
    """Raw outputs [..., 2D] → means tanh(m), then logs of deviations 0.9 σ(s + 2) + 0.1."""
    mean, std = parameters.chunk(2, -1)
    return torch.cat([mean.tanh(), (0.9 * (std + 2).sigmoid() + 0.1).log()], -1)


def continue_loss(logits: Tensor, live: Tensor) -> Tensor:
    """Cross-entropy with a soft target: γ, or 0 where an episode terminated."""
    return F.binary_cross_entropy_with_logits(logits, live, reduction="none")
