"""DreamerV3: a world model, and an actor and a critic trained on its imagined trajectories.

Hafner, Pasukonis, Ba, Lillicrap: "Mastering diverse control tasks through world models", Nature 640 (2025), arXiv
2301.04104v2; constants as in the authors' code. Shapes are time-major: T steps, B sequences, N rows of any kind. A
latent is S choices among K classes; classes stand before choices, [..., K, S], so that sums over classes run over
whole vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

UNIMIX = 0.01  # share of the uniform distribution in every categorical


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|): nearly x for small numbers, and large ones stay manageable."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """The inverse of symlog: sign(x) (e^|x| - 1)."""
    return x.sign() * x.abs().expm1()


def make_bins(count: int) -> Tensor:
    """symexp of `count` equal steps from -20 to 20, an odd number; built from one half, so that the middle is 0."""
    assert count % 2 == 1, count
    half = symexp(torch.linspace(-20, 0, count // 2 + 1))
    return torch.cat([half, -half[:-1].flip(0)])


def decode(logits: Tensor, bins: Tensor) -> Tensor:
    """Σᵢ pᵢ bᵢ of logits [..., bins], each bin paired with its mirror image.

    Bins reach 5e8: summed in any other order, equal probabilities would not give 0.
    """
    share, middle = logits.softmax(-1), len(bins) // 2
    return (share[..., middle + 1 :] - share[..., :middle].flip(-1)) @ bins[middle + 1 :]


def two_hot(target: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The two bins around each target [...] and their weights, [..., 2] each.

    The target lies linearly between two bins; beyond the outermost it is that bin alone.
    """
    last = len(bins) - 1
    below = (torch.searchsorted(bins, target.contiguous(), right=True) - 1).clamp_(0, last)
    above = (below + 1).clamp_(max=last)
    low, high = bins[below], bins[above]
    share = ((target - low) / (high - low).clamp_min(1e-30)).clamp_(0.0, 1.0)
    return torch.stack([below, above], -1), torch.stack([1 - share, share], -1)


def two_hot_loss(logits: Tensor, targets: list[Tensor], bins: Tensor) -> Tensor:
    """Σ over targets [...] of the cross-entropy of their two-hot code with logits [..., bins].

    -Σᵢ tᵢ log pᵢ = logsumexp(l) - Σᵢ tᵢ lᵢ, where at most two tᵢ are not 0: they are gathered, and the rest is never
    touched.
    """
    places, weights = zip(*(two_hot(target, bins) for target in targets), strict=True)
    picked = (logits.gather(-1, torch.cat(places, -1)) * torch.cat(weights, -1)).sum(-1)
    return len(targets) * logits.logsumexp(-1) - picked


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
    bounds = torch.quantile(returns.flatten(), returns.new_tensor([0.05, 0.95]))
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
