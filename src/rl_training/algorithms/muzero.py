"""MuZero (Schrittwieser et al. 2020, Nature 588; arXiv 1911.08265): planning with a learned model.

Values and rewards are compressed by the invertible transform h of `value_transform.py` and learned as distributions
over the whole numbers -S … S. Outcomes of games can be learned as they are: h maps 1 to a mixture of the
atoms 0 and 1, and without h the target is one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.value_transform import compress, expand


class Unrolled(NamedTuple):
    """What the heads say of (K + 1) · B states, the roots first: logits, and the states themselves."""

    policy: Tensor  # [(K + 1) · B, A], or of vectors [(K + 1) · B, 2D]
    value: Tensor  # [(K + 1) · B, 2S + 1]
    reward: Tensor  # [(K + 1) · B, 2S + 1] of what was earned on the way to the state
    states: Tensor  # [K + 1, B, ...]: of the first observations, and those that the actions lead to


class Targets(NamedTuple):
    """What a batch of positions and the K steps after them shall learn."""

    policy: Tensor  # [K + 1, B, A], zeros where no action was taken
    value: Tensor  # [K + 1, B]
    reward: Tensor  # [K, B], of the actions
    samples: Tensor | None = None  # [K + 1, B, A, D], where actions are vectors: those that `policy` is about


def decode(logits: Tensor, atoms: Tensor, compressed: bool = True) -> Tensor:
    """h⁻¹(Σᵢ pᵢ i): the scalars [...] that logits [..., 2S + 1] over the atoms -S … S stand for.

    compressed: whether there is an h; else Σᵢ pᵢ i
    """
    mean = logits.softmax(-1) @ atoms
    return expand(mean) if compressed else mean


def two_hot_loss(logits: Tensor, target: Tensor, compressed: bool = True) -> Tensor:
    """Cross-entropy [...] of logits [..., 2S + 1] with a scalar target [...] split between its two nearest atoms.

    y = clip(h(target), -S, S), or without h if it is not `compressed`,  w = y - ⌊y⌋
    loss = -(1 - w) log p(⌊y⌋) - w log p(⌊y⌋ + 1)
    """
    size = (logits.shape[-1] - 1) // 2
    position = (compress(target) if compressed else target).clamp(-size, size) + size
    low = position.floor().clamp_(
        max=2 * size - 1
    )  # the topmost atom is the upper neighbour of the one below
    upper = position - low
    index = low.long().unsqueeze(-1)
    logit_low, logit_high = logits.gather(-1, index).squeeze(-1), logits.gather(-1, index + 1).squeeze(-1)
    return logits.logsumexp(-1) - torch.lerp(logit_low, logit_high, upper)


def policy_loss(logits: Tensor, target: Tensor) -> Tensor:
    """-Σₐ π(a) log p(a): the cross-entropy [...] of the policy [..., A] with the shares of the root's visits."""
    return -(target * F.log_softmax(logits, -1)).sum(-1)


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """x itself, whose gradient is `scale` times as large."""
    return torch.lerp(x.detach(), x, scale)


def scale_latent(latent: Tensor) -> Tensor:
    """(s - min s) / (max s - min s) for each row [N, ...]: to [0, 1], the range of the actions beside it."""
    row = tuple(range(1, latent.ndim))  # flat rows would be copies where the channels are last in memory
    low, high = (
        latent.amin(row, keepdim=True),
        latent.amax(row, keepdim=True),
    )  # `aminmax` takes ten times as long
    return (latent - low) / (high - low + 1e-5)


def scale_board(latent: Tensor) -> Tensor:
    """s / √(mean s²) for each row [N, ...]: no single square decides how large all others are."""
    size = latent.flatten(1).square().mean(1).add(1e-5).rsqrt()
    return latent * size.view(-1, *(1,) * (latent.ndim - 1))


def state_loss(imagined: Tensor, true: Tensor) -> Tensor:
    """Mean square distance [N] of the states [N, ...] that actions led to from those of the observations there."""
    return (imagined - true).square().flatten(1).mean(1)


def spread(latent: Tensor) -> float:
    """Standard deviation over a batch of states [N, ...], the mean of all their entries: 0 where all are one."""
    return latent.flatten(1).std(0, correction=0).mean().item()


def step_weights(unroll_steps: int) -> Tensor:
    """[K + 1, 1]: 1 for the root and 1/K for each unrolled step, so that both kinds weigh the same."""
    weights = torch.full((unroll_steps + 1, 1), 1 / unroll_steps)
    weights[0] = 1.0
    return weights


def unrolled_loss(losses: Tensor, known: Tensor, weight: Tensor) -> Tensor:
    """E_b[w_b Σₖ scaleₖ · knownₖ · lossₖ] of losses [K + 1, B], where `known` [K + 1, B] says which there are."""
    scales = step_weights(len(losses) - 1).to(losses.device)
    return (losses * known * scales * weight).sum() / len(weight)


def unrolled_losses(
    said: Unrolled,
    targets: Targets,
    policy_loss: Callable[[Tensor, Tensor], Tensor],
    *,
    acted: Tensor,
    known: Tensor,
    weight: Tensor,
    compressed: bool = True,
) -> dict[str, Tensor]:
    """lᵖ, lᵛ and lʳ: of the root in full and of the K steps after it 1/K each.

    acted:  [K + 1, B], where an action was taken, so that there is a policy to learn
    known:  [K + 1, B], where there is a value; a reward is known where the state before it is
    weight: [B], which corrects for how positions were drawn
    compressed: whether values and rewards are, see `two_hot_loss`
    """
    shape = targets.value.shape
    policy = policy_loss(said.policy, targets.policy.flatten(0, 1)).view(shape)
    value = two_hot_loss(said.value, targets.value.flatten(), compressed).view(shape)
    reward = torch.zeros_like(value)  # no action led to the root
    earned = two_hot_loss(said.reward[shape[1] :], targets.reward.flatten(), compressed)
    reward[1:] = earned.view(-1, shape[1])
    return {
        "policy_loss": unrolled_loss(policy, acted, weight),
        "value_loss": unrolled_loss(value, known, weight),
        "reward_loss": unrolled_loss(reward, known.roll(1, 0), weight),
    }


def mean_entropy(policy: Tensor, acted: Tensor) -> float:
    """The mean entropy, in nats, of the searches' policies [..., A] where one was acted on."""
    entropy = torch.special.entr(policy).sum(-1)
    return ((entropy * acted).sum() / acted.sum().clamp(min=1)).item()


def visit_policy(visit_counts: Tensor, temperature: float) -> Tensor:
    """p(a) ∝ N(a)^(1/T), [B, A]; T = 0 leaves only the most visited action, the first of equals."""
    if temperature == 0:
        return F.one_hot(visit_counts.argmax(-1), visit_counts.shape[-1]).float()
    counts = visit_counts.double()
    # The largest is taken out first: 800 visits at T = 0.01 would be 10²⁹⁰.
    shares = (counts / counts.amax(-1, keepdim=True)) ** (1 / temperature)
    return (shares / shares.sum(-1, keepdim=True)).float()
