"""Dreamer's networks: the world model, the actor and the critic, in the sizes of the paper."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.distributions import Categorical, DiagonalGaussian, MultiCategorical
from rl_training.algorithms.dreamer import bounded_normal
from rl_training.algorithms.one_hot import unimix
from rl_training.algorithms.symexp_bins import make_bins
from rl_training.kernels.bins import bins_loss, decode_bins
from rl_training.networks.actor_critic import action_family
from rl_training.networks.reconstruction import Reconstruction
from rl_training.networks.rssm import RSSM, State, linear, mlp

NUM_BINS = 255


class Head(nn.Module):
    """Features [..., F] through `layers` dense layers to [..., outputs]; `scale` is that of the output layer."""

    def __init__(self, features: int, units: int, layers: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.layers = mlp(features, units, layers)
        self.output = linear(units, outputs, scale)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(self.layers(features))


class DreamerNetwork(nn.Module):
    """Everything that one optimizer moves."""

    transient = ("family",)
    bins: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        deter_size: int,
        rssm_hidden: int,
        num_latents: int,
        num_classes: int,
        units: int,
        cnn_depth: int,
        blocks: int,
        mlp_layers: int,
        num_bins: int = NUM_BINS,
    ) -> None:
        super().__init__()
        self.family = action_family(action_space)
        stoch = num_latents * num_classes
        self.action_sizes = action_sizes(action_space)
        self.reconstruction = Reconstruction(
            observation_space,
            deter_size=deter_size,
            stoch_size=stoch,
            units=units,
            layers=mlp_layers,
            cnn_depth=cnn_depth,
            blocks=blocks,
        )
        self.rssm = RSSM(
            self.reconstruction.tokens,
            sum(self.action_sizes),
            deter_size=deter_size,
            rssm_hidden=rssm_hidden,
            num_latents=num_latents,
            num_classes=num_classes,
            blocks=blocks,
        )
        features = deter_size + stoch
        # Rewards and values are 0 at first, and the policy is nearly uniform.
        self.reward = Head(features, units, 1, num_bins, 0.0)
        self.going_on = Head(features, units, 1, 1, 1.0)
        self.actor = Head(features, units, mlp_layers, self.family.num_parameters, 0.01)
        self.critic = Head(features, units, mlp_layers, num_bins, 0.0)
        self.register_buffer("bins", make_bins(num_bins))

    def policy(self, features: Tensor) -> Tensor:
        """The parameters [..., P] of the action's distribution, in the form that `family` reads."""
        raw = self.actor(features)
        if isinstance(self.family, DiagonalGaussian):
            return bounded_normal(raw)
        if isinstance(self.family, Categorical):
            return unimix(raw, -1).log()
        if isinstance(self.family, MultiCategorical):
            return torch.cat([unimix(part, -1).log() for part in raw.split(self.action_sizes, -1)], -1)
        return raw

    def encode_action(self, action: Tensor) -> Tensor:
        """Actions [...] or [..., D] as the vector [..., A] the dynamics read: choices are one-hot."""
        if isinstance(self.family, Categorical):
            return F.one_hot(action.long(), self.family.num_choices).float()
        if isinstance(self.family, MultiCategorical):
            choices = zip(action.long().unbind(-1), self.action_sizes, strict=True)
            return torch.cat([F.one_hot(choice, size) for choice, size in choices], -1).float()
        return action.float()

    @torch.no_grad()
    def imagine(self, state: State, horizon: int) -> tuple[Tensor, Tensor]:
        """Act in the model from N states: features [H + 1, N, F] of them and what follows, and actions [H, N, ...].

        aₜ ~ π(· | sₜ)        sₜ₊₁ ~ p(· | sₜ, aₜ)
        """
        rssm, (_, foresee) = self.rssm, self.rssm.steps
        noise = torch.rand(horizon, len(state.deter), rssm.num_latents, device=state.deter.device)
        size, actions = rssm.deter_size, []
        features = noise.new_empty(horizon + 1, len(state.deter), size + rssm.stoch_size)
        features[0] = state.features
        for t in range(horizon):
            action = self.family.sample(self.policy(features[t]))
            state = foresee(state, self.encode_action(action), noise[t])
            actions.append(action)
            features[t + 1, :, :size], features[t + 1, :, size:] = state
        return features, torch.stack(actions)

    def decoded(self, logits: Tensor) -> Tensor:
        """The numbers [...] that heads say on bins [..., K], without gradients."""
        return decode_bins(logits, self.bins)

    def bins_loss(self, logits: Tensor, targets: list[Tensor]) -> Tensor:
        """The cross-entropies of heads on bins [..., K] and two-hot targets [...], summed over the targets."""
        return bins_loss(logits, targets, self.bins)

    @torch.no_grad()
    def says(self, head: nn.Module, features: Tensor) -> Tensor:
        """The numbers [...] that a head on bins says of features [..., F], without gradients."""
        return self.decoded(head(features))

    def live(self, features: Tensor) -> Tensor:
        """The discounted probability that the episode goes on: the head learns γ, and 0 at its end."""
        return self.going_on(features).squeeze(-1).sigmoid()


def action_sizes(space: spaces.Space) -> tuple[int, ...]:
    """How many numbers each part of an action takes in the dynamics."""
    family = action_family(space)
    if isinstance(family, Categorical):
        return (family.num_choices,)
    if isinstance(family, MultiCategorical):
        return family.num_choices
    return (family.num_dimensions if isinstance(family, DiagonalGaussian) else family.num_parameters,)
