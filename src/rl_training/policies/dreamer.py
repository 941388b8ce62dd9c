"""Dreamer's policy: tracks the latent state with the world model and acts on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.data.collector import Carry
from rl_training.networks.dreamer import DreamerNetwork
from rl_training.networks.rssm import State
from rl_training.policies.base import NetworkPolicy, most_likely
from rl_training.trees import Arrays, Tensors


class DreamerPolicy(NetworkPolicy):
    """Carries the model's state and the action before; an episode begins with zeros."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        normalize_observations: bool,
        device: str,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        self.network = DreamerNetwork(observation_space, action_space, **network).to(self.device)

    def initial(self, count: int) -> Carry:
        deter, stoch = self.network.rssm.initial(count)
        return deter, stoch, deter.new_zeros(count, sum(self.network.action_sizes))

    @torch.no_grad()
    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        """The `action`, drawn or the likeliest, and the latent it was chosen for, as the replay keeps it."""
        network = self.network
        state = self.follow(obs, carry)
        parameters = network.policy(state.features)
        action = network.family.sample(parameters) if explore else network.family.mode(parameters)
        acted = {"action": action.cpu().numpy(), **stored(network, state)}
        return acted, (*state, network.encode_action(action))

    @torch.no_grad()
    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        state = self.follow(obs, carry)
        return self.network.decoded(self.network.critic(state.features)).cpu().numpy()

    @property
    def num_draws(self) -> int:
        return self.network.rssm.num_latents

    def greedy(self, inputs: Tensors, carry: Carry, noise: Tensor) -> tuple[Tensor, dict[str, Tensor], Carry]:
        """The likeliest action; the latent it is chosen for is drawn with the noise [B, S]."""
        network = self.network
        state = self.see(inputs, carry, noise)
        action, scores = most_likely(network.family, network.policy(state.features))
        return action, scores, (*state, network.encode_action(action))

    def follow(self, obs: Arrays, carry: Carry) -> State:
        """The state after these observations [B, ...]."""
        inputs = self.inputs(obs)
        noise = torch.rand(len(carry[0]), self.num_draws, device=self.device)
        return self.see(inputs, carry, noise)

    def see(self, inputs: Tensors, carry: Carry, noise: Tensor) -> State:
        """The same of normalised inputs, with noise [B, S] in [0, 1) by which its latent is drawn."""
        rssm = self.network.rssm
        deter, stoch, action = carry
        tokens = rssm.token_inputs(self.network.reconstruction.encode(inputs))
        return rssm.see(State(deter, stoch), rssm.action_inputs(action), tokens, noise)[0]


def stored(network: DreamerNetwork, state: State) -> dict[str, np.ndarray]:
    """A state [..., ...] as the replay keeps it: half precision, and classes in place of one-hot vectors."""
    rssm = network.rssm
    latents = state.stoch.detach().unflatten(-1, (rssm.num_classes, rssm.num_latents))
    # One-hot: this sum is the class, and far cheaper than the place of the largest.
    classes = latents.transpose(-1, -2) @ torch.arange(
        rssm.num_classes, dtype=latents.dtype, device=latents.device
    )
    return {
        "deter": state.deter.detach().half().cpu().numpy(),
        "stoch": classes.to(torch.uint8).cpu().numpy(),
    }
